"""CTranslate2 models, in and out: encoder–decoders, and decoders such as GPT-2, LLaMA and GPT-NeoX.

Reading needs nothing; writing goes through CTranslate2's own spec classes, which name whatever is missing. One table
of rules serves both ways, and a model is written only if what was written reads back as the same configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.config import (
    EmbedConfig,
    GatedMLPConfig,
    HeadConfig,
    LearnedPositionConfig,
    ModelConfig,
    RMSNormConfig,
    SinusoidalConfig,
    StackConfig,
    T5BucketsConfig,
)
from glassformer.errors import UserError
from glassformer.families.same import refuse_difference
from glassformer.header import Framing
from glassformer.interop.ct2_config import ACTIVATIONS, ENDLESS, configuration, own_sinusoids, rules, source_embedding
from glassformer.interop.ct2_file import Variables
from glassformer.interop.ct2_rotary import rotary_options, without_lengths
from glassformer.models.build import build_model
from glassformer.store import Loaded, atomic_directory, float_model
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights import Tie, export_weights, import_weights

WEIGHTS, CONFIG = "model.bin", "config.json"
ZERO_START = "<start>"
"""The name that we give the token of a decoder that starts from a vector of zeros."""
QUANTISATIONS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")


def recognises(path: Path) -> bool:
    """Whether the directory holds a ``model.bin``."""
    return (path / WEIGHTS).is_file()


def model_config(path: Path) -> ModelConfig:
    """The configuration of a directory's model; raises as `load`."""
    return configuration(Variables(path / WEIGHTS), _read_options(path))


def load(path: Path) -> Loaded:
    """Loads a directory; what is quantised is dequantised.

    Raises:
        UserError: A file is missing or damaged, or the model is one that we cannot represent.
    """
    file = path / WEIGHTS
    variables = Variables(file)
    options = _read_options(path)
    try:
        config = configuration(variables, options)
        expected = build_model(config, "meta", initialise=False).state_dict()
        weights = import_weights(rules(config, source_embedding(variables)), variables, expected)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    sides = vocabularies(path)
    if variables.scalars.get("decoder/start_from_zero_embedding"):
        config, weights, sides = _with_zero_start(config, weights, sides)
        options = {**options, "decoder_start_token": ZERO_START}
    from glassformer.text.vocabulary import tokenizer_of

    framing = _read_framing(options, *sides)
    return Loaded(path, float_model(config, weights), tokenizer_of(path, *sides), None, framing)


def _with_zero_start(
    config: ModelConfig, weights: dict[str, Tensor], vocabularies: tuple[list[str], list[str]]
) -> tuple[ModelConfig, dict[str, Tensor], tuple[list[str], list[str]]]:
    """The same model with one token more, a row of zeros, for the decoder to start with."""
    embed = "target_embed" if config.target_embed else "embed"
    grown = getattr(config, embed).model_copy(update={"vocab_size": config.target_vocab_size + 1})
    names = [name for name in (f"{embed}.weight", "head.weight", "head.bias") if name in weights]
    rows = {name: torch.cat([weights[name], torch.zeros_like(weights[name][:1])]) for name in names}
    source, target = vocabularies
    target = [*target, ZERO_START]
    return (
        config.model_copy(update={embed: grown}),
        {**weights, **rows},
        (source if config.target_embed else target, target),
    )


def _read_options(path: Path) -> dict[str, Any]:
    file = path / CONFIG
    if not file.is_file():  # format versions before 5 have none
        return {}
    try:
        options = json.loads(file.read_text(encoding="utf-8"))
        return dict(options)
    except (ValueError, TypeError) as error:
        raise UserError(f"{file}: not a JSON object ({error})") from None


def vocabularies(path: Path) -> tuple[list[str], list[str]]:
    """The tokens of a directory's source and of its target, by id.

    Raises:
        UserError: A file is missing, or does not fit the embedding.
    """
    config, unk = model_config(path), _read_options(path).get("unk_token", "<unk>")
    assert isinstance(config.embed, EmbedConfig)
    found = []
    for side, rows in (("source", config.embed.vocab_size), ("target", config.target_vocab_size)):
        names = [
            f"{name}.{kind}"
            for name in (f"{side}_vocabulary", "shared_vocabulary", "vocabulary")
            for kind in ("json", "txt")
        ]
        file = next((path / name for name in names if (path / name).is_file()), None)
        if file is None:
            raise UserError(f"{path}: has none of {', '.join(names)}, which hold the {side} vocabulary")
        text = file.read_text(encoding="utf-8")
        tokens = json.loads(text) if file.suffix == ".json" else text.removesuffix("\n").split("\n")
        if unk not in tokens and len(tokens) == rows - 1:
            tokens.append(unk)  # CTranslate2 does the same
        if len(tokens) != rows:
            raise UserError(f"{file}: {len(tokens)} tokens, but the embedding has {rows} rows; it is another model's")
        found.append(tokens)
    return found[0], found[1]


def _read_framing(options: Mapping[str, Any], source: Sequence[str], target: Sequence[str]) -> Framing:
    def ids(tokens: Sequence[str], name: str, default: str) -> tuple[int, ...]:
        token = options.get(name, default)
        return (tokens.index(token),) if token in tokens else ()

    start = ids(target, "decoder_start_token", "<s>")
    return Framing(
        before=ids(source, "bos_token", "<s>") if options.get("add_source_bos") else (),
        after=ids(source, "eos_token", "</s>") if options.get("add_source_eos") else (),
        start=start[0] if start else None,
        ends=ids(target, "eos_token", "</s>"),
    )


def save(
    directory: Path,
    model: Any,
    tokenizer: Tokenizer | None = None,
    framing: Framing | None = None,
    quantisation: str | None = None,
) -> None:
    """Writes a model as a CTranslate2 directory, which needs ``ctranslate2`` installed.

    Args:
        directory: Where; it must not exist yet.
        model: The torch module.
        tokenizer: Its pieces become the vocabulary, and it is saved beside the model; without one, ids are the tokens.
        framing: Which tokens a source and a target begin and end with.
        quantisation: One of ``QUANTISATIONS``; None leaves float32.

    Raises:
        UserError: CTranslate2 is not installed, cannot represent the model, or the directory exists.
    """
    if directory.exists():
        raise UserError(f"{directory}: exists already; name a new directory")
    if quantisation not in (None, *QUANTISATIONS):
        raise UserError(f"quantisation {quantisation!r}: expected one of {', '.join(QUANTISATIONS)}")
    config, weights = _canonical(model)
    spec, index_spec = _spec(config)
    table = rules(config)
    theirs = export_weights(table, weights)
    for rule in table:
        if Tie() in rule.ops:
            theirs.update((name, weights[ours]) for (ours,), (name,) in rule.pairs(weights))
    for name, tensor in theirs.items():
        part, _, attribute = name.rpartition("/")
        try:
            # CTranslate2 quantises in place.
            setattr(index_spec(spec, part), attribute, (tensor.clone() if quantisation else tensor).numpy())
        except (AttributeError, IndexError):
            raise UserError(f"CTranslate2 cannot represent this model: it has no {name}") from None
    _register(spec, config, tokenizer, framing)
    with atomic_directory(directory) as scratch:
        spec.validate()
        spec.optimize(quantisation)
        spec.save(str(scratch))
        if tokenizer is not None:
            tokenizer.save(scratch)
        written = configuration(Variables(scratch / WEIGHTS), _read_options(scratch))
        refuse_difference(config, written, "CTranslate2")


def _canonical(model: Any) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model without rows of positions that nobody reads; and without a number where positions are endless."""
    config, stacks = without_lengths(model.config), {}
    weights = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in model.state_dict().items()}
    for name, stack in config.stacks:
        if isinstance(stack.position, LearnedPositionConfig) and stack.position.first:
            table = f"{name}.position.weight"
            weights[table] = weights[table][stack.position.first :]
            position: Any = stack.position.model_copy(update={"first": 0})
        elif stack.position == own_sinusoids(config.d_model, stack.max_len or ENDLESS):
            position = own_sinusoids(config.d_model, ENDLESS)
        elif isinstance(stack.position, SinusoidalConfig):
            weights[f"{name}.position.weight"] = getattr(model, name).position.weight.detach().to("cpu", torch.float32)
            position = stack.position
        else:
            continue
        stacks[name] = stack.model_copy(update={"position": position})
    return config.model_copy(update=stacks), weights


def _spec(config: ModelConfig) -> tuple[Any, Any]:
    """CTranslate2's specification of the model, and its function that finds a part of it by name."""
    try:
        from ctranslate2.specs import transformer_spec
        from ctranslate2.specs.model_spec import index_spec
    except ImportError:
        raise UserError("writing CTranslate2's format needs its package: pip install 'glassformer[convert]'") from None
    if not isinstance(config.head, HeadConfig) or config.decoder is None:
        raise UserError("CTranslate2 cannot represent this model: it has no decoder with a language model's head")

    def stack(kind: Any, of: StackConfig, **more: Any) -> Any:
        if not of.blocks or of.blocks[0].mlp is None:
            raise UserError("CTranslate2 cannot represent this model: its blocks have no feed-forward part")
        first, activation = of.blocks[0], of.blocks[0].mlp.activation
        if first.parallel:
            more["parallel_residual"] = True
        if first.attention.rotary is not None:
            more |= rotary_options(first.attention.rotary, first.attention.head_size(config.d_model))
        made = kind(
            len(of.blocks),
            first.attention.n_heads,
            pre_norm=first.order == "pre",
            no_final_norm=of.final_norm is None,
            activation=ACTIVATIONS.index(activation) if activation in ACTIVATIONS else len(ACTIVATIONS),
            layernorm_embedding=of.input_norm is not None,
            relative_attention_bias=isinstance(of.bias, T5BucketsConfig),
            ffn_glu=isinstance(first.ffn, GatedMLPConfig),
            rms_norm=isinstance(first.norm, RMSNormConfig),
            num_heads_kv=first.attention.n_kv_heads,
            head_dim=first.attention.d_head,
            **more,
        )
        for block, layer in zip(of.blocks, made.layer, strict=True):
            for part, name in ((block.attention, "self_attention"), (block.cross, "attention")):
                if part is not None and part.scale is not None:
                    getattr(layer, name).queries_scale = float(part.scale)
            if isinstance(of.bias, T5BucketsConfig):
                layer.self_attention.relative_attention_max_distance = np.int32(of.bias.max_distance)
        return made

    decoder = stack(
        transformer_spec.TransformerDecoderSpec, config.decoder, with_encoder_attention=config.encoder is not None
    )
    if config.head.scale:
        decoder.scale_outputs = config.d_model**-0.5
    embed = config.target_embed or config.embed
    decoder.scale_embeddings = isinstance(embed, EmbedConfig) and embed.scale
    if config.encoder is None:
        return transformer_spec.TransformerDecoderModelSpec(decoder), index_spec
    encoder = stack(transformer_spec.TransformerEncoderSpec, config.encoder)
    encoder.scale_embeddings = isinstance(config.embed, EmbedConfig) and config.embed.scale
    return transformer_spec.TransformerSpec(encoder, decoder), index_spec


def _register(spec: Any, config: ModelConfig, tokenizer: Tokenizer | None, framing: Framing | None) -> None:
    """Tells the specification its vocabularies, and what goes around a text."""
    assert isinstance(config.embed, EmbedConfig) and config.decoder is not None
    target = pieces(tokenizer and tokenizer.target, config.target_vocab_size)
    options = spec.config
    options.layer_norm_epsilon = config.decoder.blocks[0].norm.eps
    if framing is not None and framing.ends:
        options.eos_token = target[framing.ends[0]]
    # Without one of its own, any token of the vocabulary keeps CTranslate2 from adding one.
    unknown = tokenizer.target.unk_id if tokenizer is not None else None
    options.unk_token = options.eos_token if unknown is None and options.eos_token in target else target[unknown or 0]
    if config.encoder is None:
        spec.register_vocabulary(target)
        if framing is not None and framing.before:
            options.bos_token = target[framing.before[0]]
        # It reads prompts as they are given, and passes over the key: our own reading wants it.
        options.add_attribute("add_source_bos", framing is not None and bool(framing.before))
        return
    source = pieces(tokenizer, config.embed.vocab_size)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    if framing is None:
        return
    options.decoder_start_token = None if framing.start is None else target[framing.start]
    for name, around, token in (("bos", framing.before, "bos_token"), ("eos", framing.after, "eos_token")):
        if len(around) > 1 or (name == "eos" and around and framing.ends and source[around[0]] != options.eos_token):
            raise UserError("CTranslate2 puts one token before a source and its end token behind; this model more")
        if around:
            setattr(options, token, source[around[0]])
        options.add_attribute(f"add_source_{name}", bool(around))


def pieces(tokenizer: Tokenizer | None, rows: int) -> list[str]:
    """A name for each row of an embedding: its piece, or its number."""
    known = 0 if tokenizer is None else min(rows, tokenizer.vocab_size)
    names = [tokenizer.id_to_token(index) for index in range(known)] if tokenizer else []
    return names + [f"<{index}>" for index in range(known, rows)]

"""The same weights for everyone: a MODEL with random ones, and any MODEL as its peers read it.

They are written once, into ``$XDG_CACHE_HOME/glassformer-benchmarks`` or ``~/.cache/glassformer-benchmarks``.
"""

from __future__ import annotations

import importlib
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.shapes import SHAPES

if TYPE_CHECKING:
    import numpy as np

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glassformer-benchmarks"
LOUDNESS = 4.0
"""Factor of the last matrix of each random sub-layer. Without it the residual drowns what the model computes, a tied
embedding repeats one token whatever the source, and that two engines agree would prove little."""


def random_model(size: str) -> Path:
    """The MODEL directory of a shape with random weights; it holds no tokenizer. ``write_random_model`` writes it."""
    return FOLDER / f"random-{size}"


def write_random_model(size: str) -> Path:
    """Writes ``random_model(size)`` unless it is there."""
    folder = random_model(size)
    if not folder.exists():
        import torch
        from safetensors.torch import save_file

        from glassformer.families import build
        from glassformer.store import atomic_directory

        shape = SHAPES[size]
        torch.manual_seed(0)
        # Sines first, then cosines: the layout that Hugging Face's Marian computes.
        model = build(shape.preset, vocab_size=shape.vocab_size, layout="halves")
        loud = (".out.weight", ".down.weight")
        weights = {
            name: tensor.detach().contiguous() * (LOUDNESS if name.endswith(loud) else 1)
            for name, tensor in model.state_dict().items()
        }
        with atomic_directory(folder) as scratch:
            header = {"format_version": 1, "model": model.config.to_dict()}
            (scratch / "config.json").write_text(json.dumps(header), encoding="utf-8")
            save_file(weights, scratch / "model.safetensors")
    return folder


def read(directory: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """The configuration and the float32 weights of a MODEL, an encoder–decoder on tokens."""
    from safetensors.torch import load_file

    from glassformer.config import ModelConfig

    file = directory / "config.json"
    config = ModelConfig.from_dict(json.loads(file.read_text(encoding="utf-8"))["model"], str(file))
    weights = load_file(directory / "model.safetensors")
    return config, {name: weight.float().numpy() for name, weight in weights.items()}


def ctranslate2_model(directory: Path, precision: str) -> Path:
    """Where a MODEL lies for CTranslate2, in a precision of its own; ``write_ctranslate2_model`` writes it."""
    from glassformer.runtime.cache import origin

    return FOLDER / f"ctranslate2-{precision}-{origin(directory)}"


def write_ctranslate2_model(directory: Path, precision: str) -> Path:
    """Converts a MODEL of the family ``transformer`` for CTranslate2; its vocabulary is the ids, written in digits.

    What CTranslate2 knows and does in its own converters for Marian and Bart: fused projections, √d before the
    embeddings, a table of positions, pre- or post-norm.
    """
    folder = ctranslate2_model(directory, precision)
    if folder.exists():
        return folder
    specs = importlib.import_module("ctranslate2.specs")
    common = importlib.import_module("ctranslate2.specs.common_spec")
    import numpy as np
    import torch

    from glassformer.nn.position import sinusoids
    from glassformer.store import atomic_directory

    config, weights = read(directory)
    first = config.encoder.blocks[0]
    assert config.tie and not config.head.bias
    pre = first.order == "pre"
    spec = specs.TransformerSpec.from_config(
        (len(config.encoder.blocks), len(config.decoder.blocks)),
        first.mixer.n_heads,
        pre_norm=pre,
        activation=common.Activation.RELU,
    )

    def linear(to: Any, name: str, *parts: str) -> None:
        names = [f"{name}.{part}" for part in parts] or [name]
        to.weight = np.concatenate([weights[f"{each}.weight"] for each in names])
        to.bias = np.concatenate([weights[f"{each}.bias"] for each in names])

    def norm(to: Any, name: str) -> None:
        to.gamma, to.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    for name, stack, to in (
        ("encoder", config.encoder, spec.encoder),
        ("decoder", config.decoder, spec.decoder),
    ):
        position = stack.position
        places = torch.arange(position.first, position.first + position.max_len)
        table = sinusoids(places, config.d_model, base=position.base, layout=position.layout)
        to.position_encodings.encodings = table.numpy()
        to.scale_embeddings = math.sqrt(config.d_model) if config.embed.scale else 1.0
        embeddings = to.embeddings[0] if isinstance(to.embeddings, list) else to.embeddings
        embeddings.weight = weights["embed.weight"]
        if pre:
            norm(to.layer_norm, f"{name}.final_norm")
        for i, layer in enumerate(to.layer):
            ours = f"{name}.layers.{i}"
            linear(layer.self_attention.linear[0], f"{ours}.mixer", "query", "key", "value")
            linear(layer.self_attention.linear[1], f"{ours}.mixer.out")
            norm(layer.self_attention.layer_norm, f"{ours}.mixer_residual.norm")
            if name == "decoder":
                linear(layer.attention.linear[0], f"{ours}.cross", "query")
                linear(layer.attention.linear[1], f"{ours}.cross", "key", "value")
                linear(layer.attention.linear[2], f"{ours}.cross.out")
                norm(layer.attention.layer_norm, f"{ours}.cross_residual.norm")
            linear(layer.ffn.linear_0, f"{ours}.ffn.up")
            linear(layer.ffn.linear_1, f"{ours}.ffn.down")
            norm(layer.ffn.layer_norm, f"{ours}.ffn_residual.norm")
    spec.decoder.projection.weight = weights["embed.weight"]
    vocabulary = [str(index) for index in range(config.embed.vocab_size)]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.bos_token = spec.config.decoder_start_token = "1"
    spec.config.eos_token, spec.config.unk_token = "2", "3"
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    with atomic_directory(folder) as scratch:
        spec.save(str(scratch))
    return folder


def marian(directory: Path) -> Any:
    """A post-norm MODEL with positions in halves as Hugging Face's Marian, in eval mode, float32."""
    import torch

    transformers = importlib.import_module("transformers")
    config, weights = read(directory)
    first = config.encoder.blocks[0]
    assert first.order == "post" and config.encoder.position.layout == "halves"
    model = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=config.embed.vocab_size,
            decoder_vocab_size=config.embed.vocab_size,
            d_model=config.d_model,
            encoder_layers=len(config.encoder.blocks),
            decoder_layers=len(config.decoder.blocks),
            encoder_attention_heads=first.mixer.n_heads,
            decoder_attention_heads=first.mixer.n_heads,
            encoder_ffn_dim=len(weights["encoder.layers.0.ffn.up.weight"]),
            decoder_ffn_dim=len(weights["decoder.layers.0.ffn.up.weight"]),
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=512,
            pad_token_id=0,
            decoder_start_token_id=1,
            eos_token_id=2,
            bos_token_id=None,
            forced_eos_token_id=None,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
        )
    ).eval()
    theirs = {
        ".mixer.query.": ".self_attn.q_proj.",
        ".mixer.key.": ".self_attn.k_proj.",
        ".mixer.value.": ".self_attn.v_proj.",
        ".mixer.out.": ".self_attn.out_proj.",
        ".mixer_residual.norm.": ".self_attn_layer_norm.",
        ".cross.query.": ".encoder_attn.q_proj.",
        ".cross.key.": ".encoder_attn.k_proj.",
        ".cross.value.": ".encoder_attn.v_proj.",
        ".cross.out.": ".encoder_attn.out_proj.",
        ".cross_residual.norm.": ".encoder_attn_layer_norm.",
        ".ffn.up.": ".fc1.",
        ".ffn.down.": ".fc2.",
        ".ffn_residual.norm.": ".final_layer_norm.",
    }
    renamed = {}
    for name, weight in weights.items():
        for ours, other in theirs.items():
            name = name.replace(ours, other)
        renamed["model.shared.weight" if name == "embed.weight" else f"model.{name}"] = torch.from_numpy(weight)
    missing, unexpected = model.load_state_dict(renamed, strict=False)
    derived = ("embed_positions", "embed_tokens", "lm_head", "final_logits")
    assert not unexpected and all(any(part in name for part in derived) for name in missing), (missing, unexpected)
    model.tie_weights()
    model.generation_config.forced_eos_token_id = None
    return model

"""BART: the original Transformer with learned positions and a norm of the embeddings, trained to undo noise.

Differs from the original in those, in GELU, and in embeddings that are not scaled by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassformer.config import (
    Activation,
    AnyHeadConfig,
    AttentionConfig,
    BlockConfig,
    ClassifierConfig,
    EmbedConfig,
    HeadConfig,
    InitConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    MLPConfig,
    ModelConfig,
    Positive,
    SpanConfig,
    StackConfig,
)
from glassformer.errors import UserError
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys, hf_activation, hf_labels
from glassformer.families.same import refuse_difference
from glassformer.weights import Rule, Squeeze, Tie, ignore

FIRST_ROW = 2
"""The first two rows of the position table are stored and never read."""
_LM = HeadConfig()


def bart(
    *,
    d_model: int,
    n_heads: int,
    d_ff: int,
    layers: Positive,
    decoder_layers: Positive | None = None,
    decoder_heads: int | None = None,
    decoder_d_ff: int | None = None,
    vocab_size: int = 50265,
    max_len: int = 1024,
    activation: Activation = "gelu",
    scale: bool = False,
    dropout: float = 0.1,
    std: float = 0.02,
    head: AnyHeadConfig | None = _LM,
    tie: bool = True,
) -> ModelConfig:
    """Spells out a BART.

    Args:
        layers: Of the encoder, and of the decoder unless ``decoder_layers`` says otherwise; likewise for the others.
        scale: Multiply embeddings by √d_model.
        std: Deviation of fresh weights.
    """
    norm, positions = LayerNormConfig(), LearnedPositionConfig(max_len=max_len, first=FIRST_ROW)
    reader = _block(n_heads, d_ff, activation, dropout, decoder=False)
    writer = _block(decoder_heads or n_heads, decoder_d_ff or d_ff, activation, dropout, decoder=True)
    around: dict[str, Any] = dict(position=positions, input_norm=norm, dropout=dropout)
    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size, scale=scale),
        encoder=StackConfig(blocks=(reader,) * layers, **around),
        decoder=StackConfig(blocks=(writer,) * (decoder_layers or layers), **around),
        head=head,
        tie=tie,
        init=InitConfig(type="normal", std=std),
    )


def _block(n_heads: int, d_ff: int, activation: Activation, dropout: float, *, decoder: bool) -> BlockConfig:
    return BlockConfig(
        mixer=AttentionConfig(n_heads=n_heads, causal=decoder),
        cross=AttentionConfig(n_heads=n_heads) if decoder else None,
        ffn=MLPConfig(d_ff=d_ff, activation=activation),
        norm=LayerNormConfig(),
        order="post",
        dropout=dropout,
    )


_HEADS = {
    "BartForConditionalGeneration": "lm",
    "BartModel": None,
    "BartForSequenceClassification": "classifier",
    "BartForQuestionAnswering": "span",
}


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """Our configuration of a ``BartConfig``."""
    keys = Keys(data)
    labels, dropout = keys.labels(), keys.take("classifier_dropout", "classif_dropout", default=0.0)
    heads: dict[str | None, AnyHeadConfig | None] = {
        None: None,
        # Ours alone writes this key, for a model that was trained without; theirs reads an absent bias as zeros.
        "lm": HeadConfig(bias=keys.take("final_logits_bias", default=True)),
        "classifier": ClassifierConfig(labels=labels, pool="last", hidden="tanh", dropout=dropout),
        "span": SpanConfig(),
    }
    for name in ("normalize_before", "add_final_layer_norm", "add_bias_logits", "static_position_embeddings"):
        keys.only(name, False)
    keys.only("normalize_embedding", True)
    config = bart(
        max_len=keys.take("max_position_embeddings", default=1024),
        vocab_size=keys.take("vocab_size", default=50265),
        scale=keys.take("scale_embedding", default=False),
        head=heads[keys.architecture(_HEADS)],
        tie=keys.take("tie_word_embeddings", default=True),
        **sizes(keys),
    )
    keys.done()
    return config


def sizes(keys: Keys) -> dict[str, Any]:
    """Takes what BART's configuration and Marian's have in common, as arguments of ``configure``."""
    keys.only("is_encoder_decoder", True)
    keys.only("is_decoder", False)
    said_again = ("num_hidden_layers", "hidden_size", "num_attention_heads", "extra_pos_embeddings")
    training = ("attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
    for name in said_again + training:
        keys.take(name, default=None)
    return dict(
        d_model=keys.take("d_model", default=1024),
        n_heads=keys.take("encoder_attention_heads", default=16),
        decoder_heads=keys.take("decoder_attention_heads", default=16),
        d_ff=keys.take("encoder_ffn_dim", default=4096),
        decoder_d_ff=keys.take("decoder_ffn_dim", default=4096),
        layers=keys.take("encoder_layers", default=12),
        decoder_layers=keys.take("decoder_layers", default=12),
        activation=keys.activation("activation_function", default="gelu"),
        dropout=keys.take("dropout", default=0.1),
        std=keys.take("init_std", default=0.02),
    )


def hf_sizes(config: ModelConfig, form: str) -> dict[str, Any]:
    """What BART's configuration and Marian's have in common, in Hugging Face's words."""
    made: dict[str, Any] = dict(
        is_encoder_decoder=True,
        d_model=config.d_model,
        scale_embedding=isinstance(config.embed, EmbedConfig) and config.embed.scale,
        tie_word_embeddings=config.tie,
        init_std=config.init.std,
    )
    for name, stack in config.stacks:
        if not stack.blocks or not isinstance(ffn := stack.blocks[0].mlp, MLPConfig) or stack.position is None:
            raise UserError(f"{form} cannot represent this model: the {name} has no plain feed-forward or no positions")
        made |= {
            f"{name}_layers": len(stack.blocks),
            f"{name}_attention_heads": stack.blocks[0].attention.n_heads,
            f"{name}_ffn_dim": ffn.d_ff,
            "activation_function": hf_activation(ffn.activation),
            "dropout": stack.blocks[0].dropout,
            "max_position_embeddings": stack.position.max_len,
        }
    return made


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The ``BartConfig`` that ``from_hf`` reads as this configuration."""
    head = config.head
    architecture = next(
        (name for name, kind in _HEADS.items() if kind == (None if head is None else head.type)), "BartModel"
    )
    data = {
        "architectures": [architecture],
        "model_type": "bart",
        "vocab_size": config.target_vocab_size,
        **hf_sizes(config, "BART"),
        **({"final_logits_bias": False} if isinstance(head, HeadConfig) and not head.bias else {}),
        **(hf_labels(head.labels) if isinstance(head, ClassifierConfig) else {}),
        **({"classifier_dropout": head.dropout} if isinstance(head, ClassifierConfig) else {}),
    }
    refuse_difference(config, from_hf(data), "BART")
    return data


def rules(config: ModelConfig) -> list[Rule]:
    """Hugging Face's names."""
    table = [Rule("embed.weight", "model.shared.weight"), *stack_rules()]
    table += [Rule("embed.weight", f"model.{stack}.embed_tokens.weight", Tie()) for stack in ("encoder", "decoder")]
    for stack in ("encoder", "decoder"):
        table.append(Rule(f"{stack}.position.weight", f"model.{stack}.embed_positions.weight"))
        table += _both(f"{stack}.input_norm", f"model.{stack}.layernorm_embedding")
    if isinstance(config.head, HeadConfig):
        table += output_rules(config, "embed")
    elif isinstance(config.head, ClassifierConfig):
        table += _both("head.dense", "classification_head.dense")
        table += _both("head.output", "classification_head.out_proj")
    elif config.head is not None:
        table += _both("head.output", "qa_outputs")
    return [*table, ignore("model.encoder.version", "model.decoder.version")]


def output_rules(config: ModelConfig, embed: str) -> list[Rule]:
    """The output layer, tied to the embedding of that name, and its bias."""
    tied = Rule(f"{embed}.weight", "lm_head.weight", Tie())
    bias = Rule("head.bias", "final_logits_bias", Squeeze())
    return [tied if config.tie else Rule("head.weight", "lm_head.weight"), bias]


def stack_rules() -> list[Rule]:
    """The blocks of both stacks, as BART and Marian name them."""
    table = []
    attention = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    for stack in ("encoder", "decoder"):
        mixers = [("mixer", "self_attn")] + [("cross", "encoder_attn")] * (stack == "decoder")
        ours, theirs = f"{stack}.layers.*", f"model.{stack}.layers.*"
        for mixer, name in mixers:
            for part, projection in attention.items():
                table += _both(f"{ours}.{mixer}.{part}", f"{theirs}.{name}.{projection}")
            table += _both(f"{ours}.{mixer}_residual.norm", f"{theirs}.{name}_layer_norm")
        table += _both(f"{ours}.ffn.up", f"{theirs}.fc1")
        table += _both(f"{ours}.ffn.down", f"{theirs}.fc2")
        table += _both(f"{ours}.ffn_residual.norm", f"{theirs}.final_layer_norm")
    return table


def _both(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.{kind}", f"{theirs}.{kind}") for kind in ("weight", "bias")]


PAPER = "Lewis et al. 2020, arXiv:1910.13461"
_SIZES = "fairseq, examples/bart/README.md"

FAMILY = Family(
    name="bart",
    paper=PAPER,
    kind="encoder-decoder",
    configure=bart,
    presets={
        "bart-tiny": Preset(
            dict(d_model=32, n_heads=4, d_ff=64, layers=2, vocab_size=64, max_len=64), "ours, for tests"
        ),
        "bart-base": Preset(
            dict(d_model=768, n_heads=12, d_ff=3072, layers=6), f"{PAPER}, section 4; {_SIZES}, bart.base, 140M"
        ),
        "bart-large": Preset(
            dict(d_model=1024, n_heads=16, d_ff=4096, layers=12), f"{PAPER}, section 5; {_SIZES}, bart.large, 400M"
        ),
    },
    hf_types=("bart",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="model.",
)

"""T5: relative positions in buckets, RMS norms, no biases; 1.1 gates its feed-forward part and unties its output.

Differs from the original Transformer in those, in scores that are not divided by √d_head, and in embeddings that are
not scaled; where input and output share a matrix (1.0), hidden states are divided by √d_model before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from glassformer.config import (
    Activation,
    AttentionConfig,
    BlockConfig,
    EmbedConfig,
    GatedMLPConfig,
    HeadConfig,
    InitConfig,
    MLPConfig,
    ModelConfig,
    Positive,
    RMSNormConfig,
    StackConfig,
    T5BucketsConfig,
)
from glassformer.errors import UserError
from glassformer.families.family import Family, Preset
from glassformer.families.keys import ACTIVATIONS, Keys, hf_activation
from glassformer.families.same import refuse_difference
from glassformer.weights import Rule, Tie, ignore


def t5(
    *,
    d_model: int,
    n_heads: int,
    d_ff: int,
    layers: Positive,
    decoder_layers: Positive | None = None,
    vocab_size: int = 32128,
    d_head: int = 64,
    gated: bool = False,
    activation: Activation = "relu",
    tie: bool = True,
    scaled: bool | None = None,
    buckets: int = 32,
    max_distance: int = 128,
    eps: float = 1e-6,
    dropout: float = 0.1,
    head: bool = True,
) -> ModelConfig:
    """Spells out a T5.

    Args:
        layers: Of the encoder, and of the decoder unless ``decoder_layers`` says otherwise.
        scaled: Divide the last hidden states by √d_model; by default where the output is tied.
        head: ``False`` leaves the output layer out.
    """
    norm = RMSNormConfig(eps=eps)
    ffn = (GatedMLPConfig if gated else MLPConfig)(d_ff=d_ff, activation=activation, bias=False)
    attention = AttentionConfig(n_heads=n_heads, d_head=d_head, bias=False, scale=1.0)
    causal = AttentionConfig(n_heads=n_heads, d_head=d_head, bias=False, scale=1.0, causal=True)
    reader = BlockConfig(mixer=attention, ffn=ffn, norm=norm, order="pre", dropout=dropout)
    writer = BlockConfig(mixer=causal, cross=attention, ffn=ffn, norm=norm, order="pre", dropout=dropout)

    def stack(block: BlockConfig, count: int, bidirectional: bool) -> StackConfig:
        bias = T5BucketsConfig(buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
        return StackConfig(bias=bias, blocks=(block,) * count, final_norm=norm, dropout=dropout)

    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size, scale=False),
        encoder=stack(reader, layers, True),
        decoder=stack(writer, decoder_layers or layers, False),
        head=HeadConfig(scale=tie if scaled is None else scaled) if head else None,
        tie=tie,
        init=InitConfig(type="fan-in"),
    )


_ARCHITECTURES = {"T5ForConditionalGeneration": True, "T5Model": False}
"""Whether there is an output layer."""


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """Our configuration of a ``T5Config``."""
    keys = Keys(data)
    keys.only("is_encoder_decoder", True)
    keys.only("is_decoder", False)
    for said_again_or_training in ("dense_act_fn", "is_gated_act", "classifier_dropout", "n_positions"):
        keys.take(said_again_or_training, default=None)
    name = keys.take("feed_forward_proj", default="relu")
    gate, _, activation = name.rpartition("-")
    # The library takes the tanh form for this name alone, and the exact one for an ungated "gelu".
    activation = "gelu_new" if name == "gated-gelu" else activation
    if gate not in ("", "gated") or activation not in ACTIVATIONS:
        raise UserError(f"config.json: feed_forward_proj {name!r} cannot be represented; expected relu or gated-gelu")
    tie = keys.take("tie_word_embeddings", default=True)
    config = t5(
        d_model=keys.take("d_model", default=512),
        n_heads=keys.take("num_heads", default=8),
        d_ff=keys.take("d_ff", default=2048),
        layers=keys.take("num_layers", default=6),
        decoder_layers=keys.take("num_decoder_layers", default=None),
        vocab_size=keys.take("vocab_size", default=32128),
        d_head=keys.take("d_kv", default=64),
        gated=bool(gate),
        activation=cast(Activation, ACTIVATIONS[activation]),
        tie=tie,
        scaled=keys.take("scale_decoder_outputs", default=tie),
        buckets=keys.take("relative_attention_num_buckets", default=32),
        max_distance=keys.take("relative_attention_max_distance", default=128),
        eps=keys.take("layer_norm_epsilon", default=1e-6),
        dropout=keys.take("dropout_rate", default=0.1),
        head=keys.architecture(_ARCHITECTURES),
    )
    keys.done()
    return config


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The ``T5Config`` that ``from_hf`` reads as this configuration."""
    first = config.encoder.blocks[0] if config.encoder and config.encoder.blocks else None
    bias = config.encoder.bias if config.encoder else None
    if first is None or config.decoder is None or first.mlp is None or not isinstance(bias, T5BucketsConfig):
        raise UserError("T5 cannot represent this model: it needs two stacks with T5's buckets, and feed-forward parts")
    gated = isinstance(first.mlp, GatedMLPConfig)
    name = hf_activation(first.mlp.activation)
    scaled = {"scale_decoder_outputs": config.head.scale} if isinstance(config.head, HeadConfig) else {}
    data = {
        "architectures": ["T5Model" if config.head is None else "T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": config.target_vocab_size,
        "d_model": config.d_model,
        "d_kv": first.attention.head_size(config.d_model),
        "d_ff": first.mlp.d_ff,
        "num_heads": first.attention.n_heads,
        "num_layers": len(config.encoder.blocks) if config.encoder else 0,
        "num_decoder_layers": len(config.decoder.blocks),
        "relative_attention_num_buckets": bias.buckets,
        "relative_attention_max_distance": bias.max_distance,
        "feed_forward_proj": {"gelu_new": "gated-gelu"}.get(name, f"gated-{name}") if gated else name,
        "layer_norm_epsilon": first.norm.eps,
        "dropout_rate": first.dropout,
        "tie_word_embeddings": config.tie,
    }
    if scaled.get("scale_decoder_outputs", config.tie) != config.tie:  # else tie_word_embeddings says both
        data |= scaled
    refuse_difference(config, from_hf(data), "T5")
    return data


def rules(config: ModelConfig) -> list[Rule]:
    """Hugging Face's names: sub-layers by number, and the buckets in the first block of each stack."""
    table = [Rule("embed.weight", "shared.weight")]
    table += [Rule("embed.weight", f"{stack}.embed_tokens.weight", Tie()) for stack in ("encoder", "decoder")]
    if config.head is not None:
        table.append(
            Rule("embed.weight", "lm_head.weight", Tie()) if config.tie else Rule("head.weight", "lm_head.weight")
        )
    stacks = dict(config.stacks)
    for stack in ("encoder", "decoder"):
        mixers = [("mixer", "SelfAttention")] + [("cross", "EncDecAttention")] * (stack == "decoder")
        ours, theirs = f"{stack}.layers.*", f"{stack}.block.*.layer"
        attention = {"query": "q", "key": "k", "value": "v", "out": "o"}
        for number, (mixer, name) in enumerate(mixers):
            table += [
                Rule(f"{ours}.{mixer}.{part}.weight", f"{theirs}.{number}.{name}.{letter}.weight")
                for part, letter in attention.items()
            ]
            table.append(Rule(f"{ours}.{mixer}_residual.norm.weight", f"{theirs}.{number}.layer_norm.weight"))
        gated = isinstance(stacks[stack].blocks[0].mlp, GatedMLPConfig)
        parts = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
        last = f"{theirs}.{len(mixers)}"
        table += [
            Rule(f"{ours}.ffn.{part}.weight", f"{last}.DenseReluDense.{name}.weight") for part, name in parts.items()
        ]
        buckets = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        table += [
            Rule(f"{ours}.ffn_residual.norm.weight", f"{last}.layer_norm.weight"),
            Rule(f"{stack}.bias.weight", buckets),
            Rule(f"{stack}.final_norm.weight", f"{stack}.final_layer_norm.weight"),
        ]
    # Early files hold a second table for cross-attention that the model never reads.
    return [*table, ignore("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight")]


PAPER = "Raffel et al. 2020, arXiv:1910.10683"
_1_1 = "Shazeer 2020, arXiv:2002.05202; google-research/text-to-text-transfer-transformer, released_checkpoints.md, 1.1"

FAMILY = Family(
    name="t5",
    paper=PAPER,
    kind="encoder-decoder",
    configure=t5,
    presets={
        "t5-tiny": Preset(
            dict(d_model=32, n_heads=4, d_ff=64, layers=2, vocab_size=64, d_head=8, buckets=8, max_distance=20),
            "ours, for tests",
        ),
        "t5-small": Preset(dict(d_model=512, n_heads=8, d_ff=2048, layers=6), f"{PAPER}, section 3.7, Small"),
        "t5-base": Preset(dict(d_model=768, n_heads=12, d_ff=3072, layers=12), f"{PAPER}, section 3.1.1, Base"),
        "t5-large": Preset(dict(d_model=1024, n_heads=16, d_ff=4096, layers=24), f"{PAPER}, section 3.7, Large"),
        "t5-v1_1-base": Preset(
            dict(d_model=768, n_heads=12, d_ff=2048, layers=12, gated=True, activation="gelu-tanh", tie=False), _1_1
        ),
    },
    hf_types=("t5",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
)

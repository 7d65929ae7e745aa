"""GPT-2: a decoder with learned positions, norms before each part, and one more at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.config import (
    Activation,
    AttentionConfig,
    BlockConfig,
    EmbedConfig,
    HeadConfig,
    InitConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    MLPConfig,
    ModelConfig,
    Positive,
    PositiveFloat,
    StackConfig,
)
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys, hf_activation, hf_architectures
from glassformer.weights import Rule, Split, Tie, Transpose, ignore

ARCHITECTURES = {"GPT2LMHeadModel": HeadConfig(), "GPT2Model": None}


def gpt2(
    *,
    d_model: Positive,
    n_heads: Positive,
    n_layers: Positive,
    vocab_size: Positive = 50257,
    max_len: Positive = 1024,
    d_ff: Positive | None = None,
    activation: Activation = "gelu-tanh",
    eps: PositiveFloat = 1e-5,
    dropout: float = 0.1,
    window: Positive | None = None,
    tie: bool = True,
) -> ModelConfig:
    """Spells out a decoder from the numbers of the paper's table 2.

    Args:
        d_ff: Width of the feed-forward part; four times ``d_model`` by default.
        window: Every second layer sees so many tokens only, as in GPT-3; by default all see everything.
    """
    norm = LayerNormConfig(eps=eps)

    def block(window: int | None) -> BlockConfig:
        mixer = AttentionConfig(n_heads=n_heads, causal=True, window=window)
        ffn = MLPConfig(d_ff=d_ff or 4 * d_model, activation=activation)
        return BlockConfig(mixer=mixer, ffn=ffn, norm=norm, order="pre", dropout=dropout)

    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size, scale=False),
        decoder=StackConfig(
            position=LearnedPositionConfig(max_len=max_len),
            blocks=tuple(block(window if index % 2 else None) for index in range(n_layers)),
            final_norm=norm,
            dropout=dropout,
        ),
        tie=tie,
        init=InitConfig(type="normal", residual=True),
    )


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    keys = Keys(data)
    keys.only("scale_attn_weights", True)
    keys.only("scale_attn_by_inverse_layer_idx", False)
    keys.only("add_cross_attention", False)
    keys.only("is_encoder_decoder", False)
    for harmless in ("reorder_and_upcast_attn", "attn_pdrop", "embd_pdrop", "n_ctx", "id2label", "label2id"):
        keys.take(harmless, default=None)
    for summary in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout"):
        keys.take(f"summary_{summary}", default=None)
    config = gpt2(
        d_model=keys.take("n_embd", "hidden_size", default=768),
        n_heads=keys.take("n_head", "num_attention_heads", default=12),
        n_layers=keys.take("n_layer", "num_hidden_layers", default=12),
        vocab_size=keys.take("vocab_size", default=50257),
        max_len=keys.take("n_positions", "max_position_embeddings", default=1024),
        d_ff=keys.take("n_inner", default=None),
        activation=keys.activation("activation_function", default="gelu_new"),
        eps=keys.take("layer_norm_epsilon", default=1e-5),
        dropout=keys.take("resid_pdrop", default=0.1),
        tie=keys.take("tie_word_embeddings", default=True),
    )
    head = keys.architecture(ARCHITECTURES)
    keys.done()
    return config.model_copy(update={"head": head})


def to_hf(config: ModelConfig) -> dict[str, Any]:
    assert config.decoder is not None
    block, position = config.decoder.blocks[0], config.decoder.position
    ffn = block.mlp
    return {
        "architectures": hf_architectures(ARCHITECTURES, config),
        "vocab_size": config.target_vocab_size,
        "n_positions": position.max_len if position else 1,
        "n_embd": config.d_model,
        "n_layer": len(config.decoder.blocks),
        "n_head": block.attention.n_heads,
        "n_inner": ffn.d_ff if ffn else None,
        "activation_function": hf_activation(ffn.activation) if ffn else None,
        "layer_norm_epsilon": block.norm.eps,
        "resid_pdrop": block.dropout,
        "embd_pdrop": config.decoder.dropout,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": config.tie,
    }


def rules(config: ModelConfig) -> Sequence[Rule]:
    """GPT-2's matrices are stored as ``Conv1D``: rows are inputs."""
    ours, theirs = "decoder.layers.*.", "transformer.h.*."
    projections = [f"{ours}mixer.{name}." for name in ("query", "key", "value")]
    parts = {"mixer.out": "attn.c_proj", "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}
    norms = {"mixer_residual.norm": "ln_1", "ffn_residual.norm": "ln_2"}
    together = Split((1, 1, 1))
    table = [
        Rule("embed.weight", "transformer.wte.weight"),
        Rule("decoder.position.weight", "transformer.wpe.weight"),
        Rule(tuple(f"{p}weight" for p in projections), f"{theirs}attn.c_attn.weight", (Transpose(), together)),
        Rule(tuple(f"{p}bias" for p in projections), f"{theirs}attn.c_attn.bias", together),
        ignore("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
        Rule("embed.weight", "lm_head.weight", Tie()) if config.tie else Rule("head.weight", "lm_head.weight"),
    ]
    for mine, its in parts.items():
        table += [Rule(f"{ours}{mine}.weight", f"{theirs}{its}.weight", Transpose())]
        table += [Rule(f"{ours}{mine}.bias", f"{theirs}{its}.bias")]
    for kind in ("weight", "bias"):
        table += [Rule(f"{ours}{mine}.{kind}", f"{theirs}{its}.{kind}") for mine, its in norms.items()]
        table += [Rule(f"decoder.final_norm.{kind}", f"transformer.ln_f.{kind}")]
    return table


PAPER = "Radford et al. 2019, Language Models are Unsupervised Multitask Learners"
_SIZES = f"{PAPER}, table 2; heads of 64 and the vocabulary as in its released code"

FAMILY = Family(
    name="gpt2",
    paper=PAPER,
    kind="decoder",
    configure=gpt2,
    presets={
        "gpt2-tiny": Preset(dict(d_model=32, n_heads=4, n_layers=2, vocab_size=64, max_len=64), "ours, for tests"),
        "gpt2": Preset(dict(d_model=768, n_heads=12, n_layers=12), _SIZES),
        "gpt2-medium": Preset(dict(d_model=1024, n_heads=16, n_layers=24), _SIZES),
        "gpt2-large": Preset(dict(d_model=1280, n_heads=20, n_layers=36), _SIZES),
        "gpt2-xl": Preset(dict(d_model=1600, n_heads=25, n_layers=48), _SIZES),
    },
    hf_types=("gpt2",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="transformer.",
)

"""LLaMA: norms of the root mean square, rotary positions, gated feed-forward parts, no biases, shared key heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.config import (
    Activation,
    AttentionConfig,
    BlockConfig,
    EmbedConfig,
    GatedMLPConfig,
    HeadConfig,
    InitConfig,
    ModelConfig,
    Positive,
    PositiveFloat,
    RMSNormConfig,
    RotaryConfig,
    ScalingConfig,
    StackConfig,
)
from glassformer.errors import UserError
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys, hf_activation
from glassformer.families.rope import rotary_keys, take_rotary
from glassformer.weights import Op, Permute, Rule, Tie, ignore


def llama(
    *,
    d_model: Positive,
    n_heads: Positive,
    d_ff: Positive,
    n_layers: Positive,
    n_kv_heads: Positive | None = None,
    d_head: Positive | None = None,
    vocab_size: Positive = 32000,
    max_len: Positive = 4096,
    base: PositiveFloat = 10000.0,
    scaling: ScalingConfig | None = None,
    rotary: RotaryConfig | None = None,
    activation: Activation = "silu",
    eps: PositiveFloat = 1e-5,
    qkv_bias: bool = False,
    out_bias: bool = False,
    ffn_bias: bool = False,
    windows: Sequence[Positive | None] | Positive | None = None,
    tie: bool = False,
    dropout: float = 0.0,
) -> ModelConfig:
    """Spells out a decoder from the numbers that its papers state.

    Args:
        n_kv_heads: Heads of keys and values; as many as of queries by default.
        max_len: The length that it was trained for; it limits nothing.
        base: Base of the rotary positions.
        scaling: How they are stretched beyond that length, for a model that was trained so.
        rotary: All of that at once, in place of the three.
        windows: How many of the last tokens each layer sees, or all layers; ``None`` is all of them.
    """
    norm = RMSNormConfig(eps=eps)
    rotary = rotary or RotaryConfig(base=base, scaling=scaling, max_len=max_len)
    each = windows if isinstance(windows, Sequence) else [windows] * n_layers

    def block(window: int | None) -> BlockConfig:
        mixer = AttentionConfig(
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            d_head=d_head,
            causal=True,
            window=window,
            bias=qkv_bias,
            out_bias=out_bias,
            rotary=rotary,
        )
        ffn = GatedMLPConfig(d_ff=d_ff, activation=activation, bias=ffn_bias)
        return BlockConfig(mixer=mixer, ffn=ffn, norm=norm, order="pre", dropout=dropout)

    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size, scale=False),
        decoder=StackConfig(blocks=tuple(map(block, each)), final_norm=norm, dropout=dropout),
        tie=tie,
        init=InitConfig(type="normal"),
    )


def take_numbers(keys: Keys, name: str) -> dict[str, Any]:
    """Takes the keys that LLaMA and its variants share, as arguments of `llama`; ``head`` is one more.

    Args:
        keys: Of the whole ``config.json``.
        name: What their classes' names begin with.
    """
    keys.only("is_encoder_decoder", False)
    for harmless in ("attention_dropout", "id2label", "label2id", "pretraining_tp"):
        keys.take(harmless, default=None)
    d_model, n_heads = keys.take("hidden_size"), keys.take("num_attention_heads")
    d_head = keys.take("head_dim", default=None)
    return dict(
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=_unless(keys.take("num_key_value_heads", default=n_heads), n_heads),
        d_head=d_head if d_head and d_head * n_heads != d_model else None,
        d_ff=keys.take("intermediate_size"),
        n_layers=keys.take("num_hidden_layers"),
        vocab_size=keys.take("vocab_size"),
        rotary=take_rotary(keys),
        activation=keys.activation("hidden_act", default="silu"),
        eps=keys.take("rms_norm_eps", default=1e-6),
        tie=keys.take("tie_word_embeddings", default=False),
        head=keys.architecture({f"{name}ForCausalLM": HeadConfig(), f"{name}Model": None}),
    )


def told_numbers(config: ModelConfig, name: str) -> dict[str, Any]:
    """The keys that `take_numbers` reads back.

    Raises:
        UserError: The model has no gated feed-forward parts or no rotary positions.
    """
    assert config.decoder is not None
    block = config.decoder.blocks[0]
    mixer, ffn = block.attention, block.mlp
    if not isinstance(ffn, GatedMLPConfig) or mixer.rotary is None:
        raise UserError("it has no gated feed-forward parts, or no rotary positions")
    return {
        "architectures": [f"{name}ForCausalLM" if config.head else f"{name}Model"],
        "vocab_size": config.target_vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": ffn.d_ff,
        "num_hidden_layers": len(config.decoder.blocks),
        "num_attention_heads": mixer.n_heads,
        "num_key_value_heads": mixer.n_kv_heads or mixer.n_heads,
        "head_dim": mixer.head_size(config.d_model),
        "hidden_act": hf_activation(ffn.activation),
        "rms_norm_eps": block.norm.eps,
        "tie_word_embeddings": config.tie,
        **rotary_keys(mixer.rotary),
    }


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    keys = Keys(data)
    numbers = take_numbers(keys, "Llama")
    head, bias = numbers.pop("head"), keys.take("attention_bias", default=False)
    config = llama(**numbers, qkv_bias=bias, out_bias=bias, ffn_bias=keys.take("mlp_bias", default=False))
    keys.done()
    return config.model_copy(update={"head": head})


def to_hf(config: ModelConfig) -> dict[str, Any]:
    told = told_numbers(config, "Llama")
    assert config.decoder is not None
    block = config.decoder.blocks[0]
    assert isinstance(block.mlp, GatedMLPConfig)
    return {**told, "attention_bias": block.attention.bias, "mlp_bias": block.mlp.bias}


def rules(config: ModelConfig) -> Sequence[Rule]:
    """Theirs pair a head's features by halves; where ours are interleaved, the rows are in another order."""
    assert config.decoder is not None
    mixer = config.decoder.blocks[0].attention
    ours, theirs = "decoder.layers.*.", "model.layers.*."
    parts = {f"mixer.{name}": f"self_attn.{name[0]}_proj" for name in ("query", "key", "value", "out")}
    parts |= {f"ffn.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    norms = {"mixer_residual": "input_layernorm", "ffn_residual": "post_attention_layernorm"}
    turned: dict[str, Op | tuple[Op, ...]] = {}
    if mixer.rotary and mixer.rotary.layout == "interleaved":
        half = mixer.head_size(config.d_model) // 2
        heads = {"mixer.query": mixer.n_heads, "mixer.key": mixer.n_kv_heads or mixer.n_heads}
        turned = {part: Permute((count, 2, half), (0, 2, 1)) for part, count in heads.items()}
    table = [
        Rule(f"{ours}{mine}.{kind}", f"{theirs}{its}.{kind}", turned.get(mine, ()))
        for mine, its in parts.items()
        for kind in ("weight", "bias")
    ]
    table += [Rule(f"{ours}{mine}.norm.weight", f"{theirs}{its}.weight") for mine, its in norms.items()]
    return [
        *table,
        Rule("embed.weight", "model.embed_tokens.weight"),
        Rule("decoder.final_norm.weight", "model.norm.weight"),
        Rule("embed.weight", "lm_head.weight", Tie()) if config.tie else Rule("head.weight", "lm_head.weight"),
        ignore("model.layers.*.self_attn.rotary_emb.inv_freq"),
    ]


def _unless(value: int, default: int) -> int | None:
    return None if value == default else value


PAPER = "Touvron et al. 2023, arXiv:2307.09288"
_SIZES = f"{PAPER}, table 1; layers, heads and d_ff as in the released params.json"

FAMILY = Family(
    name="llama",
    paper=PAPER,
    kind="decoder",
    configure=llama,
    presets={
        "llama-tiny": Preset(
            dict(d_model=32, n_heads=4, n_kv_heads=2, d_ff=56, n_layers=2, vocab_size=64, max_len=64), "ours, for tests"
        ),
        "llama2-7b": Preset(dict(d_model=4096, n_heads=32, d_ff=11008, n_layers=32), _SIZES),
        "llama2-13b": Preset(dict(d_model=5120, n_heads=40, d_ff=13824, n_layers=40), _SIZES),
        "llama2-70b": Preset(dict(d_model=8192, n_heads=64, n_kv_heads=8, d_ff=28672, n_layers=80), _SIZES),
    },
    hf_types=("llama",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="model.",
)

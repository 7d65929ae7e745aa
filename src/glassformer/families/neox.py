"""GPT-NeoX: a quarter of each head turns by its position, and both parts of a block read the same input."""

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
    MLPConfig,
    ModelConfig,
    Positive,
    PositiveFloat,
    RotaryConfig,
    StackConfig,
)
from glassformer.errors import UserError
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys, hf_activation, hf_architectures
from glassformer.families.rope import rotary_keys, take_rotary
from glassformer.weights import Permute, Rule, Split, Tie, ignore

ARCHITECTURES = {"GPTNeoXForCausalLM": HeadConfig(), "GPTNeoXModel": None}


def neox(
    *,
    d_model: Positive,
    n_heads: Positive,
    n_layers: Positive,
    d_ff: Positive | None = None,
    vocab_size: Positive = 50432,
    max_len: Positive = 2048,
    rotary: RotaryConfig | None = None,
    activation: Activation = "gelu",
    eps: PositiveFloat = 1e-5,
    bias: bool = True,
    parallel: bool = True,
    tie: bool = False,
    dropout: float = 0.0,
) -> ModelConfig:
    """Spells out a decoder from the numbers of the paper's section 2.

    Args:
        d_ff: Width of the feed-forward part; four times ``d_model`` by default.
        rotary: By default a quarter of each head's features turn.
        bias: Of attention's projections; the feed-forward part always has its own.
    """
    norm = LayerNormConfig(eps=eps)
    rotary = rotary or RotaryConfig(fraction=0.25, max_len=max_len)
    block = BlockConfig(
        mixer=AttentionConfig(n_heads=n_heads, causal=True, bias=bias, rotary=rotary),
        ffn=MLPConfig(d_ff=d_ff or 4 * d_model, activation=activation),
        norm=norm,
        order="pre",
        parallel=parallel,
        dropout=dropout,
    )
    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size, scale=False),
        decoder=StackConfig(blocks=(block,) * n_layers, final_norm=norm, dropout=dropout),
        tie=tie,
        init=InitConfig(type="normal"),
    )


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    keys = Keys(data)
    keys.only("is_encoder_decoder", False)
    keys.only("is_decoder", False, True)
    for harmless in ("attention_dropout", "classifier_dropout", "id2label", "label2id"):
        keys.take(harmless, default=None)
    config = neox(
        d_model=keys.take("hidden_size"),
        n_heads=keys.take("num_attention_heads"),
        n_layers=keys.take("num_hidden_layers"),
        d_ff=keys.take("intermediate_size"),
        vocab_size=keys.take("vocab_size"),
        rotary=take_rotary(keys, fraction=0.25),
        activation=keys.activation("hidden_act", default="gelu"),
        eps=keys.take("layer_norm_eps", default=1e-5),
        bias=keys.take("attention_bias", default=True),
        parallel=keys.take("use_parallel_residual", default=True),
        tie=keys.take("tie_word_embeddings", default=False),
        dropout=keys.take("hidden_dropout", default=0.0),
    )
    head = keys.architecture(ARCHITECTURES)
    keys.done()
    return config.model_copy(update={"head": head})


def to_hf(config: ModelConfig) -> dict[str, Any]:
    assert config.decoder is not None
    block = config.decoder.blocks[0]
    mixer, ffn = block.attention, block.mlp
    if not isinstance(ffn, MLPConfig) or mixer.rotary is None:
        raise UserError("it has gated feed-forward parts, or no rotary positions")
    share = {"rotary_pct": mixer.rotary.fraction, "rotary_emb_base": mixer.rotary.base}
    return {
        "architectures": hf_architectures(ARCHITECTURES, config),
        "vocab_size": config.target_vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": ffn.d_ff,
        "num_hidden_layers": len(config.decoder.blocks),
        "num_attention_heads": mixer.n_heads,
        "hidden_act": hf_activation(ffn.activation),
        "layer_norm_eps": block.norm.eps,
        "attention_bias": mixer.bias,
        "use_parallel_residual": block.parallel,
        "hidden_dropout": block.dropout,
        "tie_word_embeddings": config.tie,
        **rotary_keys(mixer.rotary),
        **share,
    }


def rules(config: ModelConfig) -> Sequence[Rule]:
    """Theirs keep query, key and value of each head together."""
    assert config.decoder is not None
    mixer = config.decoder.blocks[0].attention
    if mixer.rotary and mixer.rotary.layout != "halves":
        raise UserError("GPT-NeoX pairs rotary features by halves; this model's are interleaved")
    ours, theirs = "decoder.layers.*.", "gpt_neox.layers.*."
    apart = (Permute((mixer.n_heads, 3, mixer.head_size(config.d_model)), (1, 0, 2)), Split((1, 1, 1)))
    parts = {
        "mixer.out": "attention.dense",
        "ffn.up": "mlp.dense_h_to_4h",
        "ffn.down": "mlp.dense_4h_to_h",
        "mixer_residual.norm": "input_layernorm",
        "ffn_residual.norm": "post_attention_layernorm",
    }
    table = [
        Rule("embed.weight", "gpt_neox.embed_in.weight"),
        Rule("embed.weight", "embed_out.weight", Tie()) if config.tie else Rule("head.weight", "embed_out.weight"),
        ignore(*(f"{theirs}attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq"))),
    ]
    for kind in ("weight", "bias"):
        projections = tuple(f"{ours}mixer.{name}.{kind}" for name in ("query", "key", "value"))
        table += [Rule(projections, f"{theirs}attention.query_key_value.{kind}", apart)]
        table += [Rule(f"{ours}{mine}.{kind}", f"{theirs}{its}.{kind}") for mine, its in parts.items()]
        table += [Rule(f"decoder.final_norm.{kind}", f"gpt_neox.final_layer_norm.{kind}")]
    return table


PAPER = "Black et al. 2022, arXiv:2204.06745"

FAMILY = Family(
    name="neox",
    paper=PAPER,
    kind="decoder",
    configure=neox,
    presets={
        "neox-tiny": Preset(dict(d_model=32, n_heads=4, n_layers=2, vocab_size=64, max_len=64), "ours, for tests"),
        "neox-20b": Preset(
            dict(d_model=6144, n_heads=64, n_layers=44, activation="gelu-tanh"),
            f"{PAPER}, section 2.1 and table 1; vocabulary padded as in its released config.json",
        ),
        "pythia-160m": Preset(
            dict(d_model=768, n_heads=12, n_layers=12, vocab_size=50304),
            "Biderman et al. 2023, arXiv:2304.01373, table 1; vocabulary padded as in its released config.json",
        ),
    },
    hf_types=("gpt_neox",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="gpt_neox.",
)

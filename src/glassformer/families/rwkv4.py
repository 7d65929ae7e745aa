"""RWKV-4: a decoder without attention, whose time-mix and channel-mix each see the token before, and a mean of all.

Differs from GPT-2 in both parts of a block, in that it has no positions, and in a norm right after the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.config import (
    BlockConfig,
    ChannelMixConfig,
    EmbedConfig,
    HeadConfig,
    InitConfig,
    LayerNormConfig,
    MixerConfig,
    ModelConfig,
    Positive,
    PositiveFloat,
    RWKV4Config,
    StackConfig,
)
from glassformer.errors import UserError
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys, hf_architectures
from glassformer.weights import Rule, Squeeze, Tie, both

ARCHITECTURES = {"RwkvForCausalLM": HeadConfig(), "RwkvModel": None}


def rwkv4(
    *,
    d_model: Positive,
    n_layers: Positive,
    vocab_size: Positive = 50277,
    d_ff: Positive | None = None,
    d_attention: Positive | None = None,
    eps: PositiveFloat = 1e-5,
    dropout: float = 0.0,
    tie: bool = False,
) -> ModelConfig:
    """Spells out a decoder from the numbers of the paper's table 2.

    Args:
        d_ff: Width of the channel-mix; four times ``d_model`` by default.
        d_attention: Width of the time-mix; ``d_model`` by default.
    """
    mixer = RWKV4Config(d_attention=None if d_attention == d_model else d_attention)
    ffn = ChannelMixConfig(d_ff=d_ff or 4 * d_model)
    return rwkv_decoder(d_model, [mixer] * n_layers, ffn, vocab_size, eps, dropout, tie)


def rwkv_decoder(
    d_model: int,
    mixers: Sequence[MixerConfig],
    ffn: ChannelMixConfig,
    vocab_size: int,
    eps: float,
    dropout: float,
    tie: bool,
) -> ModelConfig:
    """What all versions of RWKV share: norms before each part, after the embedding and at the end."""
    norm = LayerNormConfig(eps=eps)
    blocks = tuple(BlockConfig(mixer=mixer, ffn=ffn, norm=norm, order="pre", dropout=dropout) for mixer in mixers)
    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size, scale=False),
        decoder=StackConfig(input_norm=norm, blocks=blocks, final_norm=norm),
        tie=tie,
        init=InitConfig(type="normal", residual=True),
    )


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    keys = Keys(data)
    # Halving hidden states keeps float16 from overflowing. The norms undo it, but for their ε, which weighs more beside
    # smaller numbers: ours are the logits without it, as in training. The length was that of a CUDA kernel.
    for harmless in ("rescale_every", "context_length"):
        keys.take(harmless, default=None)
    d_model = keys.take("hidden_size", default=4096)
    config = rwkv4(
        d_model=d_model,
        n_layers=keys.take("num_hidden_layers", default=32),
        vocab_size=keys.take("vocab_size", default=50277),
        d_ff=keys.take("intermediate_size", default=4 * d_model),
        d_attention=keys.take("attention_hidden_size", default=d_model),
        eps=keys.take("layer_norm_epsilon", default=1e-5),
        tie=keys.take("tie_word_embeddings", default=False),
    )
    assert config.decoder is not None
    # Its last norm is built without the ε of the others.
    decoder = config.decoder.model_copy(update={"final_norm": LayerNormConfig(eps=1e-5)})
    head = keys.architecture(ARCHITECTURES)
    keys.done()
    return config.model_copy(update={"head": head, "decoder": decoder})


def to_hf(config: ModelConfig) -> dict[str, Any]:
    assert config.decoder is not None
    block = config.decoder.blocks[0]
    if not isinstance(block.mixer, RWKV4Config) or not isinstance(block.ffn, ChannelMixConfig):
        ffn = block.ffn.type if block.ffn else "no feed-forward part"
        raise UserError(f"its blocks are {block.mixer.type} with {ffn}; RWKV-4's are rwkv4 with channel-mix")
    return {
        "architectures": hf_architectures(ARCHITECTURES, config),
        "vocab_size": config.target_vocab_size,
        "hidden_size": config.d_model,
        "attention_hidden_size": block.mixer.d_attention or config.d_model,
        "intermediate_size": block.ffn.d_ff,
        "num_hidden_layers": len(config.decoder.blocks),
        "layer_norm_epsilon": block.norm.eps,
        "rescale_every": 0,
        "tie_word_embeddings": config.tie,
    }


def rules(config: ModelConfig) -> Sequence[Rule]:
    """Shares of token shift are stored as (1, 1, D)."""
    ours, theirs = "decoder.layers.*.", "rwkv.blocks.*."
    mixer, ffn = (f"{theirs}attention", f"{theirs}feed_forward")
    matrices = {f"mixer.{name}": f"{mixer}.{name}" for name in ("receptance", "key", "value")}
    matrices |= {"mixer.out": f"{mixer}.output", "ffn.up": f"{ffn}.key", "ffn.down": f"{ffn}.value"}
    matrices |= {"ffn.gate": f"{ffn}.receptance"}
    mixes = {f"mixer.mix_{name}": f"{mixer}.time_mix_{name}" for name in ("receptance", "key", "value")}
    mixes |= {"ffn.mix_key": f"{ffn}.time_mix_key", "ffn.mix_gate": f"{ffn}.time_mix_receptance"}
    return [
        Rule("embed.weight", "rwkv.embeddings.weight"),
        *both("decoder.input_norm", "rwkv.blocks.0.pre_ln"),
        *both(f"{ours}mixer_residual.norm", f"{theirs}ln1"),
        *both(f"{ours}ffn_residual.norm", f"{theirs}ln2"),
        *both("decoder.final_norm", "rwkv.ln_out"),
        Rule(f"{ours}mixer.decay", f"{mixer}.time_decay"),
        Rule(f"{ours}mixer.first", f"{mixer}.time_first"),
        *(Rule(f"{ours}{mine}.weight", f"{its}.weight") for mine, its in matrices.items()),
        *(Rule(f"{ours}{mine}", its, Squeeze(2)) for mine, its in mixes.items()),
        Rule("embed.weight", "head.weight", Tie()) if config.tie else Rule("head.weight", "head.weight"),
    ]


PAPER = "Peng et al. 2023, RWKV: Reinventing RNNs for the Transformer Era (arXiv:2305.13048)"
_SIZES = f"{PAPER}, table 2; the vocabulary of GPT-NeoX as in its released weights"

FAMILY = Family(
    name="rwkv4",
    paper=PAPER,
    kind="decoder",
    configure=rwkv4,
    presets={
        "rwkv4-tiny": Preset(dict(d_model=32, n_layers=2, vocab_size=64), "ours, for tests"),
        "rwkv4-169m": Preset(dict(d_model=768, n_layers=12), _SIZES),
        "rwkv4-430m": Preset(dict(d_model=1024, n_layers=24), _SIZES),
        "rwkv4-1.5b": Preset(dict(d_model=2048, n_layers=24), _SIZES),
        "rwkv4-3b": Preset(dict(d_model=2560, n_layers=32), _SIZES),
        "rwkv4-7b": Preset(dict(d_model=4096, n_layers=32), _SIZES),
        "rwkv4-14b": Preset(dict(d_model=5120, n_layers=40), _SIZES),
    },
    hf_types=("rwkv",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="rwkv.",
)

"""RWKV-5 (Eagle): RWKV-4 with heads, each of which remembers a matrix of keys and values."""

from __future__ import annotations

from glassformer.config import ChannelMixConfig, ModelConfig, Positive, PositiveFloat, RWKV5Config
from glassformer.errors import UserError
from glassformer.families.family import Family, Preset
from glassformer.families.rwkv4 import rwkv_decoder


def rwkv5(
    *,
    d_model: Positive,
    n_layers: Positive,
    vocab_size: Positive = 65536,
    d_head: Positive = 64,
    d_ff: Positive | None = None,
    gate: bool = True,
    eps: PositiveFloat = 1e-5,
    head_eps: PositiveFloat = 64e-5,
    dropout: float = 0.0,
    tie: bool = False,
) -> ModelConfig:
    """Spells out a decoder from the numbers of the paper.

    Args:
        d_ff: Width of the channel-mix; 3.5 times ``d_model`` by default, in steps of 32.
        gate: Of the time-mix, which RWKV-5.2 has and 5.1 has not.
        head_eps: Of the heads' norm; the released code divides heads by 8 before a norm with 1e-5, which is the same.
    """
    if d_model % d_head:
        raise UserError(f"model: d_model {d_model} is not a multiple of d_head {d_head}; change one")
    mixer = RWKV5Config(n_heads=d_model // d_head, gate=gate, eps=head_eps)
    ffn = ChannelMixConfig(d_ff=d_ff or max(32, d_model * 7 // 2 // 32 * 32))
    return rwkv_decoder(d_model, [mixer] * n_layers, ffn, vocab_size, eps, dropout, tie)


PAPER = "Peng et al. 2024, Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence (arXiv:2404.05892)"
_SIZES = f"{PAPER}, its table of Eagle models"

FAMILY = Family(
    name="rwkv5",
    paper=PAPER,
    kind="decoder",
    configure=rwkv5,
    presets={
        "rwkv5-tiny": Preset(dict(d_model=32, n_layers=2, vocab_size=64, d_head=8), "ours, for tests"),
        "rwkv5-0.4b": Preset(dict(d_model=1024, n_layers=24), _SIZES),
        "rwkv5-1.5b": Preset(dict(d_model=2048, n_layers=24), _SIZES),
        "rwkv5-3b": Preset(dict(d_model=2560, n_layers=32), _SIZES),
        "rwkv5-7b": Preset(dict(d_model=4096, n_layers=32), _SIZES),
    },
)

"""RWKV-7 (Goose): RWKV-5 with a delta rule, and rates that every token chooses itself."""

from __future__ import annotations

from glassformer.config import ChannelMixConfig, ModelConfig, Positive, PositiveFloat, RWKV7Config
from glassformer.errors import UserError
from glassformer.families.family import Family, Preset
from glassformer.families.rwkv4 import rwkv_decoder


def rwkv7(
    *,
    d_model: Positive,
    n_layers: Positive,
    vocab_size: Positive = 65536,
    d_head: Positive = 64,
    d_ff: Positive | None = None,
    ranks: tuple[Positive, Positive, Positive, Positive] = (64, 64, 32, 128),
    eps: PositiveFloat = 1e-5,
    dropout: float = 0.0,
    tie: bool = False,
) -> ModelConfig:
    """Spells out a decoder from the numbers of the paper.

    Args:
        d_ff: Width of the channel-mix; four times ``d_model`` by default.
        ranks: Features through which a token chooses decay, rate, the first layer's values, and gate.
    """
    if d_model % d_head:
        raise UserError(f"model: d_model {d_model} is not a multiple of d_head {d_head}; change one")
    decay, rate, value, gate = ranks
    first = RWKV7Config(n_heads=d_model // d_head, eps=d_head * 1e-5, decay_rank=decay, rate_rank=rate, gate_rank=gate)
    mixers = [first, *[first.model_copy(update={"value_rank": value})] * (n_layers - 1)]
    ffn = ChannelMixConfig(d_ff=d_ff or 4 * d_model, gate=False)
    return rwkv_decoder(d_model, mixers, ffn, vocab_size, eps, dropout, tie)


PAPER = 'Peng et al. 2025, RWKV-7 "Goose" with Expressive Dynamic State Evolution (arXiv:2503.14456)'
_SIZES = f"{PAPER}, its table of released models"
_TINY = dict(d_model=32, n_layers=2, vocab_size=64, d_head=8, ranks=(8, 8, 8, 8))

FAMILY = Family(
    name="rwkv7",
    paper=PAPER,
    kind="decoder",
    configure=rwkv7,
    presets={
        "rwkv7-tiny": Preset(_TINY, "ours, for tests"),
        "rwkv7-0.1b": Preset(dict(d_model=768, n_layers=12), _SIZES),
        "rwkv7-0.4b": Preset(dict(d_model=1024, n_layers=24), _SIZES),
        "rwkv7-1.5b": Preset(dict(d_model=2048, n_layers=24, ranks=(96, 96, 64, 256)), _SIZES),
        "rwkv7-2.9b": Preset(dict(d_model=2560, n_layers=32, ranks=(96, 96, 64, 320)), _SIZES),
    },
)

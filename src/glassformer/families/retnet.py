"""RetNet: a decoder whose mixer is retention, attention that is a recurrence as well."""

from __future__ import annotations

import math

from glassformer.config import (
    Activation,
    BlockConfig,
    EmbedConfig,
    InitConfig,
    LayerNormConfig,
    MLPConfig,
    ModelConfig,
    Positive,
    PositiveFloat,
    RetentionConfig,
    StackConfig,
)
from glassformer.families.family import Family, Preset


def retnet(
    *,
    d_model: Positive,
    n_heads: Positive,
    n_layers: Positive,
    vocab_size: Positive = 50257,
    d_ff: Positive | None = None,
    d_value: Positive | None = None,
    fixed_decay: bool = True,
    activation: Activation = "gelu",
    eps: PositiveFloat = 1e-5,
    chunk: Positive = 128,
    tie: bool = True,
    dropout: float = 0.0,
) -> ModelConfig:
    """Spells out a decoder from the numbers of the paper's table 2.

    Args:
        d_ff: Width of the feed-forward part; twice ``d_model`` by default, since retention is wider than attention.
        d_value: Size of a head's values; twice that of its queries by default.
        fixed_decay: The heads forget 1/32 to 1/512 a token, evenly in the logarithm, whatever their number, as in the
            paper's experiments (section 3.1); otherwise as in its equation 8.
    """
    span = (math.log(1 / 512) - math.log(1 / 32)) / max(n_heads - 1, 1)
    forget = tuple(math.exp(math.log(1 / 32) + span * head) for head in range(n_heads)) if fixed_decay else None
    norm = LayerNormConfig(eps=eps)
    mixer = RetentionConfig(n_heads=n_heads, d_value=d_value, forget=forget, chunk=chunk)
    ffn = MLPConfig(d_ff=d_ff or 2 * d_model, activation=activation, bias=False)
    block = BlockConfig(mixer=mixer, ffn=ffn, norm=norm, order="pre", dropout=dropout)
    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size, scale=False),
        decoder=StackConfig(blocks=(block,) * n_layers, final_norm=norm, dropout=dropout),
        tie=tie,
        init=InitConfig(type="normal", residual=True),
    )


PAPER = "Sun et al. 2023, Retentive Network, arXiv:2307.08621"
_SIZES = f"{PAPER}, table 2, heads of 256 and 512 (section 3.1); it leaves the vocabulary open: GPT-2's, tied"

FAMILY = Family(
    name="retnet",
    paper=PAPER,
    kind="decoder",
    configure=retnet,
    presets={
        "retnet-tiny": Preset(dict(d_model=32, n_heads=4, n_layers=2, vocab_size=64), "ours, for tests"),
        "retnet-1.3b": Preset(dict(d_model=2048, n_heads=8, n_layers=24), _SIZES),
        "retnet-2.7b": Preset(dict(d_model=2560, n_heads=10, n_layers=32), _SIZES),
        "retnet-6.7b": Preset(dict(d_model=4096, n_heads=16, n_layers=32), _SIZES),
    },
)

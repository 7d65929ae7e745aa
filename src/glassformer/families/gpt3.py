"""GPT-3: differs from GPT-2 in every second layer's attention, which sees a band of the last tokens only."""

from __future__ import annotations

from glassformer.families.family import Family, Preset
from glassformer.families.gpt2 import gpt2

PAPER = "Brown et al. 2020, arXiv:2005.14165"

FAMILY = Family(
    name="gpt3",
    paper=PAPER,
    kind="decoder",
    configure=gpt2,
    presets={
        "gpt3-tiny": Preset(
            dict(d_model=32, n_heads=4, n_layers=4, vocab_size=64, max_len=64, window=8), "ours, for tests"
        ),
        "gpt3-175b": Preset(
            dict(d_model=12288, n_heads=96, n_layers=96, max_len=2048, window=128, dropout=0.0),
            f"{PAPER}, table 2.1 and section 2.1; the band's width is not published: 128 is that of the Sparse "
            "Transformer on text (Child et al. 2019, arXiv:1904.10509, section 7.2)",
        ),
    },
)

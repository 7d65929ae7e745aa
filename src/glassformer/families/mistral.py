"""Mistral: differs from LLaMA in a window of the last tokens, which is all that each layer sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassformer.config import ModelConfig
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys
from glassformer.families.llama import llama, rules, take_numbers, told_numbers


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    keys = Keys(data)
    numbers = take_numbers(keys, "Mistral")
    head = numbers.pop("head")
    config = llama(**numbers, windows=keys.take("sliding_window", default=None))
    keys.done()
    return config.model_copy(update={"head": head})


def to_hf(config: ModelConfig) -> dict[str, Any]:
    assert config.decoder is not None
    return {**told_numbers(config, "Mistral"), "sliding_window": config.decoder.blocks[0].attention.window}


PAPER = "Jiang et al. 2023, arXiv:2310.06825"

FAMILY = Family(
    name="mistral",
    paper=PAPER,
    kind="decoder",
    configure=llama,
    presets={
        "mistral-tiny": Preset(
            dict(d_model=32, n_heads=4, n_kv_heads=2, d_ff=56, n_layers=2, vocab_size=64, max_len=64, windows=8),
            "ours, for tests",
        ),
        "mistral-7b": Preset(
            dict(d_model=4096, n_heads=32, n_kv_heads=8, d_ff=14336, n_layers=32, max_len=32768, windows=4096),
            f"{PAPER}, table 1",
        ),
    },
    hf_types=("mistral",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="model.",
)

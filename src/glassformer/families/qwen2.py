"""Qwen2: differs from LLaMA in biases of queries, keys and values, and in a window of some layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassformer.config import ModelConfig
from glassformer.errors import UserError
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys
from glassformer.families.llama import llama, rules, take_numbers, told_numbers

_KINDS = {"full_attention": False, "sliding_attention": True}


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    keys = Keys(data)
    numbers = take_numbers(keys, "Qwen2")
    head, n_layers = numbers.pop("head"), numbers["n_layers"]
    window, first = keys.take("sliding_window", default=4096), keys.take("max_window_layers", default=28)
    some = keys.take("use_sliding_window", default=False) and data.get("sliding_window", 4096) is not None
    kinds = keys.take("layer_types", default=None)
    if kinds is None:
        kinds = ["sliding_attention" if some and index >= first else "full_attention" for index in range(n_layers)]
    if len(kinds) != n_layers or set(kinds) - set(_KINDS):
        raise UserError(f"config.json: layer_types {kinds} cannot be represented, only {n_layers} of {list(_KINDS)}")
    config = llama(**numbers, qkv_bias=True, windows=[window if some and _KINDS[kind] else None for kind in kinds])
    keys.done()
    return config.model_copy(update={"head": head})


def to_hf(config: ModelConfig) -> dict[str, Any]:
    assert config.decoder is not None
    windows = [block.attention.window for block in config.decoder.blocks]
    window = next(filter(None, windows), None)
    return {
        **told_numbers(config, "Qwen2"),
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": next((at for at, each in enumerate(windows) if each), len(windows)),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in windows],
    }


PAPER = "Yang et al. 2024, arXiv:2407.10671"

FAMILY = Family(
    name="qwen2",
    paper=PAPER,
    kind="decoder",
    configure=llama,
    presets={
        "qwen2-tiny": Preset(
            dict(d_model=32, n_heads=4, n_kv_heads=2, d_ff=56, n_layers=2, vocab_size=64, max_len=64, qkv_bias=True),
            "ours, for tests",
        ),
        "qwen2-0.5b": Preset(
            dict(
                d_model=896,
                n_heads=14,
                n_kv_heads=2,
                d_ff=4864,
                n_layers=24,
                vocab_size=151936,
                max_len=32768,
                base=1e6,
                eps=1e-6,
                qkv_bias=True,
                tie=True,
            ),
            f"{PAPER}, table 1; vocabulary padded as in its released config.json",
        ),
        "qwen2-7b": Preset(
            dict(
                d_model=3584,
                n_heads=28,
                n_kv_heads=4,
                d_ff=18944,
                n_layers=28,
                vocab_size=152064,
                max_len=32768,
                base=1e6,
                eps=1e-6,
                qkv_bias=True,
            ),
            f"{PAPER}, table 1; vocabulary padded as in its released config.json",
        ),
    },
    hf_types=("qwen2",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="model.",
)

"""How a Hugging Face ``config.json`` tells rotary positions, in releases before and after 5.0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from glassformer.config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RotaryConfig,
    ScalingConfig,
    YarnScaling,
)
from glassformer.errors import UserError
from glassformer.families.keys import Keys

_ORIGINAL = "original_max_position_embeddings"


def take_rotary(keys: Keys, fraction: float = 1.0) -> RotaryConfig:
    """Takes the keys of rotary positions.

    Args:
        keys: Of the whole ``config.json``.
        fraction: Share of a head's features that turn, where no key says it.

    Raises:
        UserError: A scaling that cannot be represented, or a key of it that is missing or unknown.
    """
    max_len = keys.take("max_position_embeddings")
    old, new = (keys.take(name, default={}) for name in ("rope_scaling", "rope_parameters"))
    inner = Keys({**old, **new})
    theta = keys.take("rope_theta", "rotary_emb_base", default=10000.0)
    share = keys.take("rotary_pct", "partial_rotary_factor", default=fraction)
    base, fraction = inner.take("rope_theta", default=theta), inner.take("partial_rotary_factor", default=share)
    scaling = _scaling(inner, max_len)
    inner.done()
    return RotaryConfig(base=base, fraction=fraction, scaling=scaling, max_len=max_len)


def _scaling(inner: Keys, max_len: int) -> ScalingConfig | None:
    kind = inner.take("rope_type", "type", default="default")
    if kind == "default":
        return None
    original = inner.take(_ORIGINAL, default=max_len)
    factor = inner.take("factor")
    if kind == "linear":
        return LinearScaling(factor=factor)
    if kind == "dynamic":
        return DynamicScaling(factor=factor, original_max_len=max_len)
    if kind == "llama3":
        low, high = inner.take("low_freq_factor"), inner.take("high_freq_factor")
        return Llama3Scaling(factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_len=original)
    if kind == "yarn":
        return YarnScaling(
            factor=factor,
            original_max_len=original,
            beta_fast=inner.take("beta_fast", default=32.0),
            beta_slow=inner.take("beta_slow", default=1.0),
            attention_factor=_attention_factor(inner, factor),
            truncate=inner.take("truncate", default=True),
        )
    raise UserError(
        f"config.json: rope_type {kind!r} cannot be represented, only default, linear, dynamic, llama3 and yarn"
    )


def _attention_factor(inner: Keys, factor: float) -> float | None:
    """What YaRN multiplies queries and keys with; DeepSeek's two keys are a ratio of two such factors."""
    given, scale, all_dim = (inner.take(key, default=None) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if given is None and scale and all_dim and factor > 1:
        over, under = (0.1 * each * math.log(factor) + 1.0 for each in (scale, all_dim))
        return float(over / under)
    return None if given is None else float(given)


def rotary_keys(rotary: RotaryConfig) -> dict[str, Any]:
    """The keys that `take_rotary` reads back, but for the share of features that turn.

    Raises:
        UserError: Dynamic scaling beyond another length than the model was made for.
    """
    scaling = rotary.scaling
    max_len = rotary.max_len or getattr(scaling, "original_max_len", 2048)
    keys = {"max_position_embeddings": max_len, "rope_theta": rotary.base}
    if scaling is None:
        return keys
    if isinstance(scaling, DynamicScaling):
        if scaling.original_max_len != max_len:
            raise UserError(f"dynamic scaling beyond {scaling.original_max_len} needs rotary.max_len to be the same")
        return {**keys, "rope_scaling": {"rope_type": "dynamic", "factor": scaling.factor}}
    return {**keys, "rope_scaling": _renamed(scaling.to_dict())}


def _renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    names = {"type": "rope_type", "original_max_len": _ORIGINAL}
    return {names.get(key, key): value for key, value in data.items() if value is not None}

"""Rotary positions, as CTranslate2 says them of every attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassformer.config import LinearScaling, ModelConfig, RotaryConfig
from glassformer.errors import UserError

LINEAR = 0
"""CTranslate2's number of the one scaling whose factors stand in its files."""


def rotary_options(rotary: RotaryConfig, head_size: int) -> dict[str, Any]:
    """What its specifications take.

    Raises:
        UserError: It has no such scaling.
    """
    whole = rotary.fraction == 1
    options: dict[str, Any] = {
        "rotary_dim": 0 if whole else int(rotary.fraction * head_size),
        "rotary_interleave": rotary.layout == "interleaved",
        "rotary_base": rotary.base,
    }
    if rotary.scaling is None:
        return options
    if not isinstance(rotary.scaling, LinearScaling):
        raise UserError(f"CTranslate2 cannot represent this model: rotary scaling {rotary.scaling.type}, only linear")
    from ctranslate2.specs.attention_spec import RotaryScalingType

    scaling = {"rotary_scaling_type": RotaryScalingType.Linear, "rotary_scaling_factor": rotary.scaling.factor}
    return options | scaling


def read_rotary(take: Callable[..., Any], name: str, head_size: int) -> RotaryConfig | None:
    """Those of one attention.

    Args:
        take: Gives a scalar of the file by its name, or None.
        name: Of the attention.
    """
    size = take(f"{name}/rotary_dim")
    if size is None:
        return None
    halves = not take(f"{name}/rotary_interleave", 1)
    factor, kind = take(f"{name}/rotary_scaling_factor"), take(f"{name}/rotary_scaling_type")
    if kind not in (None, -1, LINEAR):
        raise UserError(f"{name}/rotary_scaling_type {kind} cannot be represented, only {LINEAR}")
    return RotaryConfig(
        base=take(f"{name}/rotary_base", 10000.0),
        fraction=int(size) / head_size if size else 1.0,
        layout="halves" if halves else "interleaved",
        scaling=LinearScaling(factor=factor) if kind == LINEAR and factor else None,
    )


def without_lengths(config: ModelConfig) -> ModelConfig:
    """The same without the lengths that rotary positions were made for, which limit nothing, and which it loses."""
    stacks = {}
    for name, stack in config.stacks:
        blocks = []
        for block in stack.blocks:
            rotary = block.attention.rotary
            if rotary is not None and rotary.max_len is not None:
                plain = block.attention.model_copy(update={"rotary": rotary.model_copy(update={"max_len": None})})
                block = block.model_copy(update={"mixer": plain})
            blocks.append(block)
        stacks[name] = stack.model_copy(update={"blocks": tuple(blocks)})
    return config.model_copy(update=stacks)

"""Families of models, and their presets by name."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError, validate_call

from glassformer.config import ModelConfig, explain
from glassformer.errors import UserError
from glassformer.families import (
    bart,
    bert,
    bigbird,
    distilbert,
    gpt2,
    gpt3,
    llama,
    longformer,
    lstm,
    mamba,
    mamba2,
    marian,
    mistral,
    neox,
    qwen2,
    retnet,
    roberta,
    rwkv4,
    rwkv5,
    rwkv7,
    t5,
    transformer,
    vit,
)
from glassformer.families.family import Family, Preset
from glassformer.schema import MOST_BLOCKS

if TYPE_CHECKING:
    import torch

FAMILIES: tuple[Family, ...] = (
    transformer.FAMILY,
    t5.FAMILY,
    bart.FAMILY,
    marian.FAMILY,
    gpt2.FAMILY,
    gpt3.FAMILY,
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    neox.FAMILY,
    retnet.FAMILY,
    mamba.FAMILY,
    mamba2.FAMILY,
    bert.FAMILY,
    roberta.FAMILY,
    distilbert.FAMILY,
    longformer.FAMILY,
    bigbird.FAMILY,
    vit.FAMILY,
    rwkv4.FAMILY,
    rwkv5.FAMILY,
    rwkv7.FAMILY,
    lstm.FAMILY,
)


def presets() -> dict[str, tuple[Family, Preset]]:
    """Every preset by name, with the family it belongs to."""
    return {name: (family, preset) for family in FAMILIES for name, preset in family.presets.items()}


def family_of(hf_type: str) -> Family | None:
    """The family that reads a Hugging Face ``model_type``, or None."""
    return next((family for family in FAMILIES if hf_type in family.hf_types), None)


def configure(preset: str, **overrides: Any) -> ModelConfig:
    """The configuration of a preset, with some of its numbers replaced.

    Args:
        preset: A name that ``glassformer list`` prints.
        overrides: Arguments of the family's ``configure``, such as ``dropout=0.3`` or ``vocab_size=8000``.

    Raises:
        UserError: On an unknown preset or argument, with the nearest known one.
    """
    known = presets()
    if preset not in known:
        near = _near(preset, list(known)) or "; glassformer list names them all"
        raise UserError(f"unknown preset {preset!r}{near}")
    family, entry = known[preset]
    accepted = list(inspect.signature(family.configure).parameters)
    for key in overrides:
        if key not in accepted:
            raise UserError(f"model.{key}: unknown setting of preset {preset}{_near(key, accepted)}")
        if key.endswith("layers") and isinstance(overrides[key], int) and overrides[key] > MOST_BLOCKS:
            raise UserError(f"model.{key} {overrides[key]}: a stack holds at most {MOST_BLOCKS} blocks")
    try:
        return validate_call(family.configure)(**{**entry.arguments, **overrides})
    except ValidationError as error:
        raise UserError(explain(ModelConfig, error, f"model: preset {preset}")) from None


def build(model: str | ModelConfig, device: str | torch.device = "cpu", **overrides: Any) -> Any:
    """Builds a freshly initialised model, a torch module, from a preset's name or a configuration.

    Args:
        model: A preset, such as ``"transformer-base"``, or a whole configuration.
        device: Where its parameters live; ``"meta"`` holds shapes only and takes no memory.
        overrides: Numbers of the preset to replace.
    """
    from glassformer.models.build import build_model  # PyTorch, which presets do without

    return build_model(configure(model, **overrides) if isinstance(model, str) else model, device)


def _near(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""

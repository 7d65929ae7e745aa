"""A family of models: data, no code of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glassformer.config import ModelConfig


@dataclass(frozen=True)
class Preset:
    """One member of a family.

    Attributes:
        arguments: What the family's ``configure`` is called with.
        source: Where the numbers come from.
    """

    arguments: Mapping[str, Any]
    source: str


@dataclass(frozen=True)
class Family:
    """Models that differ in numbers only.

    Attributes:
        name: Short name.
        paper: Where the architecture was published.
        kind: ``encoder-decoder``, ``decoder`` or ``encoder``.
        configure: Spells out the whole configuration from the few numbers that a paper states.
        presets: Name → preset.
    """

    name: str
    paper: str
    kind: str
    configure: Callable[..., ModelConfig]
    presets: Mapping[str, Preset]

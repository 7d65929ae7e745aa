"""A family of models: data, no code of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.config import ModelConfig
from glassformer.weights import Rule


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
        presets: Name → preset; a tiny one is among them.
        hf_types: Values of ``model_type`` in a Hugging Face ``config.json`` that it reads; the first is written.
        from_hf: Our configuration of such a file's content; raises a UserError by name for what cannot be represented.
        to_hf: The content that ``from_hf`` reads back as the same configuration, ``architectures`` included.
        rules: The table of weights for a configuration, theirs being Hugging Face's names.
        prefix: What a model with a head puts before the names of the model without one, such as ``bert.``.
    """

    name: str
    paper: str
    kind: str
    configure: Callable[..., ModelConfig]
    presets: Mapping[str, Preset]
    hf_types: tuple[str, ...] = ()
    from_hf: Callable[[Mapping[str, Any]], ModelConfig] | None = None
    to_hf: Callable[[ModelConfig], dict[str, Any]] | None = None
    rules: Callable[[ModelConfig], Sequence[Rule]] | None = None
    prefix: str = ""

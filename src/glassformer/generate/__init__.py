"""Decoding: search, sampling and constraints over anything that satisfies the `Decodable` protocol.

Names are imported on first use: what is asked for (configs, constraints, processors) loads no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.generate.beam import search
    from glassformer.generate.config import Request, SamplingConfig, SearchConfig, check_compatible
    from glassformer.generate.constraints import Constraints
    from glassformer.generate.events import End, Event, Token, collect
    from glassformer.generate.hypothesis import Hypothesis, length_penalty, normalised_score
    from glassformer.generate.processors import (
        Allowed,
        BannedWords,
        MinP,
        NoRepeatNgram,
        Processor,
        RepetitionPenalty,
        Temperature,
        TopK,
        TopP,
        Typical,
    )
    from glassformer.generate.protocol import Decodable, DecodeState
    from glassformer.generate.speculative import Draft, DraftModel, PromptLookup, stream_speculative
    from glassformer.generate.streaming import generate, stream

_HOME = {
    "beam": ("search",),
    "config": ("Request", "SamplingConfig", "SearchConfig", "check_compatible"),
    "constraints": ("Constraints",),
    "events": ("End", "Event", "Token", "collect"),
    "hypothesis": ("Hypothesis", "length_penalty", "normalised_score"),
    "processors": (
        *("Allowed", "BannedWords", "MinP", "NoRepeatNgram", "Processor", "RepetitionPenalty", "Temperature"),
        *("TopK", "TopP", "Typical"),
    ),
    "protocol": ("DecodeState", "Decodable"),
    "speculative": ("Draft", "DraftModel", "PromptLookup", "stream_speculative"),
    "streaming": ("generate", "stream"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Allowed",
    "BannedWords",
    "Constraints",
    "Decodable",
    "DecodeState",
    "Draft",
    "DraftModel",
    "End",
    "Event",
    "Hypothesis",
    "MinP",
    "NoRepeatNgram",
    "Processor",
    "PromptLookup",
    "RepetitionPenalty",
    "Request",
    "SamplingConfig",
    "SearchConfig",
    "Temperature",
    "Token",
    "TopK",
    "TopP",
    "Typical",
    "check_compatible",
    "collect",
    "generate",
    "length_penalty",
    "normalised_score",
    "search",
    "stream",
    "stream_speculative",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE[name]}"), name)
    globals()[name] = value
    return value

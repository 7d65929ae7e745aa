"""Decoding: search, sampling and constraints over anything that satisfies the `Decodable` protocol."""

from glassformer.generate.constraints import Constraints
from glassformer.generate.engine import End, Event, Token, collect, generate, stream
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
from glassformer.generate.sampling import SamplingConfig, check_compatible
from glassformer.generate.search import SearchConfig, search
from glassformer.generate.speculative import Draft, DraftModel, PromptLookup, stream_speculative

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

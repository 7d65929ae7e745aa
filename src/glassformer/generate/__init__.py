"""Decoding: search over anything that satisfies the `Decodable` protocol."""

from glassformer.generate.search import (
    Decodable,
    DecodeState,
    Hypothesis,
    SearchConfig,
    length_penalty,
    normalised_score,
    search,
)

__all__ = [
    "Decodable",
    "DecodeState",
    "Hypothesis",
    "SearchConfig",
    "length_penalty",
    "normalised_score",
    "search",
]

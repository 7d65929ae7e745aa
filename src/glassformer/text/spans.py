"""Answers as spans of a passage: which pieces spell them, and which span two rows of logits point to."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassformer.text.pairs import encode_pair
from glassformer.text.words import piece_spans

if TYPE_CHECKING:
    from glassformer.text.tokenizer import Tokenizer

LONGEST = 30
"""Most pieces of an answer."""


class QuestionRow(NamedTuple):
    """A question and a passage in one row.

    Attributes:
        ids: With what stands around the two.
        types: The segment of each.
        cut: Whether the passage's or the question's end was left out.
        places: Where the passage's pieces stand in the row.
        spans: Where each of them begins and ends in the passage, in characters.
        asked: How many ids there are up to the question's last.
    """

    ids: list[int]
    types: list[int]
    cut: bool
    places: range
    spans: list[tuple[int, int]]
    asked: int

    def find(self, start: int, end: int) -> tuple[int, int] | None:
        """The places in the row of the first and the last piece that spell ``passage[start:end]``.

        None where they were cut off, or the tokenizer spells nothing of it.
        """
        starts, ends = [a for a, _ in self.spans], [b for _, b in self.spans]
        first, last = bisect_right(ends, start), bisect_left(starts, end) - 1
        if not first <= last < len(self.places) or self.spans[last][1] < end:
            return None
        return self.places[first], self.places[last]

    def characters(self, passage: str, first: int, last: int) -> tuple[int, int]:
        """Where the answer that two places of the row point to begins and ends in the passage, without blanks."""
        start, end = self.spans[first - self.places.start][0], self.spans[last - self.places.start][1]
        found = passage[start:end]
        return start + len(found) - len(found.lstrip()), end - len(found) + len(found.rstrip())


def encode_question(tokenizer: Tokenizer, question: str, passage: str, limit: int | None = None) -> QuestionRow:
    """Puts a question and a passage into one row; arguments and errors are those of `encode_pair`."""
    row = encode_pair(tokenizer, question, passage, limit)
    spans = piece_spans(tokenizer, passage)[: len(row.second)]
    return QuestionRow(row.ids, row.types, row.cut, row.second, spans, row.first_end)


class Span(NamedTuple):
    """The places of an answer's first and last piece, both 0 for none, and its probability."""

    first: int
    last: int
    probability: float


def best_span(logits_T2: NDArray[np.floating], places: range, longest: int = LONGEST) -> Span:
    """The likeliest span of the passage, or none where the row's beginning is likelier (Devlin et al. 2019, 4.3).

    The probability of a span is that of its start times that of its end, each among the passage and the beginning.

    Args:
        logits_T2: Of the start and of the end, for each place of the row.
        places: Of the passage.
        longest: Most pieces of an answer.
    """
    allowed = np.array([0, *places])
    scores_N2 = logits_T2[allowed].astype(np.float64)
    scores_N2 -= np.log(np.exp(scores_N2 - scores_N2.max(0)).sum(0)) + scores_N2.max(0)
    sums_SE = scores_N2[:, :1] + scores_N2[None, :, 1]
    length_SE = np.arange(len(allowed)) - np.arange(len(allowed))[:, None] + 1
    fits_SE = (length_SE >= 1) & (length_SE <= longest)
    fits_SE[0, 1:] = False  # from the row's beginning into the passage is no span
    start, end = divmod(int(np.where(fits_SE, sums_SE, -np.inf).argmax()), len(allowed))
    return Span(int(allowed[start]), int(allowed[end]), float(np.exp(sums_SE[start, end])))

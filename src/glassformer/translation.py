"""The record of a line's translation, made of what the model answered to its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import nlargest
from typing import NamedTuple, TypedDict

from glassformer.text.pipeline import Draft, Line, Part
from glassformer.text.script import is_already


class Candidate(TypedDict):
    """One translation of an n-best list."""

    translation: str
    score: float


class Translation(TypedDict):
    """One line's translation with its details: the record of `translate --format jsonl`.

    Attributes:
        source: the line.
        score: that of the search; of a line in several sentences the sum of theirs, and 0 where there was nothing to
            translate.
        n_best: distinct translations, best first; the first is `translation`.
        alignment: where asked for, pairs `0-0 1-2` of a word of the line and one of its translation (Pharaoh), both
            numbered from 0 as `glassformer.text.words.words` counts them.
        truncated: a sentence was cut to the model's limit, or a translation to its own.
        repetition: a translation repeats itself more than three times in a row where its source does not, even after a
            second try.
        untranslated: a sentence came back as it was, since it is in the target language already or the model did no
            more, or as nothing (its source stands in the translation then).
    """

    source: str
    translation: str
    score: float
    n_best: list[Candidate]
    alignment: str | None
    truncated: bool
    repetition: bool
    untranslated: bool


class Choice(NamedTuple):
    """An answer of the model to a sentence, with its score."""

    text: str
    score: float


def own_answer(part: Part, direction: tuple[str, str] | None) -> Draft | None:
    """A sentence as the answer to itself, where it is in the target language already."""
    if direction is None or not is_already(part.protected.plain, target=direction[1], source=direction[0]):
        return None
    return Draft(part.protected.text, details=[Choice(part.protected.text, 0.0)])


def record_of(line: Line, n_best: int) -> Translation:
    """The record of a line whose parts' drafts hold their `Choice`s as details."""
    candidates = _candidates(line)[:n_best]
    return Translation(
        source=line.source,
        **candidates[0],
        n_best=candidates,
        alignment=None,
        truncated=line.truncated,
        repetition=line.repetition,
        untranslated=line.untranslated,
    )


def _candidates(line: Line) -> list[Candidate]:
    """Distinct translations of a line, best first, by combining its sentences' choices."""
    choices = [part.draft.details if part.draft else [Choice(part.source, 0.0)] for part in line.parts]
    width = max(map(len, choices), default=1)
    if width == 1:
        return [Candidate(translation=line.translation, score=sum((c[0].score for c in choices), start=0.0))]
    # Scores add up, so the best of a whole are made of the best of its beginning. Each is (sum, chain of choices).
    combined: list[tuple[float, tuple]] = [(0.0, ())]
    for options in choices:
        grown = [(score + c.score, (chain, c)) for score, chain in combined for c in options]
        combined = nlargest(width, grown, key=lambda item: item[0])
    by_text: dict[str, float] = {}
    for score, chain in combined:
        by_text.setdefault(_chosen(line, chain), score)
    return [Candidate(translation=text, score=score) for text, score in by_text.items()]


def _chosen(line: Line, chain: tuple) -> str:
    texts: list[str] = []
    while chain:
        chain, choice = chain
        texts.append(choice.text)
    return line.answered(_redrafted(line.parts, texts[::-1])).translation


def _redrafted(parts: Sequence[Part], texts: Sequence[str]) -> list[Part]:
    return [replace(part, draft=Draft(text)) if part.draft else part for part, text in zip(parts, texts, strict=True)]

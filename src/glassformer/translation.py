"""What is asked of lines, and the record of a line's translation, made of what the model answered to its sentences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from glassformer.decoding import Decoding
from glassformer.text.glossary import Glossary
from glassformer.text.pipeline import Draft, Line, Part
from glassformer.text.script import is_already

if TYPE_CHECKING:
    from glassformer.generate.align import Link
    from glassformer.generate.processors import Processor
    from glassformer.text.tags import Element, Tagged

    Align = Callable[[Sequence[tuple[str, str]]], list[list[Link]]]

_ALIGNED_AT_ONCE = 64
"""Sentences: a line may hold thousands, and their attention all at once would fill memory."""


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


class Asked(NamedTuple):
    """A line by its number, from 1, and what was asked of it."""

    number: int
    text: str
    prefix: str
    direction: tuple[str, str] | None = None
    tagged: bool = False  # the model reads it without its tags, which are put back by alignment


@dataclass(frozen=True)
class Job:
    """What all lines of one call share; `cut` gathers the numbers of the too long, `kept` of those left as they are.

    With `masks_terms` a glossary's terms are masked; else beam search is forced to write their translations.
    """

    decoding: Decoding
    directions: list[tuple[str, str]]
    glossary: Glossary | None
    processors: tuple[Processor, ...]
    batch_tokens: int
    alignments: bool
    links: Callable[..., list[list[Link]]]
    masks_terms: bool = False
    cut: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)

    def keep(self, part: Part, asked: Asked) -> Draft | None:
        """A sentence as its own answer, where it is in the target language already and is not forced to begin so."""
        draft = None if asked.prefix.strip() else own_answer(part, asked.direction)
        if draft and len(self.directions) == 1 and replace(part, draft=draft).untranslated:
            self.kept.add(asked.number)
        return draft


def opened(asked: Asked, direction: tuple[str, str] | None, mask: str | None) -> tuple[Asked, str]:
    """What was asked, in its direction; and the line as it is to be split, without tags that are put back later."""
    plain = _stripped(asked.text) if mask is not None and "<" in asked.text else None
    tagged = plain is not None and bool(plain.text.strip()) and _stand_by_words(plain.elements)
    asked = asked._replace(direction=direction, tagged=tagged)
    return asked, plain.text if plain is not None and tagged else asked.text


def _stripped(text: str) -> Tagged:
    from glassformer.text.tags import strip_tags

    return strip_tags(text)


def _stand_by_words(elements: Sequence[Element]) -> bool:
    """Whether all tags have a partner or close themselves; another one may stand for a word, as <name> does."""
    return bool(elements) and all(
        (element.closing or element.opening.endswith("/>"))
        and (not element.children or _stand_by_words(element.children))
        for element in elements
    )


def own_answer(part: Part, direction: tuple[str, str] | None) -> Draft | None:
    """A sentence as the answer to itself, where it is nothing but terms, or in the target language already."""
    plain = part.protected.plain
    if plain.strip() and (direction is None or not is_already(plain, target=direction[1], source=direction[0])):
        return None
    return Draft(part.protected.text, details=[Choice(part.protected.text, 0.0)])


def candidates(line: Line, n_best: int) -> list[tuple[Line, float]]:
    """Distinct translations of a line with their scores, best first, by combining its parts' `Choice`s.

    Args:
        line: translated; its parts' drafts hold their choices as details.
        n_best: how many are wanted, at most.
    """
    choices = [part.draft.details if part.draft else [Choice(part.source, 0.0)] for part in line.parts]
    width = max(map(len, choices), default=1)
    if width == 1:
        return [(line, sum((c[0].score for c in choices), start=0.0))]
    # Scores add up, so the best of a whole are made of the best of its beginning. Each is (sum, chain of choices).
    combined: list[tuple[float, tuple]] = [(0.0, ())]
    for options in choices:
        grown = [(score + c.score, (chain, c)) for score, chain in combined for c in options]
        combined = nlargest(width, grown, key=lambda item: item[0])
    by_text: dict[str, tuple[Line, float]] = {}
    for score, chain in combined:
        answered = line.answered(_redrafted(line.parts, chain))
        by_text.setdefault(answered.translation, (answered, score))
    return list(by_text.values())[:n_best]


def record_of(line: Line, found: Sequence[tuple[Line, float]]) -> Translation:
    """The record of a line and its `candidates`."""
    n_best = [Candidate(translation=each.translation, score=score) for each, score in found]
    return Translation(
        source=line.source,
        **n_best[0],
        n_best=n_best,
        alignment=None,
        truncated=line.truncated,
        repetition=line.repetition,
        untranslated=line.untranslated,
    )


def line_links(line: Line, aligned: Align) -> list[Link]:
    """Which words of a line and its translation say the same, asked for sentence by sentence.

    Args:
        line: translated.
        aligned: the links between the words of each of some pairs of texts.
    """
    from glassformer.text.words import words

    segments = list(line.segments)
    found = []
    for start in range(0, len(segments), _ALIGNED_AT_ONCE):
        found += aligned(
            [(segment.source, segment.translation) for segment in segments[start : start + _ALIGNED_AT_ONCE]]
        )
    starts = [[word.start for word in words(text)] for text in (line.source, line.translation)]
    links = set()
    for segment, of_one in zip(segments, found, strict=True):
        places = [word.start + segment.source_start for word in words(segment.source)]
        translated = [word.start + segment.translation_start for word in words(segment.translation)]
        # A word that was cut is that of the line in which its part stands.
        links |= {
            (bisect_right(starts[0], places[s]) - 1, bisect_right(starts[1], translated[t]) - 1) for s, t in of_one
        }
    return sorted(links)


def _redrafted(parts: Sequence[Part], chain: tuple) -> list[Part]:
    texts: list[str] = []
    while chain:
        chain, choice = chain
        texts.append(choice.text)
    return [
        replace(part, draft=Draft(text)) if part.draft else part for part, text in zip(parts, texts[::-1], strict=True)
    ]

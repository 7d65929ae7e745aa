"""Inline tags (`<b>…</b>`, `<br/>`), taken out before translation and put around the words that say the same after it.

    plain = strip_tags(source).text
    translation, links = ...                                       # of `plain`, with its words' alignment
    carry_tags(source, translation, links)

Elements are placed from the outside to the inside, each within its parent and apart from its siblings. So whatever the
alignment, the tags come out well nested, each exactly once, and the text between them is the translation.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from glassformer.text.patterns import find
from glassformer.text.recipe import SPACELESS
from glassformer.text.words import words

_NAME = re.compile(r"<(/?)([\w:.-]+)[^<>]*?(/?)>", re.ASCII)
# Deeper ones are taken as tags alone, so that a line of nothing but tags cannot exhaust the stack.
_MAX_DEPTH = 100
_LETTER = re.compile(rf"[^\W{SPACELESS}]")


@dataclass
class Element:
    """A tag with its partner, or one alone.

    Attributes:
        start, end: what it is around, in `Tagged.text`; a tag alone stands at `start`, which is `end` then.
        opening, closing: the tags as they are written; a tag alone is all in `opening`.
        children: the elements inside, in the text's order.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    children: list[Element] = field(default_factory=list)


class Tagged(NamedTuple):
    """A text without its tags, and the elements that they make."""

    text: str
    elements: list[Element]


class _Span(NamedTuple):
    """Numbers of words from `first` up to `last`, left out, and the same in characters."""

    first: int
    last: int
    start: int
    end: int


def strip_tags(text: str) -> Tagged:
    """Takes the tags out of a text.

    Of two blanks that would meet where a tag stood one goes, and a tag alone between two letters leaves a blank: a
    <br/> parts words. Tags whose partner is missing or on the other side of another element's edge are alone.
    """
    tags = [(found.start, found.end) for found in find(text) if found.kind == "tag"]
    partners = _partners([text[start:end] for start, end in tags])
    plain, end = "", 0
    root = Element(0, 0, "")
    stack = [root]
    for number, (start, stop) in enumerate(tags):
        plain += _joined(plain, text[end:start])
        end, partner = stop, partners[number]
        if partner is not None and partner > number and len(stack) > _MAX_DEPTH:
            partners[partner] = None
            partner = None
        if partner is None and _LETTER.match(plain[-1:]) and _LETTER.match(text, end):
            plain += " "
        if partner is not None and partner < number:
            element = stack.pop()
            element.end, element.closing = len(plain), text[start:stop]
            continue
        element = Element(len(plain), len(plain), text[start:stop])
        stack[-1].children.append(element)
        if partner is not None:
            stack.append(element)
    return Tagged(plain + _joined(plain, text[end:]), root.children)


def carry_tags(source: str, translation: str, links: Iterable[tuple[int, int]]) -> str:
    """Puts a source's tags into its translation.

    An element goes around the run of target words that holds most of those linked to its own source words and fewest of
    those linked to other ones; around everything, if it is around all words of the source. One without such words, and
    a tag alone, goes beside the target word that is linked to its nearest neighbour.

    Args:
        source: the text with its tags.
        translation: of `strip_tags(source).text`.
        links: (source word, target word), numbers in `words` of those two texts; others are ignored.

    Returns:
        `translation` with each tag in it exactly once.
    """
    text, elements = strip_tags(source)
    return _Carrier(text, translation, links).render(elements)


class _Carrier:
    """One translation and its alignment."""

    def __init__(self, source: str, translation: str, links: Iterable[tuple[int, int]]) -> None:
        self.source_text, self.translation = source, translation
        self.source, self.target = words(source), words(translation)
        self.starts, self.ends = [word.start for word in self.source], [word.end for word in self.source]
        self.targets: list[set[int]] = [set() for _ in self.source]
        self.sources: list[set[int]] = [set() for _ in self.target]
        for s, t in links:
            if 0 <= s < len(self.source) and 0 <= t < len(self.target):
                self.targets[s].add(t)
                self.sources[t].add(s)

    def render(self, elements: Sequence[Element]) -> str:
        everything = _Span(0, len(self.target), 0, len(self.translation))
        return self._fill(elements, range(len(self.source)), everything)

    def _fill(self, elements: Sequence[Element], inside: range, span: _Span) -> str:
        """The text of `span` with elements in it, which stand around some of the source words `inside`."""
        own = [self._inside(element) for element in elements]
        placed: dict[int, _Span] = {}
        for number in sorted(range(len(elements)), key=lambda i: -len(own[i])):
            if own[number] and own[number] == inside and not placed:
                placed[number] = span
            elif run := self._run(own[number], span, placed.values()):
                placed[number] = run
        taken = list(placed.values())
        for number, element in enumerate(elements):
            if number not in placed:
                placed[number] = self._gap(element, own[number].start, inside, span, taken)
        result, end = "", span.start
        for number in sorted(placed, key=lambda i: (placed[i].start, placed[i].end, i)):
            element, place = elements[number], placed[number]
            filling = self._fill(element.children, own[number], place)
            result += self.translation[end : place.start] + element.opening + filling + element.closing
            end = place.end
        return result + self.translation[end : span.end]

    def _inside(self, element: Element) -> range:
        """The source words inside an element, even with a part of theirs; for a tag alone, none before the next one."""
        first = bisect_right(self.ends, element.start)
        return range(first, max(first, bisect_left(self.starts, element.end)))

    def _run(self, inside: range, span: _Span, taken: Collection[_Span]) -> _Span | None:
        """The run of free words in `span` that links favour most, the shortest of equals (Bentley 1984)."""
        best, first, total, least = (0, 0, 0), -1, 0, 0
        for word in range(span.first, span.last):
            if any(run.first <= word < run.last for run in taken):
                first = -1
            elif any(s in inside for s in self.sources[word]):
                if first < 0 or total <= least:
                    first, least = word, total
                total += 1
                best = max(best, (total - least, first - word - 1, -first))
            elif self.sources[word]:
                total -= 1
        gain, length, start = best
        return self._span(-start, -start - length) if gain else None

    def _gap(self, element: Element, place: int, inside: range, span: _Span, taken: Collection[_Span]) -> _Span:
        """Where in `span`, outside of what is taken, an element goes that has no words: before the source's `place`."""
        before, after = self.source_text[: element.start][-1:], self.source_text[element.end :][:1]
        behind = bool(before.strip()) and not after.strip()
        gap = self._neighbour(place, inside, span, behind)
        for run in taken:
            if run.first < gap < run.last:
                gap = run.first if gap - run.first < run.last - gap else run.last
        if gap in (span.first, span.last):
            offset = span.start if gap == span.first else span.end
        else:
            offset = self.target[gap - 1].end if behind else self.target[gap].start
        return _Span(gap, gap, offset, offset)

    def _neighbour(self, place: int, inside: range, span: _Span, behind: bool) -> int:
        """The target word before which goes what stands before the source word `place`, rather behind its neighbour."""
        if place <= inside.start:
            return span.first
        if place >= inside.stop:
            return span.last
        for distance in range(len(inside)):
            sides = [(place + distance, 0), (place - 1 - distance, 1)]
            for word, step in reversed(sides) if behind else sides:
                found = [t for t in self.targets[word] if span.first <= t < span.last] if word in inside else []
                if found:
                    return max(found) + 1 if step else min(found)
        return span.last

    def _span(self, first: int, last: int) -> _Span:
        return _Span(first, last, self.target[first].start, self.target[last - 1].end)


def _partners(tags: Sequence[str]) -> list[int | None]:
    """The number of each tag's other half; None for a tag alone."""
    partners: list[int | None] = [None] * len(tags)
    waiting: list[tuple[int, str]] = []
    for number, tag in enumerate(tags):
        match = _NAME.fullmatch(tag)
        if match is None or match[3]:
            continue
        if not match[1]:
            waiting.append((number, match[2]))
            continue
        depth = next((i for i in reversed(range(len(waiting))) if waiting[i][1] == match[2]), None)
        if depth is not None:
            opening = waiting[depth][0]
            partners[opening], partners[number] = number, opening
            del waiting[depth:]
    return partners


def _joined(before: str, after: str) -> str:
    """`after` without its first blank if `before` ends with one."""
    return after[1:] if before[-1:] == " " and after[:1] == " " else after

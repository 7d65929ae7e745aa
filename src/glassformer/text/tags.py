"""Inline tags (`<b>…</b>`, `<br/>`), taken out before translation and put around the words that say the same after it.

    plain = strip_tags(source).text
    translation, links = ...                                       # of `plain`, with its words' alignment
    carry_tags(source, translation, links)

Elements are placed from the outside to the inside, each within its parent and apart from its siblings. So whatever the
alignment, the tags come out well nested, each exactly once, and the text between them is the translation.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from glassformer.text.lazy import lazy
from glassformer.text.patterns import find, pair_tags
from glassformer.text.recipe import SPACELESS
from glassformer.text.words import words

_NAME = lazy(r"<(/?)([\w:.-]+)[^<>]*?(/?)>", re.ASCII)
# Deeper ones are taken as tags alone, so that a line of nothing but tags cannot exhaust the stack.
_MAX_DEPTH = 100
_LETTER = lazy(rf"[^\W{SPACELESS}]")


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
    names = (_NAME.fullmatch(text, start, end) for start, end in tags)
    partners = pair_tags([name and name.group(1, 2, 3) for name in names])
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
        `translation` with each tag in it exactly once; the source, if its text came back as it was.
    """
    text, elements = strip_tags(source)
    if translation == text:
        return source
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
        self.linked = [0, *accumulate(map(bool, self.sources))]  # how many of the first n target words have links

    def render(self, elements: Sequence[Element]) -> str:
        everything = _Span(0, len(self.target), 0, len(self.translation))
        return self._fill(elements, range(len(self.source)), everything)

    def _fill(self, elements: Sequence[Element], inside: range, span: _Span) -> str:
        """The text of `span` with elements in it, which stand around some of the source words `inside`."""
        if not elements:
            return self.translation[span.start : span.end]
        own = [self._inside(element) for element in elements]
        placed: dict[int, _Span] = {}
        taken: list[_Span] = []
        for number in sorted(range(len(elements)), key=lambda i: -len(own[i])):
            everything = bool(own[number]) and own[number] == inside and not placed
            if run := span if everything else self._run(own[number], span, taken):
                placed[number] = run
                insort(taken, run)
        anchors = [word for word in inside if any(span.first <= t < span.last for t in self.targets[word])]
        for number, element in enumerate(elements):
            if number not in placed:
                placed[number] = self._gap(element, own[number].start, inside, span, taken, anchors)
        filled, end = [], span.start
        for number in sorted(placed, key=lambda i: (placed[i].start, placed[i].end, i)):
            element, place = elements[number], placed[number]
            filling = self._fill(element.children, own[number], place)
            filled += [self.translation[end : place.start], element.opening, filling, element.closing]
            end = place.end
        return "".join([*filled, self.translation[end : span.end]])

    def _inside(self, element: Element) -> range:
        """The source words inside an element, even with a part of theirs; for a tag alone, none before the next one."""
        first = bisect_right(self.ends, element.start)
        return range(first, max(first, bisect_left(self.starts, element.end)))

    def _run(self, inside: range, span: _Span, taken: list[_Span]) -> _Span | None:
        """The run of free words in `span` that links favour most, the shortest of equals (Bentley 1984).

        A word linked to `inside` counts 1 and one with other links -1; so the runs begin and end with one of the first.
        """
        best, first, total, before = (0, 0, 0), -1, 0, -1
        for word in sorted({t for s in inside for t in self.targets[s] if span.first <= t < span.last}):
            run = bisect_right(taken, word, key=lambda run: run.first) - 1
            if run >= 0 and taken[run].last > before:  # between this word and the last one, or around this one
                first = -1
            total -= self.linked[word] - self.linked[before + 1]
            before = word
            if run >= 0 and word < taken[run].last:
                continue
            if first < 0 or total <= 0:
                first, total = word, 0
            total += 1
            best = max(best, (total, first - word - 1, -first))
        gain, length, start = best
        return self._span(-start, -start - length) if gain else None

    def _gap(
        self, element: Element, place: int, inside: range, span: _Span, taken: list[_Span], anchors: list[int]
    ) -> _Span:
        """Where in `span`, outside of what is taken, an element goes that has no words: before the source's `place`."""
        before = self.source_text[max(0, element.start - 1) : element.start]
        after = self.source_text[element.end : element.end + 1]
        behind = bool(before.strip()) and not after.strip()
        gap = self._neighbour(place, inside, span, behind, anchors)
        number = bisect_left(taken, gap, key=lambda run: run.first) - 1
        if number >= 0 and gap < taken[number].last:
            run = taken[number]
            gap = run.first if gap - run.first < run.last - gap else run.last
        if gap in (span.first, span.last):
            offset = span.start if gap == span.first else span.end
        else:
            offset = self.target[gap - 1].end if behind else self.target[gap].start
        return _Span(gap, gap, offset, offset)

    def _neighbour(self, place: int, inside: range, span: _Span, behind: bool, anchors: list[int]) -> int:
        """The target word before which goes what stands before the source word `place`, rather behind its neighbour.

        Args:
            anchors: the words of `inside` with links into `span`.
        """
        if place <= inside.start:
            return span.first
        if place >= inside.stop or not anchors:
            return span.last
        index = bisect_left(anchors, place)
        right, left = anchors[index : index + 1], anchors[max(0, index - 1) : index]
        left_first = not right or (bool(left) and place - 1 - left[0] < right[0] - place + behind)
        word = (left if left_first else right)[0]
        found = [t for t in self.targets[word] if span.first <= t < span.last]
        return max(found) + 1 if left_first else min(found)

    def _span(self, first: int, last: int) -> _Span:
        return _Span(first, last, self.target[first].start, self.target[last - 1].end)


def _joined(before: str, after: str) -> str:
    """`after` without its first blank if `before` ends with one."""
    return after[1:] if before[-1:] == " " and after[:1] == " " else after

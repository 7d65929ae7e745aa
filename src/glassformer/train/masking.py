"""Masks in training pairs, so that a model has seen what translation puts in the place of placeholders."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

from glassformer.data.corpus import Pair
from glassformer.text.masks import MASK, masks
from glassformer.text.recipe import SPACELESS

# What a mask must not touch: `text.protect` would put a blank between them.
_EDGE = rf"[^\W{SPACELESS}]|[/\\%$&=#~+@-]"
_WORD = re.compile(rf"\d+(?:[.,:]\d+)*|[^\W\d_{SPACELESS}]+")
_FEW, _MANY = 4, 30
"""Masks are numbered from 1; half of the pairs draw from the few numbers that short texts need, half from many."""

T = TypeVar("T")
Span = tuple[int, int]


class Place(NamedTuple):
    """Where the two sides of a pair say the same, as (start, end) in each."""

    source: Span
    target: Span


def shared_places(pair: Pair, terms: Sequence[Pair]) -> list[Place]:
    """Where a number, a word that both sides spell alike, or a term stands exactly once on either side.

    Args:
        pair: A sentence and its translation.
        terms: Words and their translations, in the pair's languages.

    Returns:
        Places that do not touch, longer ones first; `text.protect` makes one mask of neighbours without a gap.
    """
    words = [Pair(word, word) for word in _WORD.findall(pair.source)]
    places: list[Place] = []
    for term in sorted([*terms, *words], key=lambda term: -len(term.source)):
        if term.source not in pair.source or term.target not in pair.target:
            continue
        source, target = _only(term.source, pair.source), _only(term.target, pair.target)
        if source and target and not any(_touch(source, p.source) or _touch(target, p.target) for p in places):
            places.append(Place(source, target))
    return places


class Masking:
    """A parallel text in which each epoch shows masks in some of the pairs, the same ones on both sides.

    What an epoch holds is a pure function of the text, the seed and the epoch, as all of training's draws are.

    Attributes:
        count: How many pairs hold something to mask.

    Args:
        pairs: The text.
        terms: Words with their translations that may be masked, besides numbers and words spelled alike.
        share: Share of those pairs that is masked in an epoch.
        style: How masks are spelled, as in `text.protect`.
    """

    def __init__(self, pairs: Sequence[Pair], terms: Sequence[Pair], share: float, style: str = MASK) -> None:
        self._pairs, self._share, self._style = pairs, share, style
        self._places = {row: places for row, pair in enumerate(pairs) if (places := shared_places(pair, terms))}
        self.count = len(self._places)

    def epoch(self, seed: int, epoch: int) -> list[Pair]:
        """All pairs in their order, masked or as they were."""
        rng = random.Random(f"mask/{seed}/{epoch}")  # drawn from by random() alone, which never changes
        pairs = list(self._pairs)
        for row, places in self._places.items():
            if rng.random() < self._share:
                pairs[row] = self._masked(pairs[row], places, rng)
        return pairs

    def _masked(self, pair: Pair, places: Sequence[Place], rng: random.Random) -> Pair:
        chosen = _shuffled(places, rng)[: 1 + int(rng.random() * len(places))]
        most = max(_FEW if rng.random() < 0.5 else _MANY, len(chosen))
        names = _shuffled(list(islice(masks(" ".join(pair), self._style), most)), rng)
        return Pair(
            replaced(pair.source, [place.source for place in chosen], names),
            replaced(pair.target, [place.target for place in chosen], names),
        )


def _shuffled(items: Sequence[T], rng: random.Random) -> list[T]:
    order = [rng.random() for _ in items]
    return [items[index] for index in sorted(range(len(items)), key=order.__getitem__)]


def replaced(text: str, spans: Sequence[Span], names: Sequence[str]) -> str:
    """The text with a name in the place of each span, as far as there are names."""
    for (start, end), name in sorted(zip(spans, names, strict=False), reverse=True):
        text = text[:start] + name + text[end:]
    return text


def _only(literal: str, text: str) -> Span | None:
    """Where a literal stands, if that is once and as a word of its own."""
    if text.count(literal) > 1:
        return None
    match = _whole(literal).search(text)
    return match.span() if match else None


@lru_cache(maxsize=4096)
def _whole(literal: str) -> re.Pattern[str]:
    """The literal, but neither in a word nor in a longer number."""
    return re.compile(rf"(?<!{_EDGE})(?<!\d[.,:]){re.escape(literal)}(?!{_EDGE}|[.,:]\d)")


def _touch(one: Span, other: Span) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]

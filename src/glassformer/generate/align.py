"""Word alignments from a matrix of attention, and the Pharaoh format they are written in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glassformer.errors import UserError

Link = tuple[int, int]
"""The numbers of a source and a target word that say the same, counted from 0."""

METHODS = ("argmax", "intersection", "itermax")
_DISCOUNT = 0.9
_LINK = re.compile(r"(\d+)-(\d+)", re.ASCII)


def word_links(
    attention_TS: ArrayLike, source: Sequence[range], target: Sequence[range], method: str = "argmax"
) -> list[Link]:
    """The links between words that attention between their pieces makes.

    Words that share a piece are linked as one. What a target piece gives to a source piece of no word, such as the
    language token or `</s>`, is left out and the rest scaled up to 1; a word that gives everything there has no link.

    Args:
        attention_TS: what each target piece gives to each source piece, at least 0.
        source: each source word's pieces, columns of the matrix, in ascending order; an empty range has no link.
        target: each target word's pieces, rows of the matrix, likewise.
        method: `argmax` links each target word to the source word that gets most; `intersection` keeps those links that
            are best for both ends; `itermax` adds to these, once more, what is best for both ends among the words that
            have no link yet (Jalili Sabet et al. 2020, arXiv:2004.08728, section 3.2, with its α = 0.9).

    Returns:
        Distinct (source word, target word), sorted.

    Raises:
        UserError: an unknown method.
    """
    if method not in METHODS:
        raise UserError(f"alignment method {method!r}: expected one of {', '.join(METHODS)}")
    rows, columns = _units(target), _units(source)
    if not rows or not columns:
        return []
    matrix = np.asarray(attention_TS, dtype=np.float64)
    matrix = np.stack([matrix[:, pieces.start : pieces.stop].sum(1) for pieces, _ in columns], 1)
    matrix = np.stack([matrix[pieces.start : pieces.stop].mean(0) for pieces, _ in rows])
    total = matrix.sum(1, keepdims=True)
    matrix = np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)
    linked = {"argmax": _best, "intersection": _mutual, "itermax": _itermax}[method](matrix)
    return sorted((s, t) for row, column in np.argwhere(linked) for t in rows[row][1] for s in columns[column][1])


def to_pharaoh(links: Iterable[Link]) -> str:
    """Links as `0-0 1-2`: source word, target word."""
    return " ".join(f"{source}-{target}" for source, target in links)


def from_pharaoh(line: str) -> list[Link]:
    """The links that `to_pharaoh` wrote.

    Raises:
        UserError: a word of the line that is not two numbers with a hyphen between them.
    """
    links = []
    for word in line.split():
        match = _LINK.fullmatch(word)
        if match is None:
            raise UserError(f"alignment {word!r}: expected a source and a target word's number, such as 0-2")
        links.append((int(match[1]), int(match[2])))
    return links


def _units(words: Sequence[range]) -> list[tuple[range, list[int]]]:
    """The smallest runs of pieces that part neither a word nor a piece, each with its words' numbers."""
    units: list[tuple[range, list[int]]] = []
    for number, pieces in enumerate(words):
        if not pieces:
            continue
        if units and pieces.start < units[-1][0].stop:
            run, numbers = units[-1]
            units[-1] = range(run.start, max(run.stop, pieces.stop)), [*numbers, number]
        else:
            units.append((pieces, [number]))
    return units


def _best(matrix: NDArray[np.float64]) -> NDArray[np.bool_]:
    """True at the largest entry of each row, at the first of equals; nowhere in a row of zeros."""
    best = np.zeros(matrix.shape, dtype=bool)
    best[np.arange(len(matrix)), matrix.argmax(1)] = True
    return best & (matrix > 0)


def _mutual(matrix: NDArray[np.float64]) -> NDArray[np.bool_]:
    return _best(matrix) & _best(matrix.T).T


def _itermax(matrix: NDArray[np.float64]) -> NDArray[np.bool_]:
    links = _mutual(matrix)
    ends = links.any(1, keepdims=True).astype(int) + links.any(0)
    return links | _mutual(matrix * np.array([1.0, _DISCOUNT, 0.0])[ends])

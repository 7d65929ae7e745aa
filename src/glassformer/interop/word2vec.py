"""Word vectors of word2vec (Mikolov et al. 2013), text or binary, as the initial rows of an embedding.

Both forms begin with a line of two numbers, words and dimensions. A text line is a word and its numbers; a binary entry
is a word, a space, and float32 numbers, little-endian, perhaps behind a line break.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from glassformer.errors import UserError
from glassformer.text.tokenizer import Tokenizer

_NUMBER = re.compile(rb"[-+.\deEnafi]+")
_MARKS = ("▁", "Ġ", "##", "@@")
"""What tokenizers add to a piece to tell where in a word it stands."""


class Initialised(NamedTuple):
    """How many rows of an embedding got a vector."""

    found: int
    rows: int

    def __str__(self) -> str:
        return f"{self.found} of {self.rows} pieces have a word vector"


def check(file: Path, d_model: int) -> None:
    """Refuses a file whose vectors do not fit an embedding, by its first line alone.

    Raises:
        UserError: It is missing, something else, or its vectors have another size.
    """
    try:
        with file.open("rb") as stream:
            size = _head(file, stream.readline(100))[1]
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from None
    if size != d_model:
        raise UserError(
            f"{file}: vectors of {size} numbers, but the model has d_model {d_model}; set d_model to {size}"
        )


def _head(file: Path, line: bytes) -> tuple[int, int]:
    try:
        count, size = map(int, line.split())
    except ValueError:
        raise UserError(f"{file}:1: expected two numbers, words and dimensions, as word2vec writes them") from None
    return count, size


def read(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The words of a file, text or binary, with their vectors.

    Raises:
        UserError: It is missing, truncated, or something else.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from None
    head, _, body = data.partition(b"\n")
    count, size = _head(file, head)
    first = body.partition(b"\n")[0].split()
    text = len(first) == size + 1 and all(_NUMBER.fullmatch(number) for number in first[1:])
    yield from _text(file, body, size) if text else _binary(file, body, count, size)


def _text(file: Path, body: bytes, size: int) -> Iterator[tuple[str, np.ndarray]]:
    for number, line in enumerate(body.rstrip(b"\n").split(b"\n"), start=2):
        word, *values = line.rstrip().rsplit(b" ", size)
        try:
            vector = np.array(values, np.float32)
        except ValueError:
            vector = np.empty(0, np.float32)
        if len(vector) != size:
            raise UserError(f"{file}:{number}: expected a word and {size} numbers")
        yield word.decode("utf-8", "replace"), vector


def _binary(file: Path, body: bytes, count: int, size: int) -> Iterator[tuple[str, np.ndarray]]:
    at = 0
    for number in range(count):
        space = body.find(b" ", at)
        end = space + 1 + 4 * size
        if space < 0 or end > len(body):
            raise UserError(f"{file}: truncated: {number} of {count} words are there")
        yield body[at:space].lstrip(b"\n").decode("utf-8", "replace"), np.frombuffer(body, "<f4", size, space + 1)
        at = end


@torch.no_grad()
def initialise_(model: Any, tokenizer: Tokenizer, file: Path) -> Initialised:
    """Writes word vectors into the rows of the pieces that spell these words; the other rows stay as they are.

    A piece is looked up as it is, without its marks, and in lower case. Vectors are scaled as a whole to the mean
    length of the rows that they replace, so that training starts as it would have.

    Raises:
        UserError: The file is damaged, or its vectors have another size than the embedding.
    """
    weight_VD = model.embed.weight
    rows: dict[str, list[int]] = {}
    for index in range(min(tokenizer.vocab_size, len(weight_VD))):
        piece = tokenizer.id_to_token(index)
        for mark in _MARKS:
            piece = piece.removeprefix(mark).removesuffix(mark)
        rows.setdefault(piece, []).append(index)
    found: dict[int, np.ndarray] = {}
    for word, vector in read(file):
        if len(vector) != weight_VD.shape[1]:
            raise UserError(f"{file}: vectors of {len(vector)} numbers, but the model has d_model {weight_VD.shape[1]}")
        for spelling in dict.fromkeys((word, word.lower())):
            for index in rows.get(spelling, ()):
                found.setdefault(index, vector)
    if found:
        index_N = torch.tensor(list(found), device=weight_VD.device)
        vectors_ND = torch.from_numpy(np.stack(list(found.values()))).to(weight_VD)
        lengths = (rows_ND.norm(dim=1).mean() for rows_ND in (weight_VD[index_N], vectors_ND))
        weight_VD[index_N] = vectors_ND * (next(lengths) / next(lengths).clamp(min=1e-12))
    return Initialised(len(found), len(weight_VD))

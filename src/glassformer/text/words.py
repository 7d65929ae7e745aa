"""What a word is to an alignment, and which pieces of a tokenizer spell it.

A word follows from the text alone, so that two models' alignments of one text can be compared: a run of letters and
digits (with "don't", "well-known" and "3.14" in one), one letter of a script written without spaces, or one other
character, such as a full stop. Joined by blanks they are the line that tools for Pharaoh alignments read.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers

from glassformer.text.lazy import lazy
from glassformer.text.recipe import SPACELESS

if TYPE_CHECKING:
    from glassformer.text.tokenizer import Tokenizer

_LETTER = lazy(rf"[^\W{SPACELESS}]")
_INNER = lazy(rf"(?<=[^\W{SPACELESS}])['’-](?=[^\W{SPACELESS}])|(?<=\d)[.,:](?=\d)")


class Word(NamedTuple):
    """A word and where it stands: `line[start:end] == text`."""

    text: str
    start: int
    end: int


def words(text: str) -> list[Word]:
    """The words of a text in their order; all that is between them is blanks."""
    spans: list[list[int]] = []
    for place, character in enumerate(text):
        if character.isspace():
            continue
        if spans and spans[-1][1] == place and _continues(text, spans[-1][0], place):
            spans[-1][1] = place + 1
        else:
            spans.append([place, place + 1])
    return [Word(text[start:end], start, end) for start, end in spans]


def pieces_to_words(tokenizer: Tokenizer, text: str) -> list[tuple[Word, range]]:
    """Each word of a text, with the places of its pieces in `tokenizer.encode(text)`.

    A piece that spells several words, as 我喜欢 may, is in the range of each of them. A range is empty where the
    tokenizer drops the word, such as a control character.
    """
    spans = piece_spans(tokenizer, text)
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    return [(word, range(bisect_right(ends, word.start), bisect_left(starts, word.end))) for word in words(text)]


def _continues(text: str, start: int, place: int) -> bool:
    """Whether the character at `place` belongs to the word that began at `start` and reaches up to it."""
    if _LETTER.match(text, place):
        return bool(_LETTER.match(text, start))
    return unicodedata.category(text[place]) in ("Mn", "Mc", "Me", "Cf") or bool(_INNER.match(text, place))


def piece_spans(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Where each piece begins and ends in the text, a blank before it included."""
    backend: Any = tokenizer.backend
    if isinstance(backend, tokenizers.Tokenizer):
        return list(backend.encode(text, add_special_tokens=False).offsets)
    # Only the pieces' own texts are the same from release to release: method names and the offsets' unit have changed.
    encode = getattr(backend, "EncodeAsProto", None) or backend.EncodeAsImmutableProto
    spans, end = [], 0
    for piece in encode(text).pieces:
        start = text.index(piece.surface, end)
        end = start + len(piece.surface)
        spans.append((start, end))
    return spans


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """The ids of each word by itself, as it is spelt behind a blank."""
    # Byte-level tokenizers, such as GPT-2's, spell the blank; the others mark the beginning of a text themselves.
    blank = " " if next(iter(tokenizer.tokens(" a")), "").startswith("Ġ") else ""
    return tokenizer.encode_batch([blank + word for word in words])


def spellings(tokenizer: Tokenizer, words: Iterable[str]) -> list[tuple[int, ...]]:
    """The ids by which a tokenizer may write words: at a text's start, behind a space or a mark, in the usual cases."""
    stripped = [word.strip() for word in words if word.strip()]
    before = tokenizer.encode("(")
    found = set()
    for form in {form for word in stripped for form in (word, word.lower(), word.upper(), word.capitalize())}:
        found.add(tuple(tokenizer.encode(form)))
        ids = tokenizer.encode("(" + form)
        if ids[: len(before)] == before:
            found.add(tuple(ids[len(before) :]))
    return sorted(found - {()})

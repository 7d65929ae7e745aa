"""What stands for a protected text before the model, and which spellings of it are taken for it afterwards."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

MASK = "X{}"
LITERAL = "literal"  # the mask style in which each text stands for itself
_BLANK = "[ \u00a0\u3000]?"


def masks(text: str, style: str) -> Iterator[str]:
    """Masks that the text does not hold, in any spelling."""
    if style == LITERAL:
        return
    taken = {key(match[0]) for match in re.finditer(_numbered(style), text)}
    number = 0
    while True:
        number += 1
        if key(style.format(number)) not in taken:
            yield style.format(number)


@lru_cache(maxsize=256)
def literal_pattern(literals: tuple[str, ...]) -> re.Pattern[str]:
    """The protected texts themselves."""
    return re.compile("|".join(map(re.escape, sorted(set(literals), key=len, reverse=True))))


@lru_cache(maxsize=256)
def mask_pattern(style: str, literals: tuple[str, ...]) -> re.Pattern[str]:
    """Whatever may be one of the masks."""
    if style != LITERAL:
        return re.compile(_numbered(style))
    return re.compile("|".join(map(_loosely, sorted(set(literals), key=len, reverse=True))))


def _numbered(style: str) -> str:
    """A regular expression of the masks of a style, with any number."""
    before, after = style.split("{}")
    return f"{_loosely(before)}{_BLANK if before else ''}\\d+{_BLANK if after else ''}{_loosely(after)}"


def _loosely(text: str) -> str:
    """A regular expression of `text` in either case, in full width, and with single blanks in it."""
    return _BLANK.join("[" + "".join(map(re.escape, sorted(_variants(character)))) + "]" for character in text)


def _variants(character: str) -> set[str]:
    wide = {chr(ord(c) + 0xFEE0) for c in (character.upper(), character.lower()) if "!" <= c <= "~"}
    return {c for c in (character, character.upper(), character.lower(), *wide) if len(c) == 1}


def key(mask: str) -> str:
    """What the spellings of one mask have in common."""
    return "".join(unicodedata.normalize("NFKC", mask).casefold().split())

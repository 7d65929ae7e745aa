"""Keys that tell texts apart, or say that they are the same but for spelling, and a set of them that stays small."""

import re
import unicodedata
from array import array
from functools import cache
from hashlib import blake2b

_FIRST_SLOTS = 1 << 10


def digest(text: str) -> int:
    """Eight bytes for a text, never 0; among ten million texts two share one with a chance of 3 in a million."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


def pair_digest(source: str, target: str) -> int:
    """A digest of both texts; with the length of the first before them, no two pairs run together into one."""
    return digest(f"{len(source)} {source}{target}")


class DigestSet:
    """A set of digests in 12 to 24 bytes each, where Python's own takes about 80.

    A table of 64-bit slots with linear probing (Knuth, The Art of Computer Programming, vol. 3, 6.4, algorithm L); it
    doubles when two thirds full, and 0 marks a free slot.
    """

    def __init__(self) -> None:
        self._slots = array("Q", [0]) * _FIRST_SLOTS
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def __contains__(self, value: int) -> bool:
        return self._slots[self._find(value)] != 0

    def add(self, value: int) -> bool:
        """Add a digest; True if it was new."""
        place = self._find(value)
        if self._slots[place]:
            return False
        self._slots[place] = value
        self._used += 1
        if 3 * self._used > 2 * len(self._slots):
            self._grow()
        return True

    def _find(self, value: int) -> int:
        slots, mask = self._slots, len(self._slots) - 1
        place = value & mask
        while (held := slots[place]) and held != value:
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        old = self._slots
        self._slots = array("Q", [0]) * (2 * len(old))
        for value in old:
            if value:
                self._slots[self._find(value)] = value


class _Fold(dict[int, str | None]):
    """`str.translate`'s table that drops punctuation, spaces, controls, and marks of format."""

    def __missing__(self, code: int) -> str | None:
        char = chr(code)
        self[code] = None if unicodedata.category(char)[0] in "PZC" else char
        return self[code]


_FOLD = _Fold()


def blind_key(text: str) -> str:
    """The text but for case, width, punctuation, and spaces; where nothing is left, the text without outer spaces."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    # Composed once more: what stood between a letter and an accent may be gone.
    return unicodedata.normalize("NFC", folded.translate(_FOLD)) or text.strip()


# What a translation often leaves open, so that a sentence with one of these in place of another gives the test away.
_APOSTROPHE = re.compile("[’‘ʼ＇`´]")
_SAME = {
    "en": [
        (r"\bcan(?:'t|not)\b", "can not"),
        (r"\bwon't\b", "will not"),
        (r"n't\b", " not"),
        (r"'m\b", " am"),
        (r"'re\b", " are"),
        (r"'ll\b", " will"),
        (r"'ve\b", " have"),
        (r"'s\b", " is"),
        (r"'d\b", " would"),
        (r"\b(?:she|he|her|his|him|hers|herself|himself)\b", "he"),
    ],
    "zh": [("[您妳]", "你"), ("[她它牠祂]", "他")],
}


@cache
def _same(language: str) -> list[tuple[re.Pattern[str], str]]:
    base = language.replace("_", "-").split("-")[0].lower()
    return [(re.compile(pattern), written) for pattern, written in _SAME.get(base, [])]


def leak_key(text: str, language: str) -> str:
    """`blind_key`, blind too to what a near-copy of a sentence changes: contractions, and the gender in a pronoun.

    Args:
        text: one sentence.
        language: its code; English and Chinese have such rules, and other languages get `blind_key`.
    """
    rules = _same(language)
    if rules:
        text = _APOSTROPHE.sub("'", text).casefold()
        for pattern, written in rules:
            text = pattern.sub(written, text)
    return blind_key(text)

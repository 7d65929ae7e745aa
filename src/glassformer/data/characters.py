"""What single characters tell of a text: invisible ones, and the scripts it is written in."""

import re
import unicodedata
from functools import cache
from itertools import groupby

from glassformer.text.script import LATIN, SCRIPTS, UNSPACED, base_code

# Zero-width and bidirectional marks, and the soft hyphen; the joiners U+200C and U+200D are apart, below.
_CONTROL = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
_SPACE = re.compile("[\t-\r\x1c-\x1f\x85\u2028\u2029]+")
# Joiners spell words in Arabic and Indic scripts and make one emoji of several; anywhere else they are litter.
_JOINED = "[\u0590-\u1fff\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]"
_JOINER = re.compile(f"(?<!{_JOINED})[\u200c\u200d]+|[\u200c\u200d]+(?!{_JOINED})")


def strip_control(text: str) -> str:
    """The text without control and zero-width characters; a tab or a line break within it becomes one space."""
    if text.isascii() and text.isprintable():
        return text
    return _JOINER.sub("", _CONTROL.sub("", _SPACE.sub(" ", text)))


_ASCII_LETTER = re.compile("[A-Za-z]")


class _Scripts(dict[str, str]):
    """The script of a letter, as the first word of its Unicode name; empty for anything else."""

    def __missing__(self, char: str) -> str:
        name = unicodedata.name(char, "") if char.isalpha() else ""
        self[char] = name.removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ").split(" ")[0]
        return self[char]


_SCRIPT = _Scripts()


def scripts_in(text: str) -> set[str]:
    """The scripts of the text's letters, such as `LATIN` and `CJK`."""
    if text.isascii():
        return {"LATIN"} if _ASCII_LETTER.search(text) else set()
    return set(map(_SCRIPT.__getitem__, text)) - {""}


@cache
def own_scripts(language: str) -> set[str]:
    """The scripts that a language is written in; one without an entry in `SCRIPTS` is taken as Latin."""
    return SCRIPTS.get(base_code(language), LATIN)


def script_share(text: str, language: str) -> float:
    """The share of the text's words that are in its language's script, from 0 to 1; 1 where it holds no letter.

    As in `detect_language`, a letter of a script without spaces is a word, and so is a run of letters of another.

    Args:
        text: any text.
        language: its code, for `own_scripts`.
    """
    own = own_scripts(language)
    found = scripts_in(text)
    if found <= own:
        return 1.0
    if not found & own:
        return 0.0
    words = {True: 0, False: 0}
    for script, run in groupby(map(_SCRIPT.__getitem__, text)):
        if script:
            words[script in own] += sum(1 for _ in run) if script in UNSPACED else 1
    return words[True] / (words[True] + words[False])

"""Telling languages apart by the script they are written in."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

# A script is the first word of its characters' Unicode names; "CJK" is that of the Han characters.
SCRIPTS = {
    "ar": {"ARABIC"},
    "el": {"GREEK"},
    "fa": {"ARABIC"},
    "he": {"HEBREW"},
    "hi": {"DEVANAGARI"},
    "ja": {"CJK", "HIRAGANA", "KATAKANA"},
    "ko": {"HANGUL", "CJK"},
    "ru": {"CYRILLIC"},
    "th": {"THAI"},
    "uk": {"CYRILLIC"},
    "zh": {"CJK"},
}
LATIN = {"LATIN"}
UNSPACED = {"CJK", "HIRAGANA", "KATAKANA"}


def detect_language(text: str, languages: Sequence[str]) -> str:
    """Chooses the language whose script holds most of the text's words.

    A character of a script without spaces counts as a word, and so does a run of letters of any other script: 我用
    Python 写代码 is Chinese, though most of its letters are Latin.

    Args:
        text: any text.
        languages: codes such as `zh` or `zh-TW`, at least one; a code without an entry in `SCRIPTS` is taken as Latin.

    Returns:
        One of `languages`; the earliest of them where the text does not tell.
    """
    words: Counter[str] = Counter()
    for script, run in groupby(text, _script):
        if script:
            words[script] += sum(1 for _ in run) if script in UNSPACED else 1

    def share(language: str) -> int:
        return sum(words[script] for script in SCRIPTS.get(base_code(language), LATIN))

    return max(languages, key=share)


def base_code(language: str) -> str:
    """`zh` for `zh`, `zh-TW` and `zh_Hans`."""
    return language.replace("_", "-").split("-")[0].lower()


def _script(character: str) -> str:
    """The script of a letter; empty for anything else."""
    return unicodedata.name(character, "").split(" ")[0] if character.isalpha() else ""

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
    words = _words_by_script(text)
    return max(languages, key=lambda language: sum(words[script] for script in _scripts(language)))


def is_already(text: str, target: str, source: str) -> bool:
    """Whether a text that is to be translated is in the target language as it stands, as far as its script tells.

    It is when it has words of the target's script and none of the source's; or few, where that is Latin, since names
    and terms in Latin letters stand in texts of every script: three characters or more to each such word.

    Args:
        text: any text.
        target, source: codes of languages; of two that share a script nothing is told.
    """
    if _scripts(target) & _scripts(source):
        return False
    words = _words_by_script(text)
    own, other = (sum(words[script] for script in _scripts(language)) for language in (target, source))
    return own > 0 and (other == 0 or (_scripts(source) == LATIN and 3 * other <= own))


def _words_by_script(text: str) -> Counter[str]:
    words: Counter[str] = Counter()
    for script, run in groupby(text, _script):
        if script:
            words[script] += sum(1 for _ in run) if script in UNSPACED else 1
    return words


def _scripts(language: str) -> set[str]:
    return SCRIPTS.get(base_code(language), LATIN)


def base_code(language: str) -> str:
    """`zh` for `zh`, `zh-TW` and `zh_Hans`."""
    return language.replace("_", "-").split("-")[0].lower()


def _script(character: str) -> str:
    """The script of a letter; empty for anything else."""
    return unicodedata.name(character, "").split(" ")[0] if character.isalpha() else ""

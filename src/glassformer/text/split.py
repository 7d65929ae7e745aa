"""Sentences of a text: `"".join(text + separator)` over them is the input, whatever the input.

A stop of a script without spaces (。！？；) ends a sentence by itself; a Latin one needs a blank and something that can
open a sentence behind it, and no abbreviation before it. Where this is in doubt the text stays in one piece: two
sentences at once are translated a little worse, half a sentence much worse.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from glassformer.text.abbreviations import NEVER_LAST, NUMBERED, ORDINALS, SELDOM_LAST, STARTERS
from glassformer.text.lazy import lazy
from glassformer.text.patterns import Patterns, find
from glassformer.text.recipe import SPACELESS
from glassformer.text.script import base_code


class Sentence(NamedTuple):
    """A sentence, and what stands between it and the next one: blanks, a line break, or nothing."""

    text: str
    separator: str


_CLOSERS = r"”’»›\)\]\}）］】〕〉》」』｝〞＂"
_OPENERS = r"“‘«‹\(\[\{（［【〔〈《「『｛〝¿¡"
_BREAKS = r"\n\r\t\v\f\x1c-\x1e\x85\u2028\u2029"
# A match begins only where a run does, here and below: a run of a million is looked at once, not once for each begin.
_BREAK = lazy(rf"(?<!\s)[^\S{_BREAKS}]*+[{_BREAKS}]\s*")
_WIDE = rf"[{SPACELESS}]"
_STOP = lazy(
    rf"[.．!?。！？；｡؟۔।॥…⋯‼⁇⁈⁉]+(?P<closed>(?:[{_CLOSERS}]|[\"'](?=\s|$)|\"(?=\"|{_WIDE})|</[A-Za-z][\w.-]{{0,20}}>)*)"
    rf"(?P<blank>\s*)"
)
_STRONG = lazy("[。！？；｡؟۔।॥‼⁇⁈⁉]")
_OPENING = lazy(rf"(?:<[A-Za-z][^<>\n]{{0,100}}>|[{_OPENERS}\"'*_—–\-•·])*\s*")
_CONTINUES = lazy("[，、；：,;:.!?！？。）)】》」』”’~～]")
_SPEECH = lazy("と(?!ころ|にかく|ても)|って|[^，。！？；：“「\\s]{0,8}?[说說道问問答喊叫]")
_WORD = lazy(r"[^\W_]")
_LAST_TOKEN = lazy(rf"[^\s(\[{{“‘\"'«（【《「/—–{SPACELESS}]{{1,24}}$")
_NEXT_WORD = lazy(r"[^\W\d_]+")
# What no stop inside may part: a title, an aside.
_BRACKETED = lazy(
    r"《[^《》\n]{0,200}》|〈[^〈〉\n]{0,100}〉|（[^（）\n]{0,200}）|\([^()\n]{0,200}\)|【[^【】\n]{0,200}】|\[[^\[\]\n]{0,200}\]"
)


def split(
    text: str,
    language: str | None = None,
    *,
    split_above: float = 0,
    max_length: int | None = None,
    length_of: Callable[[str], int] = len,
    patterns: Patterns = (),
) -> list[Sentence]:
    """Splits a text into sentences.

    No sentence is blank or has blanks around it, but for a first one that is empty where the text begins with blanks.

    Args:
        text: any text; line breaks and tabs end a sentence.
        language: its language, such as `zh` or `de`; it only tells whether "3." may be an ordinal.
        split_above: what stands between two line breaks stays in one piece unless `length_of` says more than this.
        max_length: sentences of which `length_of` says more are split further: at clause marks, else at blanks, else
            between words of scripts without spaces, else anywhere; between a letter and its accents only if need be.
        length_of: the length of a text, such as its tokens.
        patterns: regular expressions of further texts without a sentence's end in them, as for `protect`.
    """
    sentences: list[Sentence] = []
    start = len(text) - len(text.lstrip())
    if start:
        sentences.append(Sentence("", text[:start]))
    for end, following in _ends(text, start, language, patterns, lambda block: length_of(block) > split_above):
        sentence = Sentence(text[start:end], text[end:following])
        if max_length is not None and length_of(sentence.text) > max_length:
            sentences += _shorten(sentence, max_length, length_of, patterns)
        else:
            sentences.append(sentence)
        start = following
    return sentences


def _ends(
    text: str, start: int, language: str | None, patterns: Patterns, is_long: Callable[[str], bool]
) -> Iterator[tuple[int, int]]:
    """Where each sentence ends, and where the next one begins."""
    while start < len(text):
        found = _BREAK.search(text, start)
        end = found.start() if found else len(text.rstrip())
        block = text[start:end]
        if is_long(block):
            for stop, following in _ends_in_line(block, language, patterns):
                yield start + stop, start + following
        start = found.end() if found else len(text)
        yield end, start


def _ends_in_line(line: str, language: str | None, patterns: Patterns) -> Iterator[tuple[int, int]]:
    whole = _Ranges([*((f.start, f.end) for f in find(line, patterns)), *(m.span() for m in _BRACKETED.finditer(line))])
    last_word = max((match.start() for match in _WORD.finditer(line)), default=-1)
    start, quotes, counted = 0, 0, 0
    for match in _STOP.finditer(line):
        end, following = match.end("closed"), match.end()
        if following > last_word:
            return
        quotes, counted = quotes + line.count('"', counted, end), end
        if match["closed"].endswith('"') and following == end and quotes % 2:
            # A straight quote with no blank behind it opens what follows if it is the first of a pair.
            end = following = end - 1
            quotes, counted = quotes - 1, end
        if following > start and not whole.hold(end) and _is_end(line, start, match, end, following, language):
            yield end, following
            start = following


def _is_end(line: str, start: int, match: re.Match[str], end: int, following: int, language: str | None) -> bool:
    stops = line[match.start() : match.start("closed")]
    blank, closed = following > end, bool(match["closed"])
    if _CONTINUES.match(line, following) or (closed and not blank and _SPEECH.match(line, following)):
        return False
    if _STRONG.search(stops):
        return True
    before = line[match.start() - 1 : match.start()]
    opened = _OPENING.match(line, following)
    opening = line[opened.end() : opened.end() + 1] if opened else ""
    wide = bool(re.match(_WIDE, opening))
    if not blank:
        # Chinese typed with Latin stops; "3.5" and "example.com" have no wide neighbour.
        return wide and (stops.strip("!?.") == "" and ("!" in stops or "?" in stops or bool(re.match(_WIDE, before))))
    if not opening or opening.islower():
        return False
    if stops not in (".", "．"):
        return True
    return not _is_abbreviation(line, start, match.start(), opened.end() if opened else following, language)


def _is_abbreviation(line: str, start: int, stop: int, following: int, language: str | None) -> bool:
    """Whether the full stop at `stop` belongs to the word before it rather than to the sentence."""
    found = _LAST_TOKEN.search(line, max(start, stop - 24), stop)
    if not found:
        return False
    token = found[0]
    after = _NEXT_WORD.match(line, following)
    opens = after is not None and after[0] in STARTERS
    digit = line[following : following + 1].isdigit()
    if token.isdigit():
        ordinal = language is not None and base_code(language) in ORDINALS and len(token) <= 2
        return found.start() == start or (ordinal and not opens)
    name = token.capitalize() if token.isupper() and len(token) > 1 else token
    if name in NEVER_LAST:
        return True
    if name.lower() in NUMBERED and (digit or (after is not None and re.fullmatch("[IVXLC]{1,6}", after[0]))):
        return True
    if name in SELDOM_LAST or re.fullmatch(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}", token):
        return not opens
    if re.fullmatch(r"[^\W\d_](?:-[^\W\d_])?", token) and token[0].isupper():
        # An initial, as in "J. Smith".
        return not opens and not re.match(_WIDE, token)
    return False


class _Ranges:
    """Stretches of a text, to ask whether a place lies inside of one."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(ranges):
            if not self._ends or start >= self._ends[-1]:
                self._starts.append(start)
                self._ends.append(end)
            else:
                self._ends[-1] = max(end, self._ends[-1])

    def hold(self, place: int) -> bool:
        index = bisect_left(self._starts, place) - 1
        return index >= 0 and place < self._ends[index]


_WEAK_STOP = lazy(rf"(?<![.!?])[.!?]++[{_CLOSERS}\"']*+(?=\s)|[。！？；…⋯]+[{_CLOSERS}]*")
_CLAUSE_END = lazy(r"[，；：、]+[”’」』）]*|(?<![,;:])[,;:]++[”’\"')]*+(?=\s)|——|(?<=\s)[—–-]+(?=\s)")
_BLANK = lazy(r"\s+")
_REACH = 64
_HEAD = 8


def _shorten(
    sentence: Sentence, max_length: int, length_of: Callable[[str], int], patterns: Patterns
) -> Iterator[Sentence]:
    """Halves a sentence, at the best place near its middle, until each part is short enough or one character."""
    text = sentence.text
    whole = _Ranges([(f.start, f.end) for f in find(text, patterns)])
    ranks = [
        [match.end() for match in pattern.finditer(text) if not whole.hold(match.end())]
        for pattern in (_WEAK_STOP, _CLAUSE_END, _BLANK)
    ]

    def is_long(start: int, stop: int) -> bool:
        # The head of a long part tells mostly, without reading all of it again at each halving.
        head = start + _HEAD * max_length
        if head < stop and not whole.hold(head) and length_of(text[start:head]) > max_length:
            return True
        return length_of(text[start:stop]) > max_length

    waiting = [(0, len(text))]
    while waiting:
        start, end = waiting.pop()
        part = text[start:end].rstrip()
        stop = start + len(part)
        if len(part) > 1 and is_long(start, stop):
            cut = _cut(text, start, stop, ranks, whole)
            while text[cut].isspace():
                cut += 1
            waiting += [(cut, end), (start, cut)]
        else:
            yield Sentence(part, text[stop:end] + (sentence.separator if end == len(text) else ""))


def _cut(text: str, start: int, stop: int, ranks: list[list[int]], whole: _Ranges) -> int:
    """A place of the highest rank that leaves an eighth on either side, else of any; the nearest to the middle."""
    middle, margin = (start + stop) // 2, (stop - start) // 8
    for low, high in (start + margin, stop - margin), (start, stop):
        for places in ranks:
            first, last = bisect_right(places, low), bisect_left(places, high)
            if first < last:
                index = bisect_left(places, middle, first, last)
                return min(places[max(first, index - 1) : min(last, index + 1)], key=lambda place: abs(place - middle))
    near = range(max(start + 1, middle - _REACH), min(stop, middle + _REACH + 1))
    apart = [place for place in sorted(near, key=lambda place: abs(place - middle)) if not _joined(text, place)]
    between_words = (p for p in apart if re.search(_WIDE, text[p - 1 : p + 1]) and not whole.hold(p))
    return next(between_words, apart[0] if apart else middle)


def _joined(text: str, place: int) -> bool:
    """Whether the characters around a place are one to the reader: accents, surrogates, joined or modified emoji."""
    left, right = text[place - 1], text[place]
    return (
        unicodedata.category(right) in ("Mn", "Mc", "Me")
        or "\u200d" in (left, right)
        or "\U0001f3fb" <= right <= "\U0001f3ff"
        or ("\U0001f1e6" <= left <= "\U0001f1ff" and "\U0001f1e6" <= right <= "\U0001f1ff")
        or ("\ud800" <= left <= "\udbff" and "\udc00" <= right <= "\udfff")
        or (left == "\r" and right == "\n")
    )

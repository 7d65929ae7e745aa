"""What has to survive translation byte for byte: where placeholders, tags, URLs and their like stand in a text."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from glassformer.errors import UserError
from glassformer.text.lazy import lazy

Patterns = Sequence[str]

_URL = r"(?:[\w\-.~:/?#@!$&'*+,;=%]|\([\w\-.~:/?#@!$&'*+,;=%]*\))*(?:[\w\-~/#&=%+]|\([\w\-.~:/?#@!$&'*+,;=%]*\))"
# Elsewhere in a URL its own script ends it, since Chinese follows a URL without a blank.
_CHINESE_HOST = r"(?:(?:[\u3400-\u9fff]{1,63}\.)+(?=[A-Za-z\d]))?"
_FLAGS = "disabled|checked|selected|hidden|required|readonly|async|defer|autofocus|open|controls|loop|muted"
_ATTRIBUTE = rf"""(?:[\w:@.-]+\s*=\s*(?:"[^"<>\n]*"|'[^'<>\n]*'|[^\s"'<>=`]+)|(?:{_FLAGS})\b)"""
_TAG = rf"</?[A-Za-z][\w:.-]*(?:\s+{_ATTRIBUTE})*\s*/?>|</?\d{{1,3}}/?>|<!--[^\n]{{0,300}}?-->"
# Earlier ones win. Every quantifier that could meet a megabyte either is bounded or cannot start inside its own run.
_KINDS = {
    "code": r"``[^`\n]{1,200}``|`(?! )[^`\n]{1,200}(?<! )`",
    "tag": _TAG,
    "url": rf"(?i:\b(?:https?|ftps?|wss?|file)://{_CHINESE_HOST}|(?<![\w.@/-])www\.(?=\w)|\bmailto:(?=\w)){_URL}"
    rf"|(?<![\w.@/-])(?:[A-Za-z0-9-]+\.)+[A-Za-z]{{2,}}/{_URL}",
    "email": r"(?<![\w.%+-])[\w.%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}",
    "path": r"(?<![\w.~/-])(?:(?:~|\.{1,2})(?:/[\w.+-]+)+|(?:/[\w.+-]+){2,})/?(?<!\.)"
    r"|(?<!\w)[A-Za-z]:\\[\w.+\-\\]*(?<![.\\])",
    "entity": r"&(?:[A-Za-z]\w{1,31}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});",
    "braces": r"\{\{\{?[^{}\n]{1,100}\}?\}\}|[$#%]\{[^{}\n]{1,100}\}|\{ ?[^{}\s]{0,60} ?\}",
    "percent": r"%\([A-Za-z_]\w{0,60}\)[#0+-]*\d{0,3}(?:\.\d{1,3})?[diouxXeEfFgGcrsa]|%%|(?<!\d)%[A-Za-z_]\w{0,60}%"
    r"|(?<!\d)%(?:\d{1,2}\$)?[-+#0]*\d{0,3}(?:\.\d{1,3})?(?:hh|h|ll|l|L|q|j|z|t)?[@sdifuxXoeEgGcpn](?![A-Za-z]{3})",
    "variable": r"\$[A-Za-z_]\w*",
    "escape": r"\\[nrt](?![a-z])",
}
_BUILT_IN = lazy("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()), re.ASCII)
_NEEDED = lazy(r"[`<:/.@&{%$\\]")  # most lines hold none of these, and so nothing built in


class Found(NamedTuple):
    """Where a text to be protected stands; `kind` is one of those above, or "pattern" for a user's own."""

    start: int
    end: int
    kind: str


def find(text: str, patterns: Patterns = ()) -> list[Found]:
    """What is to be protected in `text`, in order and without overlaps.

    Args:
        text: any text.
        patterns: regular expressions of further texts to protect; they go before the built-in kinds.

    Raises:
        UserError: a pattern that is no regular expression.
    """
    found: list[Found] = []
    for pattern in patterns:
        matches = (match.span() for match in _compiled(pattern).finditer(text))
        found = disjoint([*found, *(Found(start, end, "pattern") for start, end in matches if end > start)])
    if _NEEDED.search(text):
        found = disjoint([*found, *(Found(*m.span(), str(m.lastgroup)) for m in _BUILT_IN.finditer(text))])
    return found


def disjoint(found: list[Found]) -> list[Found]:
    """`found` in the order of the text, without those that overlap one listed before them."""
    kept: list[Found] = []
    for candidate in found:
        place = bisect_left(kept, candidate)
        if (place == 0 or kept[place - 1].end <= candidate.start) and (
            place == len(kept) or candidate.end <= kept[place].start
        ):
            kept.insert(place, candidate)
    return kept


def pair_tags(tags: Sequence[Sequence[str] | None]) -> list[int | None]:
    """The number of each tag's other half; None for one without. Pairs never cross.

    Args:
        tags: for each its slash before the name, its name, and its slash at the end; None for one that is always alone.
    """
    partners: list[int | None] = [None] * len(tags)
    waiting: list[tuple[int, str]] = []
    names = Counter[str]()  # of those waiting: without it, closing tags of another name would look through all of them
    for number, tag in enumerate(tags):
        if tag is None or (tag[2] and not tag[0]):
            continue
        closing, name, _ = tag
        if not closing:
            waiting.append((number, name))
            names[name] += 1
        while closing and names[name]:
            opening, other = waiting.pop()
            names[other] -= 1
            if other == name:
                partners[opening], partners[number] = number, opening
                break
    return partners


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(f"pattern {pattern!r}: not a regular expression ({error})") from None

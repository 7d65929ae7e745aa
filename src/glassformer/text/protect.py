"""Placeholders, tags, URLs and their like: masked before the model, back exactly once after it.

A small model may drop, copy twice or garble whatever stands for them, so a mask is only the first means. The second is
repair: `Protected.restore` takes any text at all and returns one that holds each protected text exactly once, byte for
byte. The mask decides how often it gets the place right; the repair sees to it that nothing is ever lost.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, zip_longest

from glassformer.errors import UserError
from glassformer.text.glossary import WIDE, Term, capitalised, holds, opens_sentence
from glassformer.text.lazy import lazy
from glassformer.text.masks import LITERAL, MASK, key, literal_pattern, mask_pattern, masks
from glassformer.text.patterns import Found, Patterns, disjoint, find, pair_tags
from glassformer.text.recipe import SPACELESS

_TAG = lazy(r"<(/?)([\w:.-]+)(?:[^<>]*[^/<>])?(/?)>", re.ASCII)
# A tag without a partner that is none of these is more likely a placeholder, as in "<name> is online".
_HTML = lazy(
    r"a|b|i|u|s|p|em|strong|span|div|small|su[bp]|code|pre|[bh]r|img|wbr|li|[uo]l|t[dhr]|table|h[1-6]|font|mark|q|"
    r"blockquote|body|html|center",
    re.IGNORECASE,
)
_BLANKS = " \u00a0\u3000"
_STOPS = "。．.！!？?…；;，,：:"
_WORD = lazy(r"\w")
_JOINS = lazy(r"[A-Za-z_\d/\\%$&=#~+@-]")
_SPACELESS = lazy(f"[{SPACELESS}]")


@dataclass(frozen=True)
class Span:
    """A protected text, and what stands for it.

    Attributes:
        text: what has to come back, byte for byte; neighbours without anything between them are one span.
        mask: what the model reads in its place.
        start: where the mask stands in `Protected.text`.
        tight: whether no blank belongs to its left, and to its right.
        term: whether `text` is the translation of a term, which may stand elsewhere by itself and be written again.
    """

    text: str
    mask: str
    start: int
    tight: tuple[bool, bool]
    term: bool = False


@dataclass(frozen=True)
class Protected:
    """A text whose protected parts are masked.

    Attributes:
        text: what the model reads.
        spans: what is masked in it, in the source's order.
        prefix, suffix: tags around the whole, which the model never sees.
        style: how masks are spelled.
    """

    text: str
    spans: tuple[Span, ...] = ()
    prefix: str = ""
    suffix: str = ""
    style: str = MASK

    @property
    def plain(self) -> str:
        """The text without its masks."""
        return "".join(self._gaps)

    @property
    def has_words(self) -> bool:
        """Whether there is a letter to translate outside of the spans."""
        return any(map(str.isalpha, self.plain))

    def held_by(self, translation: str) -> bool:
        """Whether a translation of the text without masks holds those of all its terms."""
        return all(holds(translation, span.text) for span in self.spans if span.term)

    def map(self, function: Callable[[str], str]) -> Protected:
        """The same spans in a text changed by `function`, which sees only what is outside of them."""
        first, *gaps = map(function, self._gaps)
        text, spans = first, []
        for span, gap in zip(self.spans, gaps, strict=True):
            spans.append(replace(span, start=len(text)))
            text += span.mask + gap
        return replace(self, text=text, spans=tuple(spans))

    def restore(self, translation: str) -> str:
        """`translation` with each span's text in it exactly once, and otherwise unchanged but for blanks.

        A mask may come back in the other case, in full-width forms or with blanks in it. Copies beyond the first stand
        in for spans that are missing, else they go; those of a term become terms, and one that begins a sentence gets
        its capital. What is still missing is put at the same end of the text, beside
        the same neighbour, or at the same fraction of its length. Tags that would cross take the source's order.
        """
        if not self.spans:
            return self.prefix + translation + self.suffix
        text, placed = self._locate(translation)
        missing = set(range(len(self.spans))) - {index for _, index in placed}
        for index in sorted(missing):
            self._insert(index, text, placed)
        order = self._nested([index for _, index in placed])
        edges = [0, *(offset for offset, _ in placed), len(text)]
        gaps = self._closed_up([text[start:end] for start, end in pairwise(edges)], order)
        result, last = "", None
        for gap, index in zip_longest(gaps, order):
            for chunk, own in ((gap, None), ("" if index is None else self.spans[index].text, index)):
                if own is not None and self.spans[own].term and opens_sentence(result, text):
                    chunk = capitalised(chunk)
                if chunk:
                    result += self._space(result, last, chunk, own, missing) + chunk
                    last = own
        return self.prefix + result + self.suffix

    @cached_property
    def _gaps(self) -> tuple[str, ...]:
        """The text before, between and after the masks."""
        ends = [0, *(span.start + len(span.mask) for span in self.spans)]
        starts = [*(span.start for span in self.spans), len(self.text)]
        return tuple(self.text[end:start] for end, start in zip(ends, starts, strict=True))

    @cached_property
    def _tags(self) -> list[list[tuple[int, int]]]:
        """For each span its tags that have a partner: their own number and the partner's, in the source's order."""
        owners = [(i, tag) for i, span in enumerate(self.spans) for tag in _TAG.finditer(span.text)]
        tags: list[list[tuple[int, int]]] = [[] for _ in self.spans]
        for number, partner in enumerate(pair_tags([tag.group(1, 2, 3) for _, tag in owners])):
            if partner is not None:
                tags[owners[number][0]].append((number, partner))
        return tags

    def _locate(self, translation: str) -> tuple[str, list[tuple[int, int]]]:
        """The translation without masks, and (offset, span) of those found in it, in the translation's order."""
        literals = tuple(span.text for span in self.spans if not span.term)
        matches = list(literal_pattern(literals).finditer(translation)) if literals else []
        pattern = mask_pattern(self.style, literals)
        untouched = {match[0] for gap in self._gaps for match in pattern.finditer(gap)}
        edges = [0, *(place for match in matches for place in match.span()), len(translation)]
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            matches += (match for match in pattern.finditer(translation, start, end) if match[0] not in untouched)
        matches.sort(key=re.Match.start)
        exact, loose = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        for index, span in enumerate(self.spans):
            exact[span.mask].append(index)
            if not span.term:
                exact[span.text].append(index)
            loose[key(span.mask)].append(index)
        waiting = set(range(len(self.spans)))
        owner: dict[int, int] = {}
        for table, spelling in ((exact, str), (loose, key)):
            for match in matches:
                own = next((i for i in table.get(spelling(match[0]), ()) if i in waiting), None)
                if own is not None and match.start() not in owner:
                    owner[match.start()] = own
                    waiting.remove(own)
        spare = [match.start() for match in matches if match.start() not in owner]
        owner.update(zip(spare, sorted(waiting), strict=False))

        text, placed, end, strip = "", list[tuple[int, int]](), 0, False
        for match in matches:
            place = owner.get(match.start())
            if place is None:
                place = next((i for i in loose.get(key(match[0]), ()) if self.spans[i].term), None)
            if place is None and match[0] not in exact and key(match[0]) not in loose:
                continue
            gap = translation[end : match.start()]
            text += gap.lstrip(_BLANKS) if strip else gap
            end, strip = match.end(), False
            if place is not None:
                if self.spans[place].tight[0]:
                    text = text[: max(len(text.rstrip(_BLANKS)), placed[-1][0] if placed else 0)]
                placed.append((len(text), place))
                strip = self.spans[place].tight[1]
            elif text and not text[-1].isspace():
                # Without a blank, what stood around a copy could spell another one.
                text, strip = text + " " * (translation[end : end + 1] not in ("", *_BLANKS)), False
            else:
                strip = True
        rest = translation[end:]
        return text + (rest.lstrip(_BLANKS) if strip else rest), placed

    def _closed_up(self, gaps: list[str], order: list[int]) -> list[str]:
        """`gaps` without the blanks between a term and its neighbour where neither's script has any."""
        terms = ["", *(self.spans[i].text if self.spans[i].term else "" for i in order), ""]
        closed = []
        for before, gap, after in zip(terms, gaps, terms[1:], strict=False):
            if after and WIDE.match(after) and WIDE.match((gap.rstrip(_BLANKS) or before)[-1:]):
                gap = gap.rstrip(_BLANKS)
            if before and WIDE.match(before[-1]) and WIDE.match(gap.lstrip(_BLANKS) or after):
                gap = gap.lstrip(_BLANKS)
            closed.append(gap)
        return closed

    def _insert(self, index: int, text: str, placed: list[tuple[int, int]]) -> None:
        """Gives a missing span, all spans before it being placed, a place in `text`."""
        slot = {i: number for number, (_, i) in enumerate(placed)}
        before, after = "".join(self._gaps[: index + 1]), "".join(self._gaps[index + 1 :])
        if index and not _WORD.search(self._gaps[index]):
            placed.insert(slot[index - 1] + 1, (placed[slot[index - 1]][0], index))
            return
        if index + 1 in slot and not _WORD.search(self._gaps[index + 1]):
            placed.insert(slot[index + 1], (placed[slot[index + 1]][0], index))
            return
        low = placed[slot[index - 1]][0] if index else 0
        later = [placed[slot[i]][0] for i in range(index + 1, len(self.spans)) if i in slot]
        high = next((offset for offset in later if offset >= low), len(text))
        if not _WORD.search(before):
            offset = 0
        elif not _WORD.search(after):
            offset = len(text.rstrip(_STOPS + _BLANKS)) if after.strip() else len(text)
        else:
            offset = len(text) * len(before) // len(before + after)
            stops = [place for place, character in enumerate(text) if character in _STOPS and low <= place <= high]
            if stops and after.lstrip()[:1] in tuple(_STOPS):
                offset = min(stops, key=lambda place: abs(place - offset))
            else:
                offset = _boundary(text, offset, self._opens(index))
        offset = min(max(offset, low), high)
        number = bisect_left([o for o, _ in placed], offset)
        placed.insert(max(number, slot[index - 1] + 1) if index else number, (offset, index))

    def _nested(self, order: list[int]) -> list[int]:
        """`order`, in which tags that cross have been put back into the source's order."""
        expected: list[int] = []
        for number, partner in (tag for index in order for tag in self._tags[index]):
            if number < partner:
                expected.append(partner)
            elif not expected or expected.pop() != number:
                break
        else:
            return order
        tagged = iter(sorted(index for index in order if self._tags[index]))
        return [next(tagged) if self._tags[index] else index for index in order]

    def _opens(self, index: int) -> bool:
        tags = list(_TAG.finditer(self.spans[index].text))
        return bool(tags) and not tags[-1][1]

    def _space(self, left: str, left_span: int | None, right: str, right_span: int | None, missing: set[int]) -> str:
        """The blank that a span needs so as not to run into its neighbour."""
        if not left or not right or left[-1].isspace() or right[0].isspace() or left_span is right_span is None:
            return ""
        if (left_span is not None and self.spans[left_span].tight[1]) or (
            right_span is not None and self.spans[right_span].tight[0]
        ):
            return ""
        if _JOINS.match(left[-1]) and _JOINS.match(right[0]):
            return " "
        if any(i in missing and not _TAG.search(self.spans[i].text) for i in (left_span, right_span) if i is not None):
            both = left_span is not None and right_span is not None
            return " " if both or _spaced(left[-1] if left_span is None else right[0], left_span is None) else ""
        return ""


def protect(text: str, *, mask: str = MASK, patterns: Patterns = (), terms: Sequence[Term] = ()) -> Protected:
    """Masks what has to survive translation.

    Args:
        text: one sentence.
        mask: how masks are spelled, `{}` being their number; or `LITERAL`. The text's own "X1" is never taken for one.
        patterns: regular expressions of further texts to protect.
        terms: to come back as their translations, unless they are in something else protected; none with `LITERAL`.

    Raises:
        UserError: a pattern that is no regular expression, or a mask without `{}`.
    """
    if mask != LITERAL and mask.count("{}") != 1:
        raise UserError(f"mask {mask!r}: must hold {{}} once, for a number")
    found = find(text, patterns)
    found = _everywhere(text, found) if found else []
    translations = {term.start: term.translation for term in terms if mask != LITERAL}
    if translations:
        found = disjoint([*found, *(Found(term.start, term.end, "term") for term in terms)])
    if not found:
        return Protected(text, style=mask)
    lead, trail = _wrapping(text, found)
    begin = found[lead - 1].end if lead else 0
    end = found[trail].start if trail < len(found) else len(text)
    if lead:
        begin += len(text[begin:end]) - len(text[begin:end].lstrip())
    if trail < len(found):
        end = begin + len(text[begin:end].rstrip())
    prefix, suffix = text[:begin], text[end:]

    names = masks(text, mask)
    masked, spans = "", list[Span]()
    for first, last in _runs(found[lead:trail]):
        beside = bool(spans) and begin == first.start  # of two spans one is a term then
        masked += text[begin : first.start]
        begin = last.end
        literal = text[first.start : begin]
        left, right = "" if beside else masked[-1:], "" if begin in translations else text[begin:end][:1]
        touches = [bool(_JOINS.match(side)) for side in (left, right)]
        # A blank keeps a mask from running into a word, a number or what would spell another placeholder.
        apart = [mask != LITERAL and touch for touch in (touches[0] or beside, touches[1])]
        tags = list(_TAG.finditer(literal))
        closes = literal.startswith("</") and bool(left.strip())
        opens = bool(tags) and tags[-1].end() == len(literal) and not tags[-1][1] and bool(right.strip())
        masked += " " * apart[0]
        name = literal if mask == LITERAL else next(names)
        if term := first.kind == "term":  # one of a script without blanks gets those that its translation needs
            touches = [
                touch and not WIDE.match(edge) for touch, edge in zip(touches, literal[0] + literal[-1], strict=True)
            ]
        tight = (touches[0] or closes, touches[1] or opens)
        spans.append(Span(translations[first.start] if term else literal, name, len(masked), tight, term))
        masked += name + " " * apart[1]
    return Protected(masked + text[begin:end], tuple(spans), prefix, suffix, mask)


def _everywhere(text: str, found: list[Found]) -> list[Found]:
    """`found` and what is spelled like it elsewhere: else restoring could not tell which of them was meant."""
    literals = {text[f.start : f.end] for f in found}
    # Looked up by first character and length: a pattern of thousands of literals would try each of them at each place.
    lengths: dict[str, list[int]] = {}
    for first, length in sorted({(literal[0], len(literal)) for literal in literals}, key=lambda pair: -pair[1]):
        lengths.setdefault(first, []).append(length)
    first_of_any = re.compile("[" + "".join(map(re.escape, sorted(lengths))) + "]")
    again = []
    edges = [0, *(place for f in found for place in (f.start, f.end)), len(text)]
    for place, end in zip(edges[::2], edges[1::2], strict=True):
        while match := first_of_any.search(text, place, end):
            start = match.start()
            stops = (start + length for length in lengths[match[0]])
            stop = next((stop for stop in stops if stop <= end and text[start:stop] in literals), None)
            if stop is not None:
                again.append(Found(start, stop, "again"))
            place = stop or start + 1
    return sorted([*found, *again])


def _runs(found: list[Found]) -> Iterator[tuple[Found, Found]]:
    """The first and the last of each run without anything in between; a term is a run by itself."""
    first: Found | None = None
    for this, following in zip(found, [*found[1:], None], strict=False):
        first = first or this
        if following is None or this.end < following.start or "term" in (this.kind, following.kind):
            yield first, this
            first = None


def _wrapping(text: str, found: list[Found]) -> tuple[int, int]:
    """How many of `found` lead the text, and where those begin that end it: tags with no partner in between."""
    matches = [_TAG.fullmatch(text, f.start, f.end) for f in found]
    partners = pair_tags([match and match.group(1, 2, 3) for match in matches])

    def strippable(index: int, inside: range) -> bool:
        match, partner = matches[index], partners[index]
        if match is None or (partner is None and not match[3] and not _HTML.fullmatch(match[2])):
            return False
        return partner is None or partner not in inside

    edges = [0, *(place for f in found for place in (f.start, f.end)), len(text)]
    gaps = [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
    lead = 0
    while lead < len(found) and matches[lead] and not gaps[lead].strip():
        lead += 1
    trail = len(found)
    while trail > lead and matches[trail - 1] and not gaps[trail].strip():
        trail -= 1
    while True:
        inside = range(lead, trail)
        first = next((i for i in range(lead) if not strippable(i, inside)), lead)
        last = next((i + 1 for i in reversed(range(trail, len(found))) if not strippable(i, inside)), trail)
        if (first, last) == (lead, trail):
            return lead, trail
        lead, trail = first, last


def _boundary(text: str, target: int, opens: bool) -> int:
    """The place between words that is nearest to `target`: before a word for an opening tag, else behind one."""

    def fits(place: int) -> bool:
        if place in (0, len(text)):
            return True
        left, right = text[place - 1], text[place]
        if (right if opens else left).isspace() or unicodedata.category(right).startswith("M"):
            return False
        within = _WORD.match(left) and _WORD.match(right)
        return not within or bool(_SPACELESS.match(left) or _SPACELESS.match(right))

    places = (target + sign * distance for distance in range(len(text) + 1) for sign in (1, -1))
    return next(place for place in places if 0 <= place <= len(text) and fits(place))


def _spaced(neighbour: str, before: bool) -> bool:
    """Whether a text put in gets a blank on the side of `neighbour`, which stands before or behind it."""
    return (neighbour.isalnum() and not _SPACELESS.match(neighbour)) or (before and neighbour in ",.;:!?)")

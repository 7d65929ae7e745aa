"""What stands around a model that translates sentences, so that it translates lines: as many out as in, in order.

A line is split into sentences, what has to survive in them is masked, and the answers are put together as the line was:

    translate_batch = lambda parts: [model(part.protected.text) for part in parts]
    for line in translate_text(lines, translate_batch, split_above=60, max_length=200, length_of=tokens_in):
        print(line.translation)

It knows no model: `translate_batch` is any function from sentences to as many answers. A line's result follows from the
line alone as long as a sentence's answer follows from the sentence alone, or from its line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, starmap
from operator import eq
from typing import Any, NamedTuple

from glassformer.text.glossary import Term
from glassformer.text.lazy import lazy
from glassformer.text.masks import MASK
from glassformer.text.patterns import Patterns
from glassformer.text.protect import Protected, protect
from glassformer.text.recipe import SPACELESS
from glassformer.text.split import split

SPLIT_ABOVE = 60
"""Tokens: a line up to this long is best left whole, since models learn lines of two or three short sentences, too."""


class Draft(NamedTuple):
    """A model's answer to one sentence.

    Attributes:
        text: the translation, with the masks in it that the model copied.
        truncated: whether the sentence or the translation was cut to a limit.
        details: whatever the caller wants to find again in `Part.draft`, such as scores and an n-best list.
        others: further translations, which have to hold a glossary's terms as `text` has.
    """

    text: str
    truncated: bool = False
    details: Any = None
    others: Sequence[str] = ()


@dataclass(frozen=True)
class Part:
    """One sentence of a line.

    Attributes:
        source: the sentence as it stands in the line.
        separator: what stands between it and the next one there.
        protected: what the model reads, and how to put back what is masked in it.
        termed: the same with the terms of a glossary masked, too: what it reads if an answer lacks one of them.
        upper: whether the sentence was in capitals and was shown to the model in small letters.
        draft: the model's answer; None where there was nothing to translate.
        repetition: the answer repeats itself, longer than the source does.
        line: the number of the line, from 0.
        index: how many sentences of the line go before it to the model.
    """

    source: str
    separator: str
    protected: Protected
    upper: bool = False
    draft: Draft | None = None
    repetition: bool = False
    termed: Protected | None = field(default=None, compare=False)
    line: int = field(default=0, compare=False)
    index: int = field(default=0, compare=False)

    def finish(self, answer: str) -> str:
        """The translation that an answer stands for, on one line; the source if the answer is blank."""
        text = _UNPRINTABLE.sub(" ", answer).strip()
        if not text and self.protected is not self.termed:
            return self.source
        return self.protected.restore(text.upper() if self.upper else text or self.protected.text)

    @property
    def masked(self) -> Part:
        """The sentence as it is asked for again: with its terms masked."""
        return replace(self, protected=self.termed or self.protected)

    @property
    def lacks_terms(self) -> bool:
        """Whether a term of a glossary is neither masked in what the model read nor translated as it must be."""
        if self.draft is None or self.termed is None or self.protected is self.termed:
            return False
        return not all(map(self.termed.held_by, (self.draft.text, *self.draft.others)))

    @property
    def translation(self) -> str:
        return self.source if self.draft is None else self.finish(self.draft.text)

    @property
    def truncated(self) -> bool:
        return self.draft is not None and self.draft.truncated

    @property
    def untranslated(self) -> bool:
        """Whether there is no answer, or the answer is the source again (a few Latin words may be a name)."""
        if self.draft is None:
            return False
        answer, source = (text.casefold().split() for text in (self.draft.text, self.protected.text))
        if not answer:
            return True
        return "".join(answer) == "".join(source) and (
            len(source) > 3 or bool(_WIDE_LETTER.search(self.protected.plain))
        )


TranslateBatch = Callable[[Sequence[Part]], Sequence[Draft | str]]
FindTerms = Callable[[int, str], Sequence[Term]]


class Segment(NamedTuple):
    """A sentence and its translation, and where they begin in their lines."""

    source: str
    translation: str
    source_start: int
    translation_start: int


@dataclass(frozen=True)
class Line:
    """A line and its translation.

    Attributes:
        source: the line, with U+FFFD for halves of surrogate pairs.
        translation: "" for a blank line; it holds a line break only where the source does.
        parts: its sentences; none where there was nothing to translate.
    """

    source: str
    translation: str
    parts: tuple[Part, ...] = ()

    @property
    def truncated(self) -> bool:
        return any(part.truncated for part in self.parts)

    @property
    def repetition(self) -> bool:
        return any(part.repetition for part in self.parts)

    @property
    def untranslated(self) -> bool:
        return any(part.untranslated for part in self.parts)

    def answered(self, parts: Sequence[Part]) -> Line:
        """The line with these answers to its sentences."""
        if not parts:
            return self
        return replace(self, translation="".join(map("".join, _joined(parts))), parts=tuple(parts))

    @property
    def segments(self) -> Iterator[Segment]:
        """The sentences of the line with their translations."""
        start = translated = 0
        for part, (text, separator) in zip(self.parts, _joined(self.parts), strict=True):
            yield Segment(part.source, text, start, translated)
            start += len(part.source + part.separator)
            translated += len(text + separator)


# Control characters and line breaks, which neither a model nor one line of output has a use for.
_UNPRINTABLE = lazy(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_INVISIBLE = lazy(r"[\x00-\x1f\x7f-\x9f\u00ad\ufeff]+")
_SURROGATE = lazy(r"[\ud800-\udfff]")
_WIDE_LETTER = lazy(f"[{SPACELESS}]")
_WIDE = lazy(rf"[{SPACELESS}\u3000-\u303f\ufe30-\ufe4f\uff00-\uffef]")
_EITHER = "“”‘’\"'…—"  # marks of both kinds of script
_TOKEN = lazy(rf"[{SPACELESS}]|[^\W\d_{SPACELESS}]+|\d+|([^\w\s])\1*|\S")
_LONGEST_WORD = 20
_LONGEST_UNIT = 20
_MOST_REPEATS = 3


def translate_text(
    lines: Iterable[str],
    translate_batch: TranslateBatch,
    *,
    language: str | None = None,
    split_above: float = 0,
    max_length: int | None = None,
    length_of: Callable[[str], int] = len,
    mask: str | None = MASK,
    patterns: Patterns = (),
    terms: FindTerms | None = None,
    restore_case: bool = False,
    retry_batch: TranslateBatch | None = None,
    batch_sentences: int = 1024,
) -> Iterator[Line]:
    """Translates lines, one out for each one in.

    Args:
        lines: read only as far as needed: 16 sentences at first, then ever more, for early results and big batches.
        translate_batch: translates `part.protected.text`, never blank, of each sentence.
        language: the source language, for the splitter.
        split_above: a line, or what stands between line breaks in it, that is no longer by `length_of` stays whole.
        max_length: longest sentence by `length_of`; longer ones are split further. None leaves them whole.
        length_of: the length of what the model would read, such as its tokens.
        mask: how masks are spelled (see `protect`); None protects nothing.
        patterns: regular expressions of further texts to protect.
        terms: a glossary's terms in a sentence of a line, by its number from 0. An answer that lacks the translation of
            one is asked for again with all of them masked, so `mask` must be one that is not `LITERAL`.
        restore_case: show the model sentences in capitals in small letters, and put the answers in capitals.
        retry_batch: asked once, with another search, for the sentences whose answer repeats itself.
        batch_sentences: most sentences given to `translate_batch` at once; 1 answers each line before reading another.
    """
    size = min(16, batch_sentences)
    prepare = Preparation(language, split_above, max_length, length_of, mask, patterns, restore_case, terms)
    prepared = starmap(prepare.line, enumerate(lines))
    while chunk := list(_chunk(prepared, size)):
        waiting = [part for line in chunk for part in line.parts if part.protected.has_words]
        drafted = answers(waiting, translate_batch, retry_batch, batch_sentences)
        for line in chunk:
            yield line.answered([next(drafted) if part.protected.has_words else part for part in line.parts])
        size = min(2 * size, batch_sentences)


def repeats(text: str) -> int:
    """How often, at most, a unit of up to 20 words (or characters of scripts without spaces) stands in a row."""
    tokens: list[str] = []
    for match in _TOKEN.finditer(text.casefold()):
        # A loop inside of one long word is one of its letters.
        tokens += match[0] if len(match[0]) > _LONGEST_WORD and match[0].isalpha() else [match[0]]
    most = min(1, len(tokens))
    for size in range(1, min(_LONGEST_UNIT, len(tokens) // 2) + 1):
        same = bytes(map(eq, tokens[size:], tokens))
        most = max(most, max(map(len, same.split(b"\0"))) // size + 1)
    return most


class Preparation(NamedTuple):
    """How lines become sentences, with the options of `translate_text`."""

    language: str | None
    split_above: float
    max_length: int | None
    length_of: Callable[[str], int]
    mask: str | None
    patterns: Patterns
    restore_case: bool
    terms: FindTerms | None = None

    def line(self, number: int, line: str) -> Line:
        """A line, by its number from 0, in sentences that are still to be translated."""
        line = _SURROGATE.sub("\ufffd", line)
        if not line.strip():
            return Line(line, "")
        if not self._protect(line).has_words:
            return Line(line, line)
        sentences = split(
            line,
            self.language,
            split_above=self.split_above,
            max_length=self.max_length,
            length_of=lambda text: self.length_of(self._protect(text).text),
            patterns=self.patterns,
        )
        parts, index = list[Part](), 0
        for sentence in sentences:
            parts.append(self._part(*sentence, number, index))
            index += parts[-1].protected.has_words
        return Line(line, "", tuple(parts))

    def _protect(self, text: str, terms: Sequence[Term] = ()) -> Protected:
        if self.mask is None:
            return Protected(text)
        return protect(text, mask=self.mask, patterns=self.patterns, terms=terms)

    def _part(self, source: str, separator: str, line: int, index: int) -> Part:
        protected = self._protect(source).map(_visible)
        upper = self.restore_case and _in_capitals(protected.plain)
        terms = self.terms(line, source) if self.terms else ()
        termed = self._protect(source, terms).map(_visible) if terms else None
        if upper:
            protected, termed = _in_small_letters(protected), termed and _in_small_letters(termed)
        return Part(source, separator, protected, upper, termed=termed, line=line, index=index)


def _chunk(lines: Iterator[Line], size: int) -> Iterator[Line]:
    """Lines until they hold `size` sentences, and `size` of them at most."""
    sentences = 0
    for line in islice(lines, size):
        yield line
        sentences += len(line.parts)
        if sentences >= size:
            return


def answers(
    parts: list[Part], translate_batch: TranslateBatch, retry_batch: TranslateBatch | None, size: int
) -> Iterator[Part]:
    """The parts with their drafts, `size` asked for at a time; arguments as in `translate_text`."""
    for start in range(0, len(parts), size):
        batch = parts[start : start + size]
        answered = _answered(batch, translate_batch)
        lacking = [index for index, part in enumerate(answered) if part.lacks_terms]
        if lacking:
            for index, part in zip(
                lacking, _answered([batch[i].masked for i in lacking], translate_batch), strict=True
            ):
                answered[index] = part
        looping = [index for index, part in enumerate(answered) if part.repetition]
        if looping and retry_batch is not None:
            for index, part in zip(looping, _answered([batch[i].masked for i in looping], retry_batch), strict=True):
                if not part.repetition and not part.untranslated:
                    answered[index] = part
        yield from answered


def _answered(parts: list[Part], translate_batch: TranslateBatch) -> list[Part]:
    drafts = translate_batch(parts)
    return [
        _drafted(part, Draft(draft) if isinstance(draft, str) else draft)
        for part, draft in zip(parts, drafts, strict=True)
    ]


def _drafted(part: Part, draft: Draft) -> Part:
    times = repeats(draft.text)
    looping = times > _MOST_REPEATS and times > repeats(part.protected.text)
    return replace(part, draft=draft, repetition=looping)


def _joined(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """Each part's translation, and what stands between it and the next one."""
    texts = [part.translation for part in parts]
    separators = [*map(_between, parts, parts[1:], texts, texts[1:]), *(part.separator for part in parts[-1:])]
    return list(zip(texts, separators, strict=True))


def _between(left: Part, right: Part, before: str, after: str) -> str:
    """The separator of two translated sentences: blanks between scripts with spaces, none beside one without."""
    separator = left.separator
    if (left.draft is None and right.draft is None) or separator.strip(" \u3000"):
        return separator
    if not before or not after or after[0] in ",.;:!?)":
        return separator
    last, first = before.rstrip(_EITHER)[-1:], after.lstrip(_EITHER)[:1]
    if _WIDE.match(last) or _WIDE.match(first):
        return ""
    if separator:
        return separator.replace("\u3000", " ")
    within_word = all(c.isalnum() and not _WIDE.match(c) for c in (left.source[-1], right.source[0]))
    return "" if within_word else " "


def _visible(text: str) -> str:
    return _INVISIBLE.sub("", text)


def _in_capitals(text: str) -> bool:
    """Whether the text is several words, all of capitals; one alone may be an acronym."""
    return text.isupper() and len(text.split()) > 1 and all(c.isupper() for c in text if c.isalpha())


def _in_small_letters(protected: Protected) -> Protected:
    """The text in small letters but for its first."""
    started = False

    def change(text: str) -> str:
        nonlocal started
        start = next((i for i, c in enumerate(text) if c.isalpha()), len(text)) if not started else 0
        capital = text[: start + 1] if not started else ""
        started = started or start < len(text)
        return capital + text[len(capital) :].lower()

    return protected.map(change)

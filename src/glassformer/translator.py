"""Translating lines with a model: as many out as in, in order."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from glassformer.decoding import Decoding, check_streamed
from glassformer.errors import UserError
from glassformer.generate.constraints import Constraints, limits
from glassformer.generate.events import Token, collect
from glassformer.generate.hypothesis import Hypothesis
from glassformer.generate.processors import BannedWords, NoRepeatNgram, Processor
from glassformer.sentences import Direction, Row, SentenceModel, checked, direction_of
from glassformer.text.glossary import Glossary
from glassformer.text.live import LiveLine
from glassformer.text.masks import MASK
from glassformer.text.pipeline import (
    SPLIT_ABOVE,
    Draft,
    Part,
    Preparation,
    TranslateBatch,
    answers,
    translate_text,
)
from glassformer.text.stream import StreamDecoder
from glassformer.text.tags import Element, carry_tags, strip_tags
from glassformer.text.words import spellings
from glassformer.translation import Choice, Translation, own_answer, record_of

if TYPE_CHECKING:
    from glassformer.generate.align import Link

log = logging.getLogger(__name__)

LONGEST_SENTENCE = 128
"""Tokens: a sentence above this is cut at clause marks; few models have learnt from longer ones."""
RETRY_NGRAM = 3
"""What may not be repeated when a translation that went round in circles is tried again."""


class Translator(SentenceModel):
    """An encoder–decoder with its tokenizer, and what stands around them so that lines come out as they went in.

    Attributes:
        model: the torch module, in eval mode, float32.
        engine: what computes.
        tokenizer: text to ids and back.
        directions: the (source, target) language codes it was trained for; empty when the model does not say.
    """

    def translate(
        self,
        text: str | Iterable[str],
        to: str | None = None,
        source: str | None = None,
        *,
        prefix: str | Sequence[str] | None = None,
        details: bool = False,
        **options: Any,
    ) -> Any:
        """Translates a text, or each of many; a blank text gives "".

        Args:
            text: one text, or several.
            to, source, options: as in `translate_lines`.
            prefix: what the translation begins with; for several texts, as many prefixes.
            details: return `Translation` records rather than strings.

        Returns:
            For one text, its translation; for several, a list of as many in their order.

        Raises:
            UserError: an option out of its range, languages the model does not know, or something that is not text.
        """
        one = isinstance(text, str)
        texts = [text] if isinstance(text, str) else list(text)
        prefixes = [prefix] if isinstance(prefix, str) else prefix
        for number, each in enumerate(texts, 1):
            checked(each, number)
        records = self.translate_lines(texts, to, source, prefixes=prefixes, **options)
        answers: list[Any] = [record if details else record["translation"] for record in records]
        return answers[0] if one else answers

    def translate_lines(
        self,
        lines: Iterable[str],
        to: str | None = None,
        source: str | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        glossary: Glossary | Mapping[str, str] | None = None,
        banned: Sequence[str] = (),
        split_above: float | None = SPLIT_ABOVE,
        mask: str | None = MASK,
        patterns: Sequence[str] = (),
        alignments: bool = False,
        alignment_layers: Sequence[int] | None = None,
        alignment_heads: Sequence[int] | None = None,
        batch_tokens: int = 4000,
        batch_sentences: int = 1024,
        **decoding: Any,
    ) -> Iterator[Translation]:
        """Translates lines as they come: one record out for each line in, in order, whatever the lines hold.

        Args:
            lines: read only as far as needed, so they may be endless.
            to: target language; None where the model has one, or else by each line's script.
            source: source language; None likewise.
            prefixes: what each line's translation begins with, blank for no matter what. In a line that has one,
                nothing is protected.
            glossary: terms whose translations are forced wherever a sentence holds the term; needs beam search.
            banned: words that are never written.
            split_above: a line of more tokens is translated sentence by sentence; one with a line break in it always
                is. None never splits: what is too long for the model is cut, and `truncated` says so.
            mask: how placeholders, URLs, tags and their like are masked (`glassformer.text.protect`); None protects
                nothing. Tags around words go around the words that say the same.
            patterns: regular expressions of further texts to protect.
            alignments: tell which words of a line and its translation say the same.
            alignment_layers, alignment_heads: where that is read, as in `align_texts`.
            batch_tokens: bound on a batch's padded source tokens times the beam size; it changes speed and memory only.
            batch_sentences: most sentences read ahead; 1 answers each line before reading another.
            decoding: options of `Decoding`, such as `beam_size`, `n_best` or `temperature`.

        Raises:
            UserError: an option out of its range, languages the model does not know; on iteration, forced text that
                does not fit under the length limit.
        """
        if batch_tokens < 1:
            raise UserError(f"--batch-tokens {batch_tokens}: must be 1 or more")
        job = _Job(
            Decoding(**decoding),
            self.possible_directions(source, to),
            glossary if isinstance(glossary, Glossary) or glossary is None else Glossary(glossary),
            self._banning(banned),
            batch_tokens,
            alignments,
            partial(self.links, layers=alignment_layers, heads=alignment_heads),
        )
        if glossary is not None and job.decoding.sampling is not None:
            raise UserError("--glossary: forced terms need beam search; leave out --temperature and the filters")
        if prefixes is not None:
            lines = list(lines)
            if len(prefixes) != len(lines):
                raise UserError(f"--prefix-file: {len(prefixes)} prefixes for {len(lines)} lines; give one for each")
        options = self._splitting(job, split_above, patterns) | {"batch_sentences": batch_sentences}
        return self._translated(lines, prefixes, job, mask, options)

    def stream(
        self,
        text: str,
        to: str | None = None,
        source: str | None = None,
        *,
        prefix: str = "",
        banned: Sequence[str] = (),
        split_above: float | None = SPLIT_ABOVE,
        mask: str | None = MASK,
        patterns: Sequence[str] = (),
        beam_size: int | None = None,
        **decoding: Any,
    ) -> Iterator[str]:
        """Translates a text and yields its translation in pieces, each as soon as nothing can change it any more.

        Joined, the pieces are what `translate` gives with `beam_size=1`, or with the same seed. A sentence that holds
        something masked, or that begins to repeat itself, comes in one piece, and so does a text with tags in it.

        Args:
            text, to, source, banned, split_above, mask, patterns, decoding: as in `translate_lines`.
            prefix: what the translation begins with.
            beam_size: 1; a beam may change all that it has written.

        Raises:
            UserError: as `translate_lines`; a beam.
        """
        check_streamed(beam_size)
        chosen = Decoding(beam_size=1, **decoding)
        if chosen.seed is None:  # a second try has to begin like the first
            chosen = replace(chosen, seed=secrets.randbits(63))
        job = _Job(chosen, self.possible_directions(source, to), None, self._banning(banned), 1, False, self.links)
        options = self._splitting(job, split_above, patterns)
        pieces = self._streamed(_Asked(1, checked(text, 1), prefix), job, None if prefix.strip() else mask, options)
        return filter(None, pieces)

    def _streamed(self, asked: _Asked, job: _Job, mask: str | None, options: dict[str, Any]) -> Iterator[str]:
        opened, text = _opened(asked, job, mask)
        if opened.tagged:
            yield from (record["translation"] for record in self._translated([asked.text], None, job, mask, options))
            return
        live = LiveLine(Preparation(mask=mask, restore_case=not asked.prefix.strip(), **options).line(0, text))
        for part in live.line.parts:
            if part.protected.has_words:
                part = yield from self._written(part, opened, job, live)
            yield live.settle(part)
        yield live.finish()
        self._warn(job)

    def _written(self, part: Part, asked: _Asked, job: _Job, live: LiveLine) -> Generator[str, None, Part]:
        """Tells the answer to a sentence as it comes, and returns the sentence with it."""
        if kept := job.keep(part, asked):
            return replace(part, draft=kept)
        row = self.read(part.protected.text, asked.direction)
        job.cut.update([asked.number] * row.cut)
        processors, forced = [*job.decoding.processors, *job.processors], self._forced(job, asked, part, row)
        events, ids, answer, looping = [], [], "", False
        decoder = StreamDecoder(self.tokenizer.target)
        for event in self.engine.stream([row.ids], job.decoding.left_to_right, self.request(processors, [forced])):
            events.append(event)
            if isinstance(event, Token) and event.id != self._eos:
                ids.append(event.id)
                # From the first repetition on, a second try writes something else.
                last = ids[-RETRY_NGRAM:]
                looping = looping or any(ids[i : i + RETRY_NGRAM] == last for i in range(len(ids) - RETRY_NGRAM))
                if not looping:
                    answer += decoder.feed(event.id)
                    yield live.write(part, answer)
        draft = self._draft(collect(events, job.decoding.length_penalty)[0], row.cut)
        return next(answers([part], lambda parts: [draft], self._retry(job, {part.line: asked}), 1))

    def _translated(
        self,
        lines: Iterable[str],
        prefixes: Sequence[str] | None,
        job: _Job,
        mask: str | None,
        options: dict[str, Any],
    ) -> Iterator[Translation]:
        if prefixes is None:
            asked = (_Asked(number, line, "") for number, line in enumerate(lines, 1))
            yield from self._records(asked, job, {"mask": mask, "restore_case": job.glossary is None, **options})
        else:
            # Repair of what is protected could put a placeholder before the prefix, so such lines go another way.
            everything = list(map(_Asked, range(1, len(prefixes) + 1), lines, prefixes))
            free = self._records(
                (asked for asked in everything if not asked.prefix.strip()),
                job,
                {"mask": mask, "restore_case": job.glossary is None, **options},
            )
            forced = self._records((a for a in everything if a.prefix.strip()), job, {"mask": None, **options})
            for prefix in prefixes:
                yield next(forced if prefix.strip() else free)
        self._warn(job)

    def _records(self, asked: Iterable[_Asked], job: _Job, options: dict[str, Any]) -> Iterator[Translation]:
        known: dict[int, _Asked] = {}

        def lines() -> Iterator[str]:
            for index, line in enumerate(asked):
                known[index], text = _opened(line, job, options["mask"])
                yield text

        drafts, retry = partial(self._drafts, job, known), self._retry(job, known)
        translated = translate_text(lines(), drafts, retry_batch=retry, **options)
        for index, line in enumerate(translated):
            asked_for, record = known.pop(index), record_of(line, job.decoding.n_best)
            if asked_for.tagged:
                texts = [candidate["translation"] for candidate in record["n_best"]]
                links = job.links(record["source"], texts, asked_for.direction)
                for candidate, answer, of_answer in zip(record["n_best"], texts, links, strict=True):
                    candidate["translation"] = carry_tags(asked_for.text, answer, of_answer)
                record["source"], record["translation"] = asked_for.text, record["n_best"][0]["translation"]
            if job.alignments:
                from glassformer.generate.align import to_pharaoh

                (found,) = job.links(record["source"], [record["translation"]], asked_for.direction)
                record["alignment"] = to_pharaoh(found)
            yield record

    def _retry(self, job: _Job, known: Mapping[int, _Asked]) -> TranslateBatch | None:
        """How a sentence whose translation went round in circles is tried again, unless that is forbidden already."""
        if job.decoding.no_repeat_ngram is not None:
            return None
        return partial(self._drafts, replace(job, processors=(*job.processors, NoRepeatNgram(RETRY_NGRAM))), known)

    def _splitting(self, job: _Job, split_above: float | None, patterns: Sequence[str]) -> dict[str, Any]:
        """How lines are split into sentences, as options of `translate_text`."""
        if split_above is not None and not split_above >= 0:
            raise UserError(f"--split-above {split_above}: must be 0 or more")
        room = None if self.source_limit is None else self.source_limit - 2
        longest = LONGEST_SENTENCE if room is None else min(LONGEST_SENTENCE, room)
        return {
            "language": job.directions[0][0] if len(job.directions) == 1 else None,
            "split_above": math.inf if split_above is None else min(split_above, longest),
            "max_length": None if split_above is None else longest,
            "length_of": lambda text: len(self.tokenizer.encode(text)),
            "patterns": patterns,
        }

    def _warn(self, job: _Job) -> None:
        for texts, what in (
            (job.cut, f"cut to the model's limit of {self.source_limit} tokens"),
            (job.kept, "in the target language already, left as it is; is another --from or --to meant?"),
        ):
            if texts:
                more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
                log.warning("text %d%s: %s", min(texts), more, what)

    def _drafts(self, job: _Job, known: Mapping[int, _Asked], parts: Sequence[Part]) -> list[Draft]:
        """The answer to each sentence: the model's, unless it is in the target language already."""
        kept = [job.keep(part, known[part.line]) for part in parts]
        parts = [part for part, draft in zip(parts, kept, strict=True) if draft is None]
        rows = [self.read(part.protected.text, known[part.line].direction) for part in parts]
        constraints = [self._forced(job, known[p.line], p, row) for p, row in zip(parts, rows, strict=True)]
        job.cut.update(known[part.line].number for part, row in zip(parts, rows, strict=True) if row.cut)
        found = self.decode(rows, job.decoding, job.processors, constraints, job.batch_tokens)
        drafts = (self._draft(hypotheses, row.cut) for hypotheses, row in zip(found, rows, strict=True))
        return [next(drafts) if draft is None else draft for draft in kept]

    def _draft(self, hypotheses: list[Hypothesis], cut: bool) -> Draft:
        by_text: dict[str, float] = {}
        for hypothesis in hypotheses:
            by_text.setdefault(self.tokenizer.target.decode(hypothesis.ids), hypothesis.score)
        choices = [Choice(text, score) for text, score in by_text.items()]
        return Draft(choices[0].text, truncated=cut or not hypotheses[0].finished, details=choices)

    def _forced(self, job: _Job, asked: _Asked, part: Part, row: Row) -> Constraints:
        """What the translation of a sentence must hold: its line's prefix if it is the first, and its terms."""
        prefix = asked.prefix.strip() if part.index == 0 else ""
        terms = job.glossary.forced(part.protected.text, asked.direction, self.directions) if job.glossary else []
        encode = self.tokenizer.target.encode
        constraints = Constraints((*self.framing.forced, *encode(prefix)), tuple(tuple(encode(term)) for term in terms))
        if prefix or terms:
            try:
                limits([len(row.ids)], [constraints], job.decoding.max_new_tokens, self.target_limit)
            except UserError as error:
                raise UserError(f"line {asked.number}{str(error).removeprefix('sentence 1')}") from None
        return constraints

    def _banning(self, words: Sequence[str]) -> tuple[Processor, ...]:
        sequences = spellings(self.tokenizer.target, words)
        return (BannedWords(tuple(sequences)),) if sequences else ()


@dataclass(frozen=True)
class _Job:
    """What all lines of one call share; `cut` gathers the numbers of the too long, `kept` of those left as they are."""

    decoding: Decoding
    directions: list[Direction]
    glossary: Glossary | None
    processors: tuple[Processor, ...]
    batch_tokens: int
    alignments: bool
    links: Callable[[str, Sequence[str], Direction | None], list[list[Link]]]
    cut: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)

    def keep(self, part: Part, asked: _Asked) -> Draft | None:
        """A sentence as its own answer, where it is in the target language already and is not forced to begin so."""
        draft = None if asked.prefix.strip() else own_answer(part, asked.direction)
        if draft and len(self.directions) == 1 and replace(part, draft=draft).untranslated:
            self.kept.add(asked.number)
        return draft


class _Asked(NamedTuple):
    """A line by its number, from 1, and what was asked of it."""

    number: int
    text: str
    prefix: str
    direction: Direction | None = None
    tagged: bool = False  # the model reads it without its tags, which are put back by alignment


def _opened(asked: _Asked, job: _Job, mask: str | None) -> tuple[_Asked, str]:
    """What was asked, in its direction; and the line as it is to be split, without tags that are put back later."""
    plain = strip_tags(asked.text) if mask is not None and "<" in asked.text else None
    tagged = plain is not None and bool(plain.text.strip()) and _stand_by_words(plain.elements)
    opened = asked._replace(direction=direction_of(asked.text, job.directions), tagged=tagged)
    return opened, plain.text if plain is not None and tagged else asked.text


def _stand_by_words(elements: Sequence[Element]) -> bool:
    """Whether all tags have a partner or close themselves; another one may stand for a word, as <name> does."""
    return bool(elements) and all(
        (element.closing or element.opening.endswith("/>"))
        and (not element.children or _stand_by_words(element.children))
        for element in elements
    )

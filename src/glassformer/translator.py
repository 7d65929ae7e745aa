"""Translating lines with a model: as many out as in, in order."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from glassformer.decoding import Decoding, check_streamed
from glassformer.errors import UserError
from glassformer.generate.constraints import Constraints, limits
from glassformer.generate.hypothesis import Hypothesis
from glassformer.keywords import check_keywords, sequence_of_texts
from glassformer.sentences import Row, SentenceModel, checked, direction_of
from glassformer.text.glossary import Glossary, Term
from glassformer.text.masks import LITERAL, MASK
from glassformer.text.pipeline import SPLIT_ABOVE, Draft, Part, Preparation, TranslateBatch, answers, translate_text
from glassformer.translation import Asked, Choice, Job, Translation, candidates, line_links, opened, record_of

if TYPE_CHECKING:
    from glassformer.generate.processors import Processor
    from glassformer.text.live import LiveLine

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
        texts = sequence_of_texts("translate", text)
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
            glossary: terms and the translations that they must have. A sentence whose translation lacks one is
                translated again with its terms masked; where nothing is masked, beam search is forced to write them.
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
        own = (Decoding, Translator.translate_lines, Translator.translate)
        check_keywords("translate", decoding, Decoding.__dataclass_fields__, *own)
        job = Job(
            Decoding(**decoding),
            self.possible_directions(source, to),
            None if glossary is None else Glossary.of(glossary),
            self._banning(banned),
            batch_tokens,
            alignments,
            partial(self.links, layers=alignment_layers, heads=alignment_heads),
            masks_terms=mask not in (None, LITERAL),
        )
        if job.glossary and job.decoding.sampling and (prefixes is not None or not job.masks_terms):
            other = "--no-protect" if prefixes is None else "--prefix-file"
            raise UserError(
                f"--glossary with {other}: forced terms need beam search; leave out --temperature and the filters"
            )
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
        glossary: Glossary | Mapping[str, str] | None = None,
        banned: Sequence[str] = (),
        split_above: float | None = SPLIT_ABOVE,
        mask: str | None = MASK,
        patterns: Sequence[str] = (),
        beam_size: int | None = None,
        **decoding: Any,
    ) -> Iterator[str]:
        """Translates a text and yields its translation in pieces, each as soon as nothing can change it any more.

        Joined, the pieces are what `translate` gives with `beam_size=1`, or with the same seed. A sentence that holds
        something masked or a term, or that begins to repeat itself, comes in one piece, and so does a text with tags.

        Args:
            text, to, source, glossary, banned, split_above, mask, patterns, decoding: as in `translate_lines`.
            prefix: what the translation begins with.
            beam_size: 1; a beam may change all that it has written.

        Raises:
            UserError: as `translate_lines`; a beam.
        """
        check_streamed(beam_size)
        check_keywords("stream", decoding, Decoding.__dataclass_fields__, Decoding, Translator.stream)
        chosen = Decoding(beam_size=1, **decoding)
        if chosen.seed is None:  # a second try has to begin like the first
            import secrets

            chosen = replace(chosen, seed=secrets.randbits(63))
        terms = None if glossary is None else Glossary.of(glossary)
        if terms and (prefix.strip() or mask in (None, LITERAL)):
            other = "--prefix-file" if prefix.strip() else "--no-protect"
            raise UserError(
                f"--stream with --glossary and {other}: forced terms need beam search; leave out one of them"
            )
        directions = self.possible_directions(source, to)
        job = Job(chosen, directions, terms, self._banning(banned), 1, False, self.links, masks_terms=True)
        options = self._splitting(job, split_above, patterns)
        pieces = self._streamed(Asked(1, checked(text, 1), prefix), job, None if prefix.strip() else mask, options)
        return filter(None, pieces)

    def _streamed(self, asked: Asked, job: Job, mask: str | None, options: dict[str, Any]) -> Iterator[str]:
        asked, text = opened(asked, direction_of(asked.text, job.directions), mask)
        if asked.tagged:
            yield from (record["translation"] for record in self._translated([asked.text], None, job, mask, options))
            return
        options["terms"] = partial(self._terms, job, {0: asked})
        from glassformer.text.live import LiveLine

        live = LiveLine(Preparation(mask=mask, restore_case=not asked.prefix.strip(), **options).line(0, text))
        for part in live.line.parts:
            if part.protected.has_words:
                part = yield from self._written(part, asked, job, live)
            yield live.settle(part)
        yield live.finish()
        self._warn(job)

    def _written(self, part: Part, asked: Asked, job: Job, live: LiveLine) -> Generator[str, None, Part]:
        """Tells the answer to a sentence as it comes, and returns the sentence with it."""
        if kept := job.keep(part, asked):
            return replace(part, draft=kept)
        row = self.read(part.protected.text, asked.direction)
        job.cut.update([asked.number] * row.cut)
        processors, forced = [*job.decoding.processors, *job.processors], self._forced(job, asked, part, row)
        from glassformer.generate.events import Token, collect
        from glassformer.text.stream import StreamDecoder

        events, ids, answer, looping = [], [], "", False
        decoder = StreamDecoder(self.tokenizer.target)
        for event in self.engine.stream([row.ids], job.decoding.left_to_right, self.request(processors, [forced])):
            events.append(event)
            if isinstance(event, Token) and event.id != self._eos:
                ids.append(event.id)
                # From the first repetition on, a second try writes something else; drawing, as soon as one may follow.
                n = RETRY_NGRAM - (job.decoding.sampling is not None)
                looping = looping or any(ids[i : i + n] == ids[-n:] for i in range(len(ids) - n))
                if not looping:
                    answer += decoder.feed(event.id)
                    yield live.write(part, answer)
        draft = self._draft(collect(events, job.decoding.length_penalty)[0], row.cut)
        known = {part.line: asked}

        def again(parts: Sequence[Part]) -> list[Draft]:
            return [draft] if parts[0] is part else self._drafts(job, known, parts)

        return next(answers([part], again, self._retry(job, known), 1))

    def _translated(
        self,
        lines: Iterable[str],
        prefixes: Sequence[str] | None,
        job: Job,
        mask: str | None,
        options: dict[str, Any],
    ) -> Iterator[Translation]:
        if prefixes is None:
            asked = (Asked(number, line, "") for number, line in enumerate(lines, 1))
            yield from self._records(asked, job, {"mask": mask, **options})
        else:
            # Repair of what is protected could put a placeholder before the prefix, so such lines go another way.
            everything = list(map(Asked, range(1, len(prefixes) + 1), lines, prefixes))
            free = self._records((a for a in everything if not a.prefix.strip()), job, {"mask": mask, **options})
            job = replace(job, masks_terms=False)
            forced = self._records((a for a in everything if a.prefix.strip()), job, {"mask": None, **options}, False)
            for prefix in prefixes:
                yield next(forced if prefix.strip() else free)
        self._warn(job)

    def _records(
        self, asked: Iterable[Asked], job: Job, options: dict[str, Any], restore_case: bool = True
    ) -> Iterator[Translation]:
        known: dict[int, Asked] = {}

        def lines() -> Iterator[str]:
            for index, line in enumerate(asked):
                known[index], text = opened(line, direction_of(line.text, job.directions), options["mask"])
                yield text

        drafts, retry = partial(self._drafts, job, known), self._retry(job, known)
        restore_case = restore_case and (job.glossary is None or job.masks_terms)
        options = {**options, "terms": partial(self._terms, job, known), "restore_case": restore_case}
        translated = translate_text(lines(), drafts, retry_batch=retry, **options)
        for index, line in enumerate(translated):
            asked_for, found = known.pop(index), candidates(line, job.decoding.n_best)
            record, links = record_of(line, found), partial(job.links, direction=asked_for.direction)
            if asked_for.tagged:
                from glassformer.text.tags import carry_tags

                for candidate, (each, _) in zip(record["n_best"], found, strict=True):
                    candidate["translation"] = carry_tags(asked_for.text, each.translation, line_links(each, links))
                record["source"], record["translation"] = asked_for.text, record["n_best"][0]["translation"]
            if job.alignments:
                from glassformer.generate.align import to_pharaoh

                # Tags are words to an alignment, so that of a line with tags is made of the whole.
                whole = [(record["source"], record["translation"])]
                record["alignment"] = to_pharaoh(
                    links(whole)[0] if asked_for.tagged else line_links(found[0][0], links)
                )
            yield record

    def _retry(self, job: Job, known: Mapping[int, Asked]) -> TranslateBatch | None:
        """How a sentence whose translation went round in circles is tried again, unless that is forbidden already."""
        if job.decoding.no_repeat_ngram is not None:
            return None

        def again(parts: Sequence[Part]) -> list[Draft]:
            from glassformer.generate.processors import NoRepeatNgram

            stricter = replace(job, processors=(*job.processors, NoRepeatNgram(RETRY_NGRAM)))
            return self._drafts(stricter, known, parts)

        return again

    def _terms(self, job: Job, known: Mapping[int, Asked], line: int, text: str) -> list[Term]:
        """The terms of a sentence that are to be masked, if its translation should lack one."""
        if job.glossary is None or not job.masks_terms:
            return []
        return job.glossary.find(text, known[line].direction, self.directions)

    def _splitting(self, job: Job, split_above: float | None, patterns: Sequence[str]) -> dict[str, Any]:
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

    def _warn(self, job: Job) -> None:
        for texts, what in (
            (job.cut, f"cut to the model's limit of {self.source_limit} tokens"),
            (job.kept, "in the target language already, left as it is; is another --from or --to meant?"),
        ):
            if texts:
                more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
                import logging

                logging.getLogger(__name__).warning("text %d%s: %s", min(texts), more, what)

    def _drafts(self, job: Job, known: Mapping[int, Asked], parts: Sequence[Part]) -> list[Draft]:
        """The answer to each sentence: the model's, unless it is in the target language already."""
        kept = [job.keep(part, known[part.line]) for part in parts]
        parts = [part for part, draft in zip(parts, kept, strict=True) if draft is None]
        rows = [self.read(part.protected.text, known[part.line].direction) for part in parts]
        constraints = [self._forced(job, known[p.line], p, row) for p, row in zip(parts, rows, strict=True)]
        job.cut.update(known[part.line].number for part, row in zip(parts, rows, strict=True) if row.cut)
        # Equal sentences have one answer, but for samples that no seed makes equal.
        alike = job.decoding.sampling is None or job.decoding.seed is not None
        keys = [(*row.ids, c, -1 if alike else i) for i, (row, c) in enumerate(zip(rows, constraints, strict=True))]
        places = dict(zip(keys, range(len(rows)), strict=True))
        distinct = [rows[place] for place in places.values()], [constraints[place] for place in places.values()]
        decoded = self.decode(distinct[0], job.decoding, job.processors, distinct[1], job.batch_tokens)
        found = dict(zip(places, decoded, strict=True))
        drafts = (self._draft(found[key], row.cut) for key, row in zip(keys, rows, strict=True))
        return [next(drafts) if draft is None else draft for draft in kept]

    def _draft(self, hypotheses: list[Hypothesis], cut: bool) -> Draft:
        by_text: dict[str, float] = {}
        for hypothesis in hypotheses:
            by_text.setdefault(self.tokenizer.target.decode(hypothesis.ids), hypothesis.score)
        choices = [Choice(text, score) for text, score in by_text.items()]
        cut = cut or not hypotheses[0].finished
        return Draft(choices[0].text, truncated=cut, details=choices, others=[choice.text for choice in choices[1:]])

    def _forced(self, job: Job, asked: Asked, part: Part, row: Row) -> Constraints:
        """What the translation of a sentence must hold: its line's prefix if it is the first; terms without masks."""
        prefix, terms = asked.prefix.strip() if part.index == 0 else "", list[str]()
        if job.glossary and not job.masks_terms:
            terms = job.glossary.forced(part.protected.text, asked.direction, self.directions)
        encode = self.tokenizer.target.encode
        constraints = Constraints((*self.framing.forced, *encode(prefix)), tuple(tuple(encode(term)) for term in terms))
        if prefix or terms:
            try:
                limits([len(row.ids)], [constraints], job.decoding.max_new_tokens, self.target_limit)
            except UserError as error:
                raise UserError(f"line {asked.number}{str(error).removeprefix('sentence 1')}") from None
        return constraints

    def _banning(self, words: Sequence[str]) -> tuple[Processor, ...]:
        if not words:
            return ()
        from glassformer.text.words import spellings

        sequences = spellings(self.tokenizer.target, words)
        if not sequences:
            return ()
        from glassformer.generate.processors import BannedWords

        return (BannedWords(tuple(sequences)),)

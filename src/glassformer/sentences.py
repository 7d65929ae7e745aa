"""A model with its tokenizer: sentences in, hypotheses and scores out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from glassformer.decoding import LENGTH_PENALTY, Decoding
from glassformer.engines.engine import Engine
from glassformer.errors import UserError
from glassformer.generate.config import Request
from glassformer.generate.constraints import Constraints
from glassformer.generate.hypothesis import Hypothesis, normalised_score
from glassformer.header import Framing, unwritable_ids
from glassformer.text.script import detect_language

if TYPE_CHECKING:
    from glassformer.generate.align import Link
    from glassformer.generate.processors import Processor
    from glassformer.header import Translation as TranslationInfo
    from glassformer.models.seq2seq import Seq2Seq
    from glassformer.text.tokenizer import Tokenizer

Direction = tuple[str, str]


class TokenScore(TypedDict):
    token: str
    logprob: float


class Score(TypedDict):
    """A given target's score, and the natural log-probability of each of its tokens, `</s>` last."""

    score: float
    tokens: list[TokenScore]


class Row(NamedTuple):
    """A sentence as the model reads it, and whether it was cut to the model's positions."""

    ids: list[int]
    cut: bool


class SentenceModel:
    """An encoder–decoder with its tokenizer.

    Attributes:
        engine: what computes.
        tokenizer: text to ids and back; its `target` is that of translations.
        framing: what stands around texts, in ids.
        directions: the (source, target) language codes it was trained for; empty when the model does not say.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        translation: TranslationInfo | None = None,
        framing: Framing | None = None,
    ) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.framing = framing or Framing.of(tokenizer, "encoder-decoder")
        self.directions = translation.directions if translation else []
        self._translation = translation
        self._start, self._eos = _special(self.framing)
        self._unwritable = unwritable_ids(tokenizer.target, engine.vocab_size, self.framing.banned)
        self.source_limit, self.target_limit = engine.source_limit, engine.target_limit

    @property
    def model(self) -> Seq2Seq:
        """The torch module, in eval mode, float32; an engine without PyTorch reads it when it is first asked for."""
        return self.engine.module

    def possible_directions(self, source: str | None = None, to: str | None = None) -> list[Direction]:
        """The model's directions that fit the languages given.

        Raises:
            UserError: none does; the message lists what the model can do.
        """
        fitting = [(s, t) for s, t in self.directions if source in (None, s) and to in (None, t)]
        if fitting or (source is None and to is None):
            return fitting
        asked = " ".join(f"{flag} {code}" for flag, code in (("--from", source), ("--to", to)) if code is not None)
        able = ", ".join(f"--from {s} --to {t}" for s, t in self.directions)
        raise UserError(
            f"{asked}: this model cannot; " + (f"it can {able}" if able else "it names no languages, so leave that out")
        )

    def one_direction(self, source: str | None = None, to: str | None = None) -> Direction:
        """The direction meant for a whole file: the model's first that fits, since a file is not to be guessed at."""
        fitting = self.possible_directions(source, to)
        if not fitting:
            raise UserError("this model names no languages: save it with its translation's source and target")
        return fitting[0]

    def score(
        self,
        pairs: Iterable[tuple[str, str]],
        to: str | None = None,
        source: str | None = None,
        *,
        length_penalty: float = LENGTH_PENALTY,
        batch_tokens: int = 4000,
    ) -> list[Score]:
        """Scores given targets by teacher forcing, with the formula that search ranks by.

        Raises:
            UserError: as `translate`; and a pair that is longer than the model's positions.
        """
        pairs = list(pairs)
        directions = self.possible_directions(source, to)
        rows = []
        for number, (text, target) in enumerate(pairs, 1):
            row = self.read(checked(text, number), direction_of(text, directions))
            target_ids = [*self.framing.forced, *self.tokenizer.target.encode(checked(target, number))]
            if row.cut:
                raise UserError(
                    f"pair {number}: its source has more than the model's {self.source_limit} tokens; shorten it"
                )
            if self.target_limit is not None and len(target_ids) >= self.target_limit:
                raise UserError(
                    f"pair {number}: its target has more than the model's {self.target_limit} tokens; shorten it"
                )
            rows.append((row.ids, [*target_ids, self._eos]))
        scores: list[Score | None] = [None] * len(rows)
        lengths = [max(len(source), len(target)) for source, target in rows]
        for batch in _batches(lengths, batch_tokens):
            sources, targets = zip(*(rows[i] for i in batch), strict=True)
            for index, logprobs in zip(batch, self.engine.logprobs(sources, targets, self._start), strict=True):
                scores[index] = Score(
                    score=normalised_score(logprobs, length_penalty),
                    tokens=[
                        TokenScore(token=token, logprob=logprob)
                        for token, logprob in zip(self.tokenizer.target.tokens(rows[index][1]), logprobs, strict=True)
                    ],
                )
        return [score for score in scores if score is not None]

    def read(self, text: str, direction: Direction | None) -> Row:
        """A text as source ids, such as `[<2xx>] pieces </s>`, cut to the model's positions."""
        pieces = self.tokenizer.encode(text)
        tag = self._translation.tag(direction[1], self.tokenizer) if self._translation and direction else []
        before, after = (*self.framing.before, *tag), self.framing.after
        room = len(pieces) if self.source_limit is None else self.source_limit - len(before) - len(after)
        return Row([*before, *pieces[:room], *after], cut=len(pieces) > room)

    def request(self, processors: Sequence[Processor], constraints: Sequence[Constraints]) -> Request:
        """What the targets of some sentences are made of."""
        return Request(self._start, self._eos, self._unwritable, self.target_limit, processors, constraints)

    def decode(
        self,
        rows: Sequence[Row],
        decoding: Decoding,
        processors: Sequence[Processor],
        constraints: Sequence[Constraints],
        batch_tokens: int,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence, in batches of like length."""
        found: list[list[Hypothesis]] = [[]] * len(rows)
        processors = [*decoding.processors, *processors]
        room: float = max(1, batch_tokens // decoding.search.beam_size)
        if self.engine.groups_itself(decoding.config, self.request(processors, constraints)):
            room = math.inf
        for batch in _batches([len(row.ids) for row in rows], room):
            request = self.request(processors, [constraints[i] for i in batch])
            hypotheses = self.engine.decode([rows[i].ids for i in batch], decoding.config, request)
            for i, of_one in zip(batch, hypotheses, strict=True):
                found[i] = of_one
        return found

    def links(
        self,
        pairs: Sequence[tuple[str, str]],
        direction: Direction | None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
    ) -> list[list[Link]]:
        """Which words of each text and its translation say the same: `align_texts` in the texts' direction."""
        from glassformer.alignment import align_texts

        tags: list[int] = []
        back = None
        if self._translation and direction:
            tags = self._translation.tag(direction[1], self.tokenizer)
            if direction[::-1] in self.directions:
                back = [self._translation.tag(direction[0], self.tokenizer)] * len(pairs)
        options: dict[str, Any] = {"layers": layers, "heads": heads, "framing": self.framing}
        aligned = align_texts(self.engine, self.tokenizer, pairs, [tags] * len(pairs), back, **options)
        return [alignment.links for alignment in aligned]


def direction_of(text: str, directions: Sequence[Direction]) -> Direction | None:
    """The direction meant for a text: the only one, or that of its script."""
    if len(directions) < 2:
        return directions[0] if directions else None
    source = detect_language(text, [s for s, _ in directions])
    return source, dict(directions)[source]


def _batches(lengths: Sequence[int], batch_tokens: float) -> Iterator[list[int]]:
    """Indices grouped by length, longest first, at most `batch_tokens` padded tokens a group, or one index."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if group and lengths[group[0]] * (len(group) + 1) > batch_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def checked(text: Any, number: int) -> str:
    if not isinstance(text, str):
        raise UserError(f"text {number}: expected a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"text {number}, character {error.start + 1}: half of a surrogate pair, which no encoder accepts"
        ) from None
    return text


def _special(framing: Framing) -> tuple[int, int]:
    """The ids that a target starts and ends with."""
    if framing.start is None or not framing.ends:
        raise UserError(
            "the tokenizer lacks <s> or </s>, which translation needs: add them to its tokenizer.json, or say "
            "framing.start and framing.ends in config.json"
        )
    return framing.start, framing.ends[0]

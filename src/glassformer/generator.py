"""Going on from a prompt with a decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from glassformer.decoding import Decoding
from glassformer.engines.engine import Engine
from glassformer.errors import UserError
from glassformer.generate.config import Request, SamplingConfig
from glassformer.generate.events import Token
from glassformer.generate.processors import Processor, RepetitionPenalty
from glassformer.header import Framing, unwritable_ids
from glassformer.keywords import check_keywords, sequence_of_texts
from glassformer.sentences import checked
from glassformer.text.stream import StreamDecoder

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.text.tokenizer import Tokenizer

MAX_NEW_TOKENS = 256
BATCH = 16
"""Prompts that are read and continued together."""
_NEVER = -1
"""The id of an end that a model never writes."""


class Generator:
    """A decoder with its tokenizer.

    Attributes:
        engine: what computes.
        model: the torch module, in eval mode, float32.
        tokenizer: text to ids and back; None where the source has none, and then no text can be read.
        framing: what stands around texts.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None, framing: Framing | None = None) -> None:
        self.engine, self.tokenizer, self.framing = engine, tokenizer, framing or Framing()

    @property
    def model(self) -> Any:
        """The torch module, in eval mode, float32."""
        return self.engine.module

    def generate(self, prompt: str | Sequence[str], **options: Any) -> Any:
        """What follows a prompt, or each of several; the prompt itself is not repeated.

        Args:
            prompt: one text, or several, each continued as if it were alone.
            options: as in `stream`.

        Returns:
            For one prompt its continuation, for several a list of as many in their order.

        Raises:
            UserError: an option out of its range, a prompt that is longer than the model's positions, or no text.
        """
        prompts = sequence_of_texts("generate", prompt)
        pieces: list[list[str]] = [[] for _ in prompts]
        for index, piece in self._pieces(prompts, **options):
            pieces[index].append(piece)
        answers = ["".join(each) for each in pieces]
        return answers[0] if isinstance(prompt, str) else answers

    def stream(self, prompt: str, **options: Any) -> Iterator[str]:
        """What follows a prompt, in pieces as they come; joined, they are what `generate` gives.

        Args:
            prompt: the text that is gone on from.
            options: `max_new_tokens`, 256 by default; `temperature`, `top_k`, `top_p`, `min_p`, `typical_p` and `seed`
                as in `Decoding`, greedy where none of them is given; `repetition_penalty`, which counts the prompt's
                tokens, too, and `no_repeat_ngram`; `stop`, a text or several, before the first of which the
                continuation ends; `chat`, whether the prompt is what a user says to an assistant, by default where the
                model has a template for that; `system`, what the assistant is told before.

        Raises:
            UserError: as `generate`.
        """
        return (piece for _, piece in self._pieces([prompt], **options))

    def _pieces(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int = MAX_NEW_TOKENS,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] = (),
        chat: bool | None = None,
        system: str | None = None,
        **decoding: Any,
    ) -> Iterator[tuple[int, str]]:
        """The number of a prompt, and the next piece of its continuation; checks at once what can be checked."""
        check_keywords("generate", decoding, Decoding.__dataclass_fields__, Decoding, Generator._pieces)
        chosen = Decoding(beam_size=1, max_new_tokens=max_new_tokens, **decoding)
        penalty = RepetitionPenalty(repetition_penalty)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(stops):
            raise UserError("--stop '': an empty text would end everything; leave it out")
        rows = []
        for number, prompt in enumerate(prompts):
            ids = self._ids(checked(prompt, number + 1), chat, system)
            rows.append(_Row(number, tuple(ids), self._room(number, len(ids), max_new_tokens)))
        job = _Job(chosen.left_to_right, chosen.processors, penalty if penalty.penalty != 1 else None, stops)
        return self._continued(rows, job)

    def _ids(self, prompt: str, chat: bool | None, system: str | None) -> list[int]:
        """A prompt as the model reads it."""
        if self.tokenizer is None:
            raise UserError("this model has no tokenizer, so it reads no text; put its tokenizer.json beside it")
        template = self.framing.chat_template
        if chat is None:
            chat = template is not None or system is not None
        if not chat:
            ids = [*self.framing.before, *self.tokenizer.encode(prompt)] or list(self.framing.ends[:1])
            if not ids:
                raise UserError("an empty prompt, and the model has no token that begins a text; give it a word")
            return ids
        if template is None:
            raise UserError("--chat: this model has no chat template, so it continues text; leave out --chat, --system")
        from glassformer.text.chat import chat_ids

        told = [] if system is None else [{"role": "system", "content": system}]
        return chat_ids(self.tokenizer, template, [*told, {"role": "user", "content": prompt}])

    def _room(self, number: int, length: int, max_new_tokens: int) -> int:
        """How many tokens may follow a prompt: the last one written is not read any more."""
        limit = self.engine.target_limit
        if limit is None:
            return max_new_tokens
        if length > limit:
            raise UserError(
                f"prompt {number + 1}: its {length} tokens are more than the model's {limit} positions; shorten it"
            )
        return min(max_new_tokens, limit - length + 1)

    def _continued(self, rows: Sequence[_Row], job: _Job) -> Iterator[tuple[int, str]]:
        # A limit of length, and a penalty for what a prompt says, belong to a batch: others go into another one.
        def alike(row: _Row) -> tuple[int, tuple[int, ...]]:
            return row.room, row.ids if job.penalty else ()

        ordered = sorted(rows, key=lambda row: (alike(row), len(row.ids)))
        for _, group in groupby(ordered, alike):
            batch = list(group)
            for at in range(0, len(batch), BATCH):
                yield from self._batch(batch[at : at + BATCH], job)

    def _batch(self, rows: Sequence[_Row], job: _Job) -> Iterator[tuple[int, str]]:
        assert self.tokenizer is not None
        ends = self.framing.ends
        banned = sorted(set(unwritable_ids(self.tokenizer, self.engine.vocab_size)) - set(ends))
        steering = [] if job.penalty is None else [_behind(rows[0].ids, job.penalty)]
        request = Request(None, ends[0] if ends else _NEVER, banned, None, [*steering, *job.processors])
        texts = [_Text(StreamDecoder(self.tokenizer, row.ids), ends, job.stops) for row in rows]
        going = set(range(len(rows)))
        config = replace(job.config, max_new_tokens=rows[0].room)
        for event in self.engine.stream([row.ids for row in rows], config, request):
            if event.sentence not in going:
                continue
            text = texts[event.sentence]
            piece = text.feed(event.id) if isinstance(event, Token) else text.finish()
            if piece:
                yield rows[event.sentence].number, piece
            if text.ended:
                going.discard(event.sentence)
                if not going:
                    return


@dataclass(frozen=True)
class _Row:
    """A prompt by its number, as ids, and how many tokens may follow it."""

    number: int
    ids: tuple[int, ...]
    room: int


@dataclass(frozen=True)
class _Job:
    """What all prompts of one call share."""

    config: SamplingConfig
    processors: tuple[Processor, ...]
    penalty: RepetitionPenalty | None
    stops: tuple[str, ...]


def _behind(prompt: Sequence[int], penalty: Processor) -> Processor:
    """A processor that counts the prompt's tokens with those written, since both are one text."""

    def process(ids_NT: Tensor, logits_NV: Tensor) -> Tensor:
        import torch

        read_NS = ids_NT.new_tensor(prompt).expand(len(ids_NT), -1)
        return penalty(torch.cat([read_NS, ids_NT], 1), logits_NV)

    return process


class _Text:
    """The text of one continuation, told as far as nothing can change it, up to its end."""

    def __init__(self, decoder: StreamDecoder, ends: Sequence[int], stops: Sequence[str]) -> None:
        self._decoder, self._ends, self._stops = decoder, ends, stops
        self._held = ""
        self.ended = False

    def feed(self, index: int) -> str:
        """The text that one more token settles."""
        return self.finish() if index in self._ends else self._settled(self._decoder.feed(index))

    def finish(self) -> str:
        """The text that was still held back."""
        text = self._settled(self._decoder.finish())
        if not self.ended:
            text, self.ended = text + self._held, True
        return text

    def _settled(self, more: str) -> str:
        text = self._held + more
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.ended = True
            return text[: min(found)]
        # What may be the beginning of a stop waits for what follows.
        keep = max((n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

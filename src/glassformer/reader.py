"""What every model that labels texts has: rows of ids through it in batches, and its logits back in their order."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypedDict

from glassformer.engines.engine import Engine
from glassformer.errors import UserError
from glassformer.header import Framing

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from glassformer.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

BATCH = 32
READ_AHEAD = 512
"""Texts that are sorted by length together."""


class Failure(TypedDict):
    """Why an input was not read."""

    error: str


class Row(NamedTuple):
    """A text as the model reads it: its ids, their segments, whether it was cut, and what its record needs of it."""

    ids: list[int]
    types: list[int]
    cut: bool
    found: Any = None


class Reader(ABC):
    """A model whose head says something about a text, and its tokenizer.

    Attributes:
        single: types of a single input, where several are a sequence of them.
        reads_images: whether an input is the path of an image, not a text.
        engine: what computes.
        tokenizer: text to ids; None where the model reads images, or the source has none.
        framing: what stands around texts.
        limit: most ids of a text.
    """

    single: ClassVar[tuple[type, ...]]
    reads_images = False

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None = None, framing: Framing | None = None) -> None:
        self.engine, self.tokenizer, self.framing = engine, tokenizer, framing or Framing()
        self.limit = positions(engine)

    @property
    def model(self) -> Any:
        """The torch module, in eval mode, float32."""
        return self.engine.module

    def records(self, inputs: Iterable[Any], *, batch_size: int = BATCH) -> Iterator[Any]:
        """What the model says of any number of inputs, told one by one."""
        check_batch_size(batch_size)
        inputs, read = iter(inputs), 0
        while chunk := list(islice(inputs, max(batch_size, READ_AHEAD))):
            yield from self._texts(chunk, read + 1, batch_size)
            read += len(chunk)

    def _all(self, inputs: Any, batch_size: int) -> Any:
        """A record for each input, or one for a single input."""
        single = isinstance(inputs, self.single)
        if not single and not isinstance(inputs, Iterable):
            raise UserError(f"expected texts, got {type(inputs).__name__}")
        records = list(self.records([inputs] if single else inputs, batch_size=batch_size))
        if failure := next((each for each in records if "error" in each), None):
            raise UserError(str(failure["error"]))
        return records[0] if single else records

    def _texts(self, texts: Sequence[Any], first: int, batch_size: int) -> list[Any]:
        rows = [self._row(text, number) for number, text in enumerate(texts, first)]
        if cut := [number for number, row in enumerate(rows, first) if row.cut]:
            more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
            log.warning("text %d%s: cut to the model's limit of %d tokens", cut[0], more, self.limit)
        found: list[Any] = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
        for at in range(0, len(order), batch_size):
            batch = order[at : at + batch_size]
            for index, logits in zip(batch, self._read([rows[index] for index in batch]), strict=True):
                found[index] = self._told(texts[index], rows[index], logits)
        return found

    @abstractmethod
    def _row(self, given: Any, number: int) -> Row:
        """The row of an input, which is that of a number, counted from 1."""

    @abstractmethod
    def _told(self, given: Any, row: Row, logits: np.ndarray) -> Any:
        """The record of an input, from its own logits; where each token has some, those of padding come last."""

    def _reads_text(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError("this model has no tokenizer, so it reads no text; put its tokenizer.json beside it")
        return self.tokenizer

    def _framed(self, ids: list[int], number: int, found: Any = None) -> Row:
        """The row of one text's ids, cut to the limit."""
        before, after = self.framing.before, self.framing.after
        room = len(ids) if self.limit is None else max(0, self.limit - len(before) - len(after))
        framed = [*before, *ids[:room], *after]
        if not framed:
            raise UserError(f"text {number}: an empty text, and the model has no token that begins one; give it a word")
        return Row(framed, [0] * len(framed), len(ids) > room, found)

    def _read(self, rows: Sequence[Row]) -> np.ndarray:
        """The logits of rows that are read together, each one's first."""
        from glassformer.data.collate import pad

        (ids_BT, mask_BT), (types_BT, _) = pad([row.ids for row in rows], 0), pad([row.types for row in rows], 0)
        segments = getattr(self.model.config.embed, "token_types", 0)
        known = (types_BT.clamp(max=segments - 1),) if segments else ()
        return self._logits(ids_BT, mask_BT, *self._also(rows, ids_BT, known))

    def _also(self, rows: Sequence[Row], ids_BT: Tensor, known: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        """What the model is told of rows besides ids and mask: their segments, where it knows any."""
        return known

    def _logits(self, *inputs: Tensor | None) -> np.ndarray:
        import torch

        device = next(self.model.parameters()).device
        precision = torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.engine.precision == "bf16")
        with torch.inference_mode(), precision:
            logits: np.ndarray = (
                self.model(*(each if each is None else each.to(device) for each in inputs)).float().cpu().numpy()
            )
        return logits


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits over the last axis, in float64."""
    import numpy as np

    scores = logits.astype(np.float64)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    probabilities: np.ndarray = scores / scores.sum(-1, keepdims=True)
    return probabilities


def positions(engine: Engine) -> int | None:
    """Most ids of a text that a model of one stack reads; None when there is no limit."""
    return engine.target_limit if engine.source_limit is None else engine.source_limit


def check_batch_size(batch_size: int) -> None:
    """Refuses batches of nothing."""
    if batch_size < 1:
        raise UserError(f"--batch-size {batch_size}: must be 1 or more")

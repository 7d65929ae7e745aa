"""Texts to vectors with an encoder."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict

from glassformer.engines.engine import Engine
from glassformer.errors import UserError
from glassformer.header import Framing
from glassformer.interop.sentence_transformers import POOLINGS, Settings
from glassformer.keywords import sequence_of_texts
from glassformer.reader import BATCH, check_batch_size, positions
from glassformer.sentences import Row, checked

if TYPE_CHECKING:
    import numpy as np

    from glassformer.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

READ_AHEAD = 1024
"""Texts that are sorted by length together."""


class Embedding(TypedDict):
    """A text, its vector, and whether the model read only its beginning."""

    text: str
    embedding: list[float]
    truncated: bool


class Embedder:
    """An encoder with its tokenizer.

    Attributes:
        engine: what computes.
        tokenizer: text to ids; None where the source has none, and then no text can be read.
        framing: what stands around texts.
        settings: how vectors are made by default.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None,
        framing: Framing | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.framing = framing or Framing()
        self.settings = settings or _settings_of(engine.module.config.head)
        limits = [limit for limit in (positions(engine), self.settings.max_length) if limit is not None]
        self.limit = min(limits, default=None)

    @property
    def model(self) -> Any:
        """The torch module, in eval mode, float32."""
        return self.engine.module

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str | None = None,
        normalise: bool | None = None,
        batch_size: int = BATCH,
    ) -> np.ndarray:
        """One vector for each text.

        Args:
            texts: Several, or one; a blank one is a text of no words. One that is too long is cut, with a warning.
            pooling: `mean` of all tokens' hidden states, `cls` (the first one's) or `last`; by default as the model
                was trained.
            normalise: Give vectors length 1; likewise.
            batch_size: Most texts that are read together. Neither it nor a text's neighbours change its vector.

        Returns:
            Shape (n, d_model), float32, in the order of the texts; (d_model,) for a single one.

        Raises:
            UserError: An unknown pooling, or a model without a tokenizer.
        """
        import numpy as np

        rows = sequence_of_texts("embed", texts)
        vectors = [vector for vector, _ in self._vectors(rows, pooling, normalise, batch_size)]
        d_model = self.model.config.d_model
        out = np.stack(vectors) if vectors else np.zeros((0, d_model), np.float32)
        return out[0] if isinstance(texts, str) else out

    def records(
        self,
        texts: Iterable[str],
        *,
        pooling: str | None = None,
        normalise: bool | None = None,
        batch_size: int = BATCH,
    ) -> Iterator[Embedding]:
        """`embed` of any number of texts, told one by one as they are done."""
        texts, read = iter(texts), 0
        while chunk := list(islice(texts, READ_AHEAD)):
            told = self._vectors(chunk, pooling, normalise, batch_size, read + 1)
            for text, (vector, cut) in zip(chunk, told, strict=True):
                yield Embedding(text=text, embedding=vector.tolist(), truncated=cut)
            read += len(chunk)

    def _vectors(
        self, texts: Sequence[str], pooling: str | None, normalise: bool | None, batch_size: int, first: int = 1
    ) -> list[tuple[np.ndarray, bool]]:
        """Each text's vector, and whether the text was cut; texts are numbered from ``first``."""
        pooling = self.settings.pooling if pooling is None else pooling
        normalise = self.settings.normalise if normalise is None else normalise
        if pooling not in POOLINGS:
            raise UserError(f"--pooling {pooling}: must be one of {', '.join(POOLINGS)}")
        check_batch_size(batch_size)
        rows = self._rows(texts, first)
        vectors: list[Any] = [None] * len(rows)
        # Texts of like lengths stand together, so that little is padded.
        order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
        for at in range(0, len(order), batch_size):
            batch = order[at : at + batch_size]
            for index, vector in zip(batch, self._batch([rows[i].ids for i in batch], pooling, normalise), strict=True):
                vectors[index] = vector
        return [(vector, row.cut) for vector, row in zip(vectors, rows, strict=True)]

    def _rows(self, texts: Sequence[str], first: int) -> list[Row]:
        """Texts as the model reads them."""
        if self.tokenizer is None:
            raise UserError("this model has no tokenizer, so it reads no text; put its tokenizer.json beside it")
        before, after = self.framing.before, self.framing.after
        pieces = self.tokenizer.encode_batch([checked(text, number) for number, text in enumerate(texts, first)])
        room = None if self.limit is None else max(0, self.limit - len(before) - len(after))
        rows = [Row([*before, *ids[:room], *after], room is not None and len(ids) > room) for ids in pieces]
        if cut := [number for number, row in enumerate(rows, first) if row.cut]:
            more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
            log.warning("text %d%s: cut to the model's limit of %d tokens", cut[0], more, self.limit)
        return rows

    def _batch(self, rows: Sequence[Sequence[int]], pooling: str, normalise: bool) -> list[np.ndarray]:
        """The vectors (D,) of texts that are read together; zeros for a text without any token."""
        import numpy as np

        vectors = []
        for x_SD in self.engine.hidden(rows):
            x_SD = x_SD if len(x_SD) else np.zeros((1, x_SD.shape[1]), np.float32)
            vector = {"mean": x_SD.mean(0), "first": x_SD[0], "last": x_SD[-1]}[POOLINGS[pooling]]
            vectors.append(vector / max(np.linalg.norm(vector), 1e-12) if normalise else vector)
        return vectors


def _settings_of(head: Any) -> Settings:
    """What a model's own head says of its vectors."""
    from glassformer.config import PoolConfig

    if not isinstance(head, PoolConfig):
        return Settings()
    return Settings(next(name for name, pool in POOLINGS.items() if pool == head.pool), head.normalise)

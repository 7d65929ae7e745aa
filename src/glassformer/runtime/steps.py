"""A decoding by the native library, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from glassformer.runtime import library as native
from glassformer.runtime.library import ints as _ints

if TYPE_CHECKING:
    import numpy as np

    from glassformer.runtime.engine import NativeModel


class DecodeState:
    """One decoding: its rows, and how far they are.

    Attributes:
        length: target positions read so far.
        rows: hypotheses.
        logits_NV: what follows each prompt, of a decoder alone; None otherwise.
    """

    def __init__(self, model: NativeModel, handle: Any, sources: Sequence[Sequence[int]]) -> None:
        self._model, self._handle = model, handle
        self.rows, self.length = len(sources), 0
        self._longest = max(map(len, sources), default=0) if model.prompted else 0
        self.logits_NV: np.ndarray | None = None
        if model.prompted:
            ids, counts = _ints(chain.from_iterable(sources)), _ints(map(len, sources))
            self.logits_NV = self._read(ids, counts, self.rows, last_only=True)

    def step(self, tokens_NT: np.ndarray, *, last_only: bool = True) -> np.ndarray:
        """Reads the next tokens of every row.

        Returns:
            Logits float32 (N, V) of what follows the last, or (N, T, V) with `last_only=False`.

        Raises:
            ValueError: an id or a position is beyond the model's, or there are not as many rows.
        """
        import numpy as np

        tokens_NT = np.ascontiguousarray(tokens_NT, np.int32)
        rows, count = tokens_NT.shape
        if rows != self.rows or not count:
            raise ValueError(f"{rows} tokens for {self.rows} rows" if count else "no tokens to read")
        if tokens_NT.size and not 0 <= tokens_NT.min() <= tokens_NT.max() < self._model.model.target_vocab:
            raise ValueError(f"a target id is not from 0 to {self._model.model.target_vocab - 1}")
        end, limit = self._longest + self.length + count, self._model.target_limit
        if limit is not None and end > limit:
            raise ValueError(f"target position {end} is beyond the model's {limit}")
        read = rows if last_only else rows * count
        logits = self._read(tokens_NT.ctypes.data_as(native.Ints), _ints([count] * rows), read, last_only=last_only)
        self.length += count
        return logits if last_only else logits.reshape(rows, count, -1)

    def _read(self, tokens: Any, counts: Any, answers: int, *, last_only: bool) -> np.ndarray:
        import numpy as np

        model = self._model.model
        logits = np.empty((answers, model.output.n), np.float32)
        status = self._model._library.gf_step(self._handle, tokens, counts, last_only, logits.ctypes.data)
        self._model._check(status)
        return logits[:, : model.target_vocab]

    def select(self, index_N: Sequence[int]) -> None:
        """Makes row i the old row `index_N[i]`."""
        index = [int(i) for i in index_N]
        if any(not 0 <= i < self.rows for i in index):
            raise IndexError(f"rows {index} of {self.rows}")
        self._model._check(self._model._library.gf_select(self._handle, _ints(index), len(index)))
        self.rows = len(index)

    def truncate(self, length: int) -> None:
        """Forgets every position from `length` on.

        Raises:
            ValueError: `length` is negative or more than has been read.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} positions to {length}")
        self._model._check(self._model._library.gf_truncate(self._handle, self.length - length))
        self.length = length

    def __del__(self) -> None:
        if self._handle:
            self._model._library.gf_free(self._handle)
            self._handle = None

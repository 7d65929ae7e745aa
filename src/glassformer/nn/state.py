"""What a decoder remembers between steps."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class State(Protocol):
    """The memory of one part over the rows of a batch."""

    per_source: bool
    """Whether the content depends on the source alone, so that rows of one source are interchangeable."""

    def select(self, index_N: Tensor) -> None:
        """Replaces the rows by ``rows[index]``: reorders, repeats, or drops them."""
        ...

    def truncate(self, length: int) -> None:
        """Forgets the target positions from ``length`` on."""
        ...

    @property
    def nbytes(self) -> int: ...


SLACK = 64
"""How many tokens can always be taken back (``truncate``) where a window forgets the far ones."""


class KVState:
    """Keys and values of the tokens seen so far, in buffers that grow by doubling.

    Args:
        window: With a window of W, only what the next tokens can see is kept: W + SLACK to twice as many places.
    """

    per_source = False

    def __init__(self, window: int | None = None) -> None:
        self._k_BHSK: Tensor | None = None
        self._v_BHSK: Tensor | None = None
        self._window = window
        self._first = 0
        """The place that the first slot is of."""
        self._used = 0

    def append(self, k_BHTK: Tensor, v_BHTK: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Writes the new keys and values at place ``start`` and returns all of them up to there, or the window's.

        Slots behind the returned ones hold garbage and are never handed out.
        """
        self._forget(start)
        held, end = start - self._first, start - self._first + k_BHTK.shape[2]
        if self._k_BHSK is None or self._v_BHSK is None:
            self._k_BHSK, self._v_BHSK = _room(k_BHTK, max(end, 16)), _room(v_BHTK, max(end, 16))
        elif end > self._k_BHSK.shape[2]:
            self._k_BHSK, self._v_BHSK = _grown(self._k_BHSK, end, held), _grown(self._v_BHSK, end, held)
        self._k_BHSK[:, :, held:end] = k_BHTK
        self._v_BHSK[:, :, held:end] = v_BHTK
        self._used = end
        seen = slice(0 if self._window is None else max(0, held - self._window + 1), end)
        return self._k_BHSK[:, :, seen], self._v_BHSK[:, :, seen]

    def _forget(self, start: int) -> None:
        """Drops the far places once they are as many as the near ones, so that a step costs no copy on average."""
        if self._window is None or self._k_BHSK is None or self._v_BHSK is None:
            return
        held, kept = start - self._first, self._window + SLACK
        if held >= 2 * kept:
            near = slice(held - kept, held)
            self._k_BHSK, self._v_BHSK = self._k_BHSK[:, :, near].clone(), self._v_BHSK[:, :, near].clone()
            self._first = start - kept

    def select(self, index_N: Tensor) -> None:
        if self._k_BHSK is not None and self._v_BHSK is not None:
            # Only slots in use move; one spare slot avoids a second copy at the next append.
            self._k_BHSK = self._k_BHSK[:, :, : self._used + 1].index_select(0, index_N)
            self._v_BHSK = self._v_BHSK[:, :, : self._used + 1].index_select(0, index_N)

    def truncate(self, length: int) -> None:
        if self._window is not None and 0 < self._first > length - self._window + 1:
            raise ValueError(f"cannot truncate to {length} positions: a window of {self._window} forgot those before")
        self._used = max(0, min(self._used, length - self._first))

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self._k_BHSK, self._v_BHSK) if t is not None)


def _room(like_BHTK: Tensor, slots: int) -> Tensor:
    batch, heads, _, size = like_BHTK.shape
    return like_BHTK.new_empty(batch, heads, slots, size)


def _grown(old_BHSK: Tensor, needed: int, used: int) -> Tensor:
    new_BHSK = _room(old_BHSK, max(needed, 2 * old_BHSK.shape[2]))
    new_BHSK[:, :, :used] = old_BHSK[:, :, :used]
    return new_BHSK


class StaticKV:
    """Keys and values of the encoder's output, computed once for a whole decoding."""

    per_source = True

    def __init__(self, k_BHSK: Tensor, v_BHSK: Tensor) -> None:
        self.k_BHSK, self.v_BHSK = k_BHSK, v_BHSK

    def select(self, index_N: Tensor) -> None:
        self.k_BHSK, self.v_BHSK = self.k_BHSK.index_select(0, index_N), self.v_BHSK.index_select(0, index_N)

    def truncate(self, length: int) -> None:
        pass

    @property
    def nbytes(self) -> int:
        return self.k_BHSK.nbytes + self.v_BHSK.nbytes


class BlockState:
    """The states of one block's parts."""

    def __init__(self, mixer: State, cross: State | None) -> None:
        self.mixer, self.cross = mixer, cross


class DecodeState:
    """Everything that one decoding remembers, and its only position counter.

    Args:
        blocks: One state for each decoder block.
        memory_mask_BS: Which source positions are real, or ``None`` when all are.
        batch: Number of rows.
        prompt: Places that a prompt took, before the first position that ``length`` counts.
        padding_B: How many of those, on the left of each row, are padding; ``None`` when none is.
    """

    def __init__(
        self,
        blocks: list[BlockState],
        memory_mask_BS: Tensor | None,
        batch: int,
        device: torch.device,
        prompt: int = 0,
        padding_B: Tensor | None = None,
    ) -> None:
        self.blocks = blocks
        self.memory_mask_BS = memory_mask_BS
        self.prompt, self.padding_B = prompt, padding_B
        self.logits_BV: Tensor | None = None
        """What follows the prompt, until the first step or reordering; ``None`` without a prompt."""
        self.length = 0
        self._source_B = torch.arange(batch, device=device)

    @property
    def states(self) -> list[State]:
        """Every part's state, flat."""
        return [state for block in self.blocks for state in (block.mixer, block.cross) if state is not None]

    def select(self, index_N: Tensor) -> None:
        """Reorders, repeats, or drops rows of every state together.

        Beams of one sentence share its source: reordering them leaves what depends on the source alone untouched.
        """
        source_N = self._source_B.index_select(0, index_N)
        same_sources = torch.equal(source_N, self._source_B)
        for state in self.states:
            if not (state.per_source and same_sources):
                state.select(index_N)
        if self.memory_mask_BS is not None and not same_sources:
            self.memory_mask_BS = self.memory_mask_BS.index_select(0, index_N)
        if self.padding_B is not None:
            self.padding_B = self.padding_B.index_select(0, index_N)
        self.logits_BV = None
        self._source_B = source_N

    def truncate(self, length: int) -> None:
        """Forgets the positions from ``length`` on, as if they had never been read.

        Raises:
            ValueError: ``length`` is negative or more than has been read.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} positions to {length}")
        for state in self.states:
            state.truncate(self.prompt + length)
        self.length = length

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return sum(state.nbytes for state in self.states)

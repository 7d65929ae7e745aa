"""What a decoder remembers between steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from glassformer.nn.tap import unrecorded


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
"""How many of all tokens read can always be taken back (``truncate``) where the far ones are forgotten."""


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


Memory = dict[str, Tensor]
"""What a recurrence remembers of the tokens read so far; every tensor has the batch first."""

Scan = Callable[[Tensor, Tensor | None, Memory | None], tuple[Tensor, Memory]]
"""Reads the next tokens (B, T, D), of which some may be padding (B, T): what comes out, and the memory after them."""


@dataclass
class _Snapshot:
    place: int
    memory: Memory | None


class RecurrentState:
    """The memory of a recurrence, of constant size.

    A recurrence forgets, so tokens are taken back by reading anew: a memory is never changed in place but replaced, so
    that an old one costs nothing to keep, together with the inputs since then. At most two are kept, ``SLACK`` tokens
    or more apart.

    Args:
        scan: The recurrence.
    """

    per_source = False

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self.memory: Memory | None = None
        self.length = 0
        """How many places have been read."""
        self._snapshots = [_Snapshot(0, None)]
        self._x_BTD: Tensor | None = None
        """What was read since the oldest snapshot, in a buffer with room behind it."""
        self._real_BT: Tensor | None = None

    def read(self, x_BTD: Tensor, real_BT: Tensor | None) -> Tensor:
        """Reads the next tokens and gives what comes out of the recurrence."""
        n_tokens = x_BTD.shape[1]
        if n_tokens > SLACK:  # the rest can be taken back token by token
            far = n_tokens - SLACK
            head_BTD = self._advance(x_BTD[:, :far], None if real_BT is None else real_BT[:, :far])
            self._snapshots = [_Snapshot(self.length, self.memory)]
            tail_BTD = self._advance(x_BTD[:, far:], None if real_BT is None else real_BT[:, far:])
            self._keep(x_BTD[:, far:], None if real_BT is None else real_BT[:, far:])
            return torch.cat([head_BTD, tail_BTD], 1)
        y_BTD = self._advance(x_BTD, real_BT)
        self._keep(x_BTD, real_BT)
        return y_BTD

    def _advance(self, x_BTD: Tensor, real_BT: Tensor | None) -> Tensor:
        y_BTD, self.memory = self._scan(x_BTD, real_BT, self.memory)
        self.length += x_BTD.shape[1]
        return y_BTD

    def _keep(self, x_BTD: Tensor, real_BT: Tensor | None) -> None:
        """Writes down what was just read, and forgets what no token taken back would need."""
        oldest, start = self._snapshots[0].place, self.length - x_BTD.shape[1]
        used, end = start - oldest, self.length - oldest
        if self._x_BTD is None or end > self._x_BTD.shape[1]:
            batch, _, d_model = x_BTD.shape
            room = max(end, 16, 2 * used)
            grown_BTD = x_BTD.new_empty(batch, room, d_model)
            real = torch.ones(batch, room, dtype=torch.bool, device=x_BTD.device)
            if self._x_BTD is not None and self._real_BT is not None:
                grown_BTD[:, :used], real[:, :used] = self._x_BTD[:, :used], self._real_BT[:, :used]
            self._x_BTD, self._real_BT = grown_BTD, real
        assert self._real_BT is not None
        self._x_BTD[:, used:end] = x_BTD
        self._real_BT[:, used:end] = True if real_BT is None else real_BT
        if self.length - self._snapshots[-1].place >= SLACK:
            self._snapshots = [*self._snapshots, _Snapshot(self.length, self.memory)][-2:]
            gone = self._snapshots[0].place - oldest
            # A copy, so that the room of what is gone comes free.
            self._x_BTD, self._real_BT = self._x_BTD[:, gone:end].clone(), self._real_BT[:, gone:end].clone()

    def select(self, index_N: Tensor) -> None:
        def rows(memory: Memory | None) -> Memory | None:
            return memory and {name: value.index_select(0, index_N) for name, value in memory.items()}

        self.memory = rows(self.memory)
        self._snapshots = [_Snapshot(each.place, rows(each.memory)) for each in self._snapshots]
        if self._x_BTD is not None and self._real_BT is not None:
            self._x_BTD, self._real_BT = self._x_BTD.index_select(0, index_N), self._real_BT.index_select(0, index_N)

    def truncate(self, length: int) -> None:
        if length >= self.length:
            return
        oldest = self._snapshots[0].place
        self._snapshots = [each for each in self._snapshots if each.place <= length] or self._snapshots[:1]
        last = self._snapshots[-1]
        if last.place > length:
            raise ValueError(f"cannot truncate {self.length} places to {length}: a recurrence forgot those before")
        self.memory, self.length = last.memory, last.place
        if self.length < length:
            assert self._x_BTD is not None and self._real_BT is not None
            again = slice(self.length - oldest, length - oldest)
            with unrecorded(), torch.no_grad():
                self._advance(self._x_BTD[:, again], self._real_BT[:, again])

    @property
    def nbytes(self) -> int:
        memories = [self.memory, *(each.memory for each in self._snapshots)]
        held = {id(value): value for memory in memories if memory for value in memory.values()}
        return sum(t.nbytes for t in (*held.values(), self._x_BTD, self._real_BT) if t is not None)


class BlockState:
    """The states of one block's parts."""

    def __init__(self, mixer: State, cross: State | None = None, ffn: State | None = None) -> None:
        self.mixer, self.cross, self.ffn = mixer, cross, ffn

    @property
    def parts(self) -> list[State]:
        """Those that there are."""
        return [state for state in (self.mixer, self.cross, self.ffn) if state is not None]


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
        return [state for block in self.blocks for state in block.parts]

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

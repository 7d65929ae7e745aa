"""Token mixers: the parts that move information between positions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from glassformer.nn.state import State


@dataclass(frozen=True)
class Context:
    """What one pass knows besides the hidden states; never stored on a module.

    Attributes:
        start: Position of the first token of this pass; more than 0 when earlier tokens are in a state.
        mask_BS: Which positions of this pass are real tokens, True = real; ``None`` when all are.
        memory_BSD: The encoder's output, for cross-attention; ``None`` when a state already holds its keys and values.
        memory_mask_BS: Which source positions are real; ``None`` when all are.
    """

    start: int = 0
    mask_BS: Tensor | None = None
    memory_BSD: Tensor | None = None
    memory_mask_BS: Tensor | None = None


class Mixer(nn.Module):
    """Base of every token mixer. One ``forward`` serves the whole sequence, a chunk, and a single step."""

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        raise NotImplementedError

    def init_state(self) -> State:
        """An empty state, to decode from the first position."""
        raise NotImplementedError

"""Token mixers: the parts that move information between positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from glassformer.config import RotaryConfig
from glassformer.nn.state import State


@dataclass(frozen=True)
class Context:
    """What one pass knows besides the hidden states; never stored on a module.

    Attributes:
        start: Place of the first token of this pass; more than 0 when earlier tokens are in a state.
        mask_BS: Which places are real tokens, those in a state included; ``None`` when all are.
        positions_BT: Positions of this pass' tokens; ``None`` counts the real ones, from ``start``.
        memory_BSD: The encoder's output, for cross-attention; ``None`` when a state already holds its keys and values.
        memory_mask_BS: Which source positions are real; ``None`` when all are.
        bias_HTS: Added to the scores of self-attention.
        rotary: For each rotary configuration of the stack, the cosines and sines of this pass' tokens.
    """

    start: int = 0
    mask_BS: Tensor | None = None
    positions_BT: Tensor | None = None
    memory_BSD: Tensor | None = None
    memory_mask_BS: Tensor | None = None
    bias_HTS: Tensor | None = None
    rotary: Mapping[RotaryConfig, tuple[Tensor, Tensor]] = field(default_factory=dict)


class Mixer(nn.Module):
    """Base of every token mixer. One ``forward`` serves the whole sequence, a chunk, and a single step."""

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        raise NotImplementedError

    def init_state(self) -> State:
        """An empty state, to decode from the first position."""
        raise NotImplementedError

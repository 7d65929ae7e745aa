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
        holes: Whether padding stands between real tokens of some row; told where a mixer needs to know.
        global_BT: Which tokens see and are seen by all, in attention that has such; ``None`` leaves it to its
            configuration.
        slots: What a layer leaves for the later ones of its stack, by name.
    """

    start: int = 0
    mask_BS: Tensor | None = None
    positions_BT: Tensor | None = None
    memory_BSD: Tensor | None = None
    memory_mask_BS: Tensor | None = None
    bias_HTS: Tensor | None = None
    rotary: Mapping[RotaryConfig, tuple[Tensor, Tensor]] = field(default_factory=dict)
    holes: bool = False
    global_BT: Tensor | None = None
    slots: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Kept:
    """How many numbers decoding keeps in a part, for one row.

    Attributes:
        per_token: For each token read, or for each source token in cross-attention.
        constant: However many were read.
    """

    per_token: int = 0
    constant: int = 0


class Part(nn.Module):
    """Base of the mixers and of the feed-forward parts, whose matrices are linear layers."""

    undecayed: tuple[str, ...] = ()
    """Its own parameters of more than one dimension for which 0 is no resting place, so that no weight decay acts."""

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """One method for the whole sequence, a chunk, and a single step."""
        raise NotImplementedError

    def init_state(self) -> State | None:
        """An empty state, to decode from the first position; ``None`` when nothing is remembered."""
        return None

    def flops(self, context: int) -> int:
        """Forward FLOPs of one token besides those of the linear layers, when it reads so many tokens."""
        return 0

    def kept(self) -> Kept:
        """What decoding keeps."""
        return Kept()

    def shape(self) -> str:
        """What tells it from others of its kind, for a reader; nothing lets its tensors' shapes speak."""
        return ""

    def initialise_(self) -> None:
        """Draws its own parameters, which no scheme of `nn.init` knows; linear layers are drawn before."""


class Mixer(Part):
    """Base of every token mixer. Its last linear layer is ``out``."""

    out: nn.Linear

    def init_state(self) -> State:
        """An empty state, to decode from the first position."""
        raise NotImplementedError

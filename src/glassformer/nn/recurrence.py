"""What every recurrence shares: padding, chunks, steps and memory; and two of them for an encoder.

A recurrence is one pure function of the next tokens and of the memory of those before. The whole sequence, a chunk of
it and a single step differ in their length alone, so there is nothing to keep equal by hand.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from glassformer.nn.mixer import Context, Mixer
from glassformer.nn.state import Memory, RecurrentState, State
from glassformer.nn.tap import Tap, backwards


class Recurrence(Mixer):
    """Base of every recurrence; a subclass gives ``scan`` (and ``flops``, ``kept``, as far as there is any)."""

    def scan(self, x_BTD: Tensor, real_BT: Tensor | None, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Reads the next tokens.

        Args:
            x_BTD: Their hidden states, one token or more.
            real_BT: False at padding, which stands at the sides of a row alone; ``None`` when there is none. On the
                left it must leave the memory as if it were not there; on the right nothing real comes after it.
            memory: What was remembered of the tokens before; ``None`` at the beginning. It must not be changed.

        Returns:
            What comes out, (B, T, D), finite also at padding; and a new memory, every tensor with the batch first, of
            a size that does not depend on how much was read.
        """
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        real_BT = None if ctx.mask_BS is None else ctx.mask_BS[:, -x_BTD.shape[1] :]
        if state is not None:
            assert isinstance(state, RecurrentState)
            return state.read(x_BTD, real_BT)
        if real_BT is None or not ctx.holes:
            return self.scan(x_BTD, real_BT, None)[0]
        # Padding between real tokens moves to the left, and what is traced stands in that order.
        order_BT = real_BT.long().argsort(dim=1, stable=True)
        at_BTD = order_BT[..., None].expand_as(x_BTD)
        y_BTD, _ = self.scan(x_BTD.gather(1, at_BTD), real_BT.gather(1, order_BT), None)
        return y_BTD.scatter(1, at_BTD, y_BTD)

    def init_state(self) -> RecurrentState:
        return RecurrentState(self.scan)


class Bidirectional(Mixer):
    """``f(x) + reverse(g(reverse(x)))``: two recurrences of one kind, so that every token knows of all others."""

    def __init__(self, ahead: Mixer, back: Mixer) -> None:
        super().__init__()
        self.ahead, self.back = ahead, back
        self.result = Tap("B T D")

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        mask_BS = None if ctx.mask_BS is None else ctx.mask_BS.flip(1)
        with backwards():
            back_BTD = self.back(x_BTD.flip(1), replace(ctx, mask_BS=mask_BS))
        return self.result(self.ahead(x_BTD, ctx) + back_BTD.flip(1))

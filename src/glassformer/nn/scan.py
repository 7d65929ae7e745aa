"""The selective scan: ``h_t = exp(Δ_t A) h_(t−1) + Δ_t B_t x_t`` and ``y_t = C_t h_t`` (Gu and Dao 2023, algorithm 2).

Axes besides those of `nn`: E inner features, N numbers of state for each of them, C tokens of one block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from glassformer.nn.fused import no_autocast

BLOCK_NUMBERS = 2**20
"""Numbers of state that are held at once: those of a block of tokens, as many as stay near the processor."""


def selective_scan(
    x_BTE: Tensor, delta_BTE: Tensor, a_EN: Tensor, b_BTN: Tensor, c_BTN: Tensor, state_BEN: Tensor
) -> tuple[Tensor, Tensor]:
    """Runs the recurrence over every token, in float32.

    The states of all tokens would be N times the input, so they are made for a block of tokens at a time and not kept;
    the backward pass makes them anew from the state at each block's beginning, as the paper's section 3.3.2 has it.

    Args:
        x_BTE: Input.
        delta_BTE: Step sizes Δ, not negative; where one is 0, a token changes nothing.
        a_EN: Negative.
        b_BTN: How the input enters the state.
        c_BTN: How the state is read.
        state_BEN: Before the first token.

    Returns:
        The output (B, T, E), and the state after the last token.
    """
    with no_autocast(x_BTE.device):
        tensors = (each.float() for each in (x_BTE, delta_BTE, a_EN, b_BTN, c_BTN, state_BEN))
        y_BTE, last_BEN = _Scan.apply(*tensors)
    return y_BTE, last_BEN


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> Any:
        y_BTE, starts = torch.empty_like(x), []
        for block in _blocks(x, a):
            starts.append(state)
            _, states_CBEN = _states(x[:, block], delta[:, block], a, b[:, block], state)
            y_BTE[:, block] = (states_CBEN @ c[:, block].transpose(0, 1)[..., None])[..., 0].transpose(0, 1)
            state = states_CBEN[-1].clone()
        ctx.save_for_backward(x, delta, a, b, c, *starts)
        return y_BTE, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dlast: Tensor) -> Any:
        """With g the gradient of each state, ``g_t = C_t dy_t + exp(Δ_(t+1) A) g_(t+1)``: the same scan, backwards."""
        x, delta, a, b, c, *starts = ctx.saved_tensors
        dx, ddelta, da = torch.empty_like(x), torch.empty_like(delta), torch.zeros_like(a)
        db, dc, carry_BEN = torch.empty_like(b), torch.empty_like(c), dlast
        for block, start in reversed(list(zip(_blocks(x, a), starts, strict=True))):
            x_CBE, delta_CBE, b_CBN, c_CBN, dy_CBE = (each[:, block].transpose(0, 1) for each in (x, delta, b, c, dy))
            decay_CBEN, states_CBEN = _states(x[:, block], delta[:, block], a, b[:, block], start)
            g_CBEN = dy_CBE[..., None] * c_CBN[:, :, None]
            g_CBEN[-1] += carry_BEN
            _run(torch.cat([decay_CBEN[1:], torch.ones_like(decay_CBEN[:1])]), g_CBEN, backwards=True)
            carry_BEN = decay_CBEN[0] * g_CBEN[0]
            dc[:, block] = (dy_CBE[:, :, None] @ states_CBEN)[:, :, 0].transpose(0, 1)
            # The gradient of the exponent Δ A.
            g_exponent = decay_CBEN.mul_(g_CBEN)
            g_exponent[1:] *= states_CBEN[:-1]
            g_exponent[0] *= start
            into_CBE = (g_CBEN @ b_CBN[..., None])[..., 0]
            dx[:, block] = (into_CBE * delta_CBE).transpose(0, 1)
            db[:, block] = ((delta_CBE * x_CBE)[:, :, None] @ g_CBEN)[:, :, 0].transpose(0, 1)
            ddelta[:, block] = (into_CBE * x_CBE + (g_exponent * a).sum(-1)).transpose(0, 1)
            da += torch.einsum("cben,cbe->en", g_exponent, delta_CBE)
        return dx, ddelta, da, db, dc, carry_BEN


def _blocks(x_BTE: Tensor, a_EN: Tensor) -> list[slice]:
    size = min(256, max(16, BLOCK_NUMBERS // max(1, len(x_BTE) * a_EN.numel())))
    return [slice(start, start + size) for start in range(0, x_BTE.shape[1], size)]


def _states(x: Tensor, delta: Tensor, a_EN: Tensor, b: Tensor, start_BEN: Tensor) -> tuple[Tensor, Tensor]:
    """The decay of each token of a block, and the state after it, both (C, B, E, N)."""
    delta_CBE = delta.transpose(0, 1)
    decay_CBEN = (delta_CBE[..., None] * a_EN).exp_()
    states_CBEN = (delta_CBE * x.transpose(0, 1))[..., None] * b.transpose(0, 1)[:, :, None]
    states_CBEN[0].addcmul_(decay_CBEN[0], start_BEN)
    _run(decay_CBEN, states_CBEN)
    return decay_CBEN, states_CBEN


def _run(decay: Tensor, add: Tensor, backwards: bool = False) -> None:
    """Replaces ``add_i`` by ``add_i + decay_i · (what replaced its predecessor)``, or its successor backwards."""
    if add.is_cuda:
        return _run_in_rounds(decay, add, backwards)
    count = len(add)
    for at in range(count - 2, -1, -1) if backwards else range(1, count):
        add[at].addcmul_(decay[at], add[at + 1 if backwards else at - 1])


def _run_in_rounds(decay: Tensor, add: Tensor, backwards: bool = False) -> None:
    """The same in log2 of the count rounds (Hillis and Steele 1986), where a launch costs more than what it does."""
    decay, step = decay.clone(), 1
    while step < len(add):
        here, there = (slice(None, -step), slice(step, None)) if backwards else (slice(step, None), slice(None, -step))
        add[here] += decay[here] * add[there]
        decay[here] = decay[here] * decay[there]
        step *= 2

"""Attention tile by tile: FlashAttention in plain PyTorch, exact, and linear in memory.

A row's softmax needs its maximum and its sum, which seem to need the whole row of scores. They do not (Milakov and
Gimelshein 2018, arXiv:1805.02867): with the maximum m, the sum l and the weighted values o of the keys seen so far, a
further tile of scores s with values v makes

    m′ = max(m, max s)      l′ = l·e^(m−m′) + Σ e^(s−m′)      o′ = o·e^(m−m′) + e^(s−m′) v

and after the last tile ``o/l`` is the result. So no more than one tile of scores is ever held. The backward pass holds
no more: from ``L = m + log l`` it computes each tile's weights anew, ``P = e^(s−L)``, instead of reading them from
memory (Dao et al. 2022, arXiv:2205.14135, algorithms 1 and 4). What a GPU gains by keeping tiles in its fast memory
is beyond plain PyTorch; the algorithm, and its memory, are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from glassformer.nn import mask as masks

TILE = 256
"""Queries and keys of one tile: large enough that Python's own time is small beside the products'."""


def tiled(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    tile: int = TILE,
) -> Tensor:
    """Attention as ``attend`` defines it, with gradients of queries, keys, values and bias.

    Tiles that causality or the window hide whole are skipped: a window costs time linear in length, too. Everything is
    summed in float32. A gradient of the gradient is not to be had.

    Args:
        mask: Boolean, broadcastable to (B, H, T, S), as is ``bias``.
        tile: Queries and keys of one tile, any number; it changes no result.
    """
    sight = _Sight(k_BGSK.shape[2] - q_BHTK.shape[2], causal, window)
    scale = 1 / math.sqrt(q_BHTK.shape[-1]) if scale is None else scale
    return _Tiled.apply(q_BHTK, k_BGSK, v_BGSK, bias, mask, sight, scale, tile)


@dataclass(frozen=True)
class _Sight:
    """What a query may see by its place alone; query t stands at place ``offset + t``."""

    offset: int
    causal: bool
    window: int | None

    def span(self, rows: slice, n_keys: int) -> tuple[int, int]:
        """The first key that some query of these rows sees, and the one behind the last."""
        first, last = self.offset + rows.start, self.offset + rows.stop - 1
        start = 0 if self.window is None else max(0, first - self.window + 1)
        stop = n_keys if self.window is None else min(n_keys, last + self.window)
        return start, min(stop, last + 1) if self.causal else stop

    def mask(self, rows: slice, cols: slice, device: torch.device) -> Tensor | None:
        """What these rows see of these columns, (T, S); ``None`` when all see all."""
        first, last = self.offset + rows.start, self.offset + rows.stop - 1
        far = cols.stop - cols.start + rows.stop - rows.start + abs(self.offset) + cols.stop
        before = far if self.window is None else self.window - 1
        after = 0 if self.causal else before
        if last - cols.start <= before and cols.stop - 1 - first <= after:
            return None
        n_rows, n_cols = rows.stop - rows.start, cols.stop - cols.start
        return masks.band(n_rows, n_cols, before, after, offset=first - cols.start, device=device)


def _cut(start: int, stop: int, tile: int) -> Iterator[slice]:
    return (slice(at, min(at + tile, stop)) for at in range(start, stop, tile))


class _Tiled(torch.autograd.Function):
    """Keeps q, k, v, the result and one number a query, L, for the backward pass.

    Axes besides those of `nn`: G heads of keys, each with R heads of queries, so that H = G·R.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        sight: _Sight,
        scale: float,
        tile: int,
    ) -> Tensor:
        of = _Problem(q, k, v, bias, mask, sight, scale)
        out_BGRTK = q.new_empty(*of.q.shape[:-1], v.shape[-1])
        log_BGRT1 = q.new_empty(*of.q.shape[:-1], 1, dtype=torch.float32)
        for rows in _cut(0, q.shape[2], tile):
            shape = (*of.q.shape[:3], rows.stop - rows.start)
            m = torch.full((*shape, 1), -math.inf, device=q.device)
            sums, o = torch.zeros_like(m), torch.zeros(*shape, v.shape[-1], device=q.device)
            for cols in _cut(*sight.span(rows, k.shape[2]), tile):
                s = of.scores(rows, cols)
                larger = torch.maximum(m, s.amax(-1, keepdim=True))
                # Until a query has seen a key its maximum is −∞, and −∞ − −∞ is no number.
                safe = larger.masked_fill(larger == -math.inf, 0.0)
                weights, before = (s - safe).exp(), (m - safe).exp()
                sums = sums * before + weights.sum(-1, keepdim=True)
                o = o * before + weights @ of.v[..., cols, :].float()
                m = larger
            out_BGRTK[..., rows, :] = (o / sums.clamp(min=1e-38)).to(q.dtype)
            # A query without a key: e^(s − ∞) is 0, so that no gradient passes.
            log_BGRT1[..., rows, :] = torch.where(sums > 0, m + sums.log(), math.inf)
        out_BHTK = out_BGRTK.flatten(1, 2)
        ctx.save_for_backward(q, k, v, bias, mask, out_BHTK, log_BGRT1)
        ctx.options = (sight, scale, tile)
        return out_BHTK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, mask, out, log_BGRT1 = ctx.saved_tensors
        sight, scale, tile = ctx.options
        of = _Problem(q, k, v, bias, mask, sight, scale)
        d_out, out = (x.unflatten(1, of.q.shape[1:3]) for x in (d_out, out))
        dq, dk, dv = (torch.zeros(x.shape, device=q.device) for x in (of.q, of.k, of.v))
        d_bias = (
            torch.zeros(of.bias.shape, device=q.device) if of.bias is not None and ctx.needs_input_grad[3] else None
        )
        for rows in _cut(0, q.shape[2], tile):
            dz, z = d_out[..., rows, :].float(), out[..., rows, :].float()
            # The gradient of softmax takes from each weight's own what all of them have in common.
            common = (dz * z).sum(-1, keepdim=True)
            start, stop = sight.span(rows, k.shape[2])
            for cols in _cut(start, stop, tile):
                weights = (of.scores(rows, cols) - log_BGRT1[..., rows, :]).exp()
                ds = weights * (dz @ of.v[..., cols, :].float().transpose(-1, -2) - common)
                dv[..., cols, :] += (weights.transpose(-1, -2) @ dz).sum(2, keepdim=True)
                if d_bias is not None:
                    _add(d_bias, rows, cols, ds)
                dq[..., rows, :] += ds @ of.k[..., cols, :].float() * scale
                dk[..., cols, :] += (ds.transpose(-1, -2) @ of.q[..., rows, :].float()).sum(2, keepdim=True) * scale
        if d_bias is not None:
            d_bias = d_bias.flatten(1, 2).reshape(bias.shape).to(bias.dtype)
        return dq.flatten(1, 2).to(q.dtype), dk.squeeze(2).to(k.dtype), dv.squeeze(2).to(v.dtype), d_bias, *[None] * 4


class _Problem:
    """Queries, keys and what is added to their scores, with a dimension for the groups of heads."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, sight: _Sight, scale: float
    ) -> None:
        groups = (k.shape[1], q.shape[1] // k.shape[1])
        self.q, self.k, self.v = q.unflatten(1, groups), k[:, :, None], v[:, :, None]
        self.bias, self.mask = _grouped(bias, groups), _grouped(mask, groups)
        self.sight, self.scale = sight, scale

    def scores(self, rows: slice, cols: slice) -> Tensor:
        """One tile of scores, (B, G, R, T, S), −∞ where a query may not look."""
        s = self.q[..., rows, :].float() @ self.k[..., cols, :].float().transpose(-1, -2) * self.scale
        if self.bias is not None:
            s = s + _part(self.bias, rows, cols)
        hidden = self.sight.mask(rows, cols, s.device)
        if self.mask is not None:
            hidden = masks.combine(hidden, _part(self.mask, rows, cols))
        return s if hidden is None else s.masked_fill(~hidden, -math.inf)


def _grouped(x: Tensor | None, groups: tuple[int, int]) -> Tensor | None:
    """What is broadcastable to (B, H, T, S), as (B, G, R, T, S)."""
    if x is None:
        return None
    x = x[(None,) * (4 - x.dim())]
    return x[:, :, None] if x.shape[1] == 1 else x.unflatten(1, groups)


def _part(x: Tensor, rows: slice, cols: slice) -> Tensor:
    """A tile of what may hold one row or one column for all."""
    x = x if x.shape[-2] == 1 else x[..., rows, :]
    return x if x.shape[-1] == 1 else x[..., cols]


def _add(total: Tensor, rows: slice, cols: slice, part: Tensor) -> None:
    """Adds a tile to its place, summed over what the whole holds once for all."""
    place = _part(total, rows, cols)
    place += part.sum_to_size(place.shape)

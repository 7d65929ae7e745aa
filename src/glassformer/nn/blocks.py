"""A window of keys by blocks: each block of queries reads its own stretch of keys, so that time and memory are linear.

Axes besides those of `nn`: N blocks, C queries of a block, W keys that a block reads, E keys that every query reads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.nn import mask as masks
from glassformer.nn.fused import fused


class Everywhere(NamedTuple):
    """Keys and values, (B, G, E, K), that every query reads besides its window, and which of them are real, (B, E)."""

    k_BGEK: Tensor
    v_BGEK: Tensor
    real_BE: Tensor


def of_keys(mask: Tensor | None) -> bool:
    """Whether a mask hides keys alone, whatever the head and the query."""
    return mask is None or (mask.dim() == 4 and mask.shape[1:3] == (1, 1))


def pays(n_queries: int, n_keys: int, before: int, after: int) -> bool:
    """Whether blocks are faster than one dense mask (measured: benchmarks/length.py)."""
    return n_queries >= 512 and n_keys >= 2 * (before + after)


def _size(before: int, after: int) -> int:
    """Queries of a block. It reads size + before + after keys: a large one wastes scores, a small one copies keys."""
    return min(max((before + after) // 4, 64), 256)


def banded(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    before: int,
    after: int,
    *,
    mask_BS: Tensor | None = None,
    scale: float | None = None,
    more: Everywhere | None = None,
) -> Tensor:
    """Attention in which query t, at place S − T + t, sees keys at most so many places before and after; any length.

    Args:
        mask_BS: Which keys are real; ``None`` when all are.
        more: Keys that every query sees besides; a key of the window must not be one of them, or it counts twice.
    """
    n_queries, n_keys, size = q_BHTK.shape[2], k_BGSK.shape[2], _size(before, after)
    offset = n_keys - n_queries
    # Blocks in the middle, whose keys all exist, are equal and done at once; what is left at the ends is done alone.
    start = min(max(before - offset, 0), n_queries)
    count = max(0, min((n_keys - after - offset - start) // size, (n_queries - start) // size))
    stop = start + count * size
    parts = []
    for first, last in ((0, start), (stop, n_queries)):
        keys = slice(max(0, offset + first - before), min(n_keys, offset + last + after))
        here = offset + first - keys.start
        band_TS = masks.band(last - first, keys.stop - keys.start, before, after, offset=here, device=q_BHTK.device)
        real_BS = None if mask_BS is None else mask_BS[:, keys]
        one = (q_BHTK[:, :, first:last], k_BGSK[:, :, keys], v_BGSK[:, :, keys])
        parts.append(_part(*one, band_TS, real_BS, scale, more) if last > first else one[0])
    if not count:
        return torch.cat(parts, 2)
    width, keys = size + before + after, slice(offset + start - before, offset + stop + after)

    def stretches(x_BGSK: Tensor) -> Tensor:
        """(B·N, G, W, K)."""
        return x_BGSK[:, :, keys].unfold(2, width, size).permute(0, 2, 1, 4, 3).flatten(0, 1)

    q_NHCK = q_BHTK[:, :, start:stop].unflatten(2, (count, size)).transpose(1, 2).flatten(0, 1)
    band_CW = masks.band(size, width, before, after, offset=before, device=q_BHTK.device)
    real_NW = None if mask_BS is None else mask_BS[:, keys].unfold(1, width, size).flatten(0, 1)
    spread = None if more is None else Everywhere(*(x.repeat_interleave(count, 0) for x in more))
    z_NHCK = _part(q_NHCK, stretches(k_BGSK), stretches(v_BGSK), band_CW, real_NW, scale, spread)
    middle = z_NHCK.unflatten(0, (-1, count)).transpose(1, 2).flatten(2, 3)
    return torch.cat([parts[0], middle, parts[1]], 2)


def _part(
    q: Tensor, k: Tensor, v: Tensor, band: Tensor, real: Tensor | None, scale: float | None, more: Everywhere | None
) -> Tensor:
    mask = band if real is None else band & masks.padding(real)
    if more is not None:
        k, v = torch.cat([more.k_BGEK, k], 2), torch.cat([more.v_BGEK, v], 2)
        mask = mask.expand(len(q), 1, -1, -1)
        mask = torch.cat([masks.padding(more.real_BE).expand(-1, -1, mask.shape[2], -1), mask], 3)
    return fused(q, k, v, mask, scale=scale)

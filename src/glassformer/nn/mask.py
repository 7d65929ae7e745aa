"""Attention masks: boolean, True = may attend, combined with ``&``."""

from __future__ import annotations

import torch
from torch import Tensor


def causal(n_queries: int, n_keys: int, device: torch.device | None = None) -> Tensor:
    """The mask under which each of the last ``n_queries`` positions sees itself and what came before it.

    Returns:
        Shape (T, S); query t stands at position ``n_keys − n_queries + t``.
    """
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)


def window(n_queries: int, n_keys: int, size: int, device: torch.device | None = None) -> Tensor:
    """The band in which keys are less than ``size`` places away, on either side; query t stands as in ``causal``."""
    return band(n_queries, n_keys, size - 1, size - 1, device=device)


def band(
    n_queries: int,
    n_keys: int,
    before: int,
    after: int,
    *,
    every: int = 1,
    offset: int | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """The band of keys at most so many steps before and after a query.

    Args:
        before: Steps back.
        after: Steps ahead.
        every: Places in a step; those between are not seen (dilation).
        offset: Place of the first query among the keys; by default the last query stands where the last key stands.

    Returns:
        Shape (T, S).
    """
    offset = n_keys - n_queries if offset is None else offset
    places_T = torch.arange(offset, offset + n_queries, device=device)
    ahead_TS = torch.arange(n_keys, device=device) - places_T[:, None]
    far = n_keys + n_queries + abs(offset) + 1  # a reach beyond it says no more, and may be more than a tensor holds
    before, after, every = (min(steps, far) for steps in (before, after, every))
    near_TS = (ahead_TS >= -before * every) & (ahead_TS <= after * every)
    return near_TS if every == 1 else near_TS & (ahead_TS % every == 0)


def padding(mask_BS: Tensor) -> Tensor:
    """Spreads "this key is a real token" over heads and queries: shape (B, 1, 1, S)."""
    return mask_BS[:, None, None, :]


def positions(mask_BT: Tensor) -> Tensor:
    """Each real token's number among the real ones of its row, so that padding on the left moves no position."""
    return (mask_BT.long().cumsum(-1) - 1).clamp(min=0)


def holes(mask_BT: Tensor) -> bool:
    """Whether padding stands between the real tokens of some row, rather than on its sides."""
    begins_BT = mask_BT[:, 1:] & ~mask_BT[:, :-1]
    return bool((begins_BT.sum(1) + mask_BT[:, 0] > 1).any())


def combine(*masks: Tensor | None) -> Tensor | None:
    """What every given mask allows; ``None`` allows everything."""
    allowed: Tensor | None = None
    for mask in masks:
        if mask is not None:
            allowed = mask if allowed is None else allowed & mask
    return allowed

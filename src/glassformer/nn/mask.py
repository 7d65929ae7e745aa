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
    everything = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return everything.triu(n_keys - n_queries - size + 1).tril(n_keys - n_queries + size - 1)


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

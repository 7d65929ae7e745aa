"""A window of keys by PyTorch's FlexAttention, which compiles a kernel that skips blocks of keys nobody sees.

For GPUs alone; elsewhere, and where no kernel can be compiled, `nn.blocks` computes the same.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_failed = False


def usable(q_BHTK: Tensor) -> bool:
    """Whether a kernel for these queries can be compiled."""
    size = q_BHTK.shape[-1]
    fits = q_BHTK.is_cuda and not _failed and size >= 16 and size & (size - 1) == 0
    return fits and importlib.util.find_spec("triton") is not None


def predicate(before: int, after: int, offset: int) -> Predicate:
    """Whether query t, at place ``offset + t``, sees key s; the same as ``mask.band`` with that offset."""

    def seen(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        ahead = s - (t + offset)
        return (ahead >= -before) & (ahead <= after)

    return seen


def banded(
    q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, before: int, after: int, scale: float | None = None
) -> Tensor | None:
    """As `blocks.banded` without a mask; ``None`` when the kernel cannot be compiled, which is said once."""
    global _failed
    n_queries, n_keys = q_BHTK.shape[2], k_BGSK.shape[2]
    try:
        mask = _block_mask(n_queries, n_keys, before, after, str(q_BHTK.device))
        grouped = q_BHTK.shape[1] != k_BGSK.shape[1]
        return _kernel()(q_BHTK, k_BGSK, v_BGSK, block_mask=mask, scale=scale, enable_gqa=grouped)
    except Exception as error:  # whatever a compiler may raise: there is another way
        _failed = True
        warnings.warn(f"FlexAttention cannot be compiled here, so windows go by blocks: {error}", stacklevel=2)
        return None


@cache
def _kernel() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


@lru_cache(maxsize=32)
def _block_mask(n_queries: int, n_keys: int, before: int, after: int, device: str) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    seen = predicate(before, after, n_keys - n_queries)
    return create_block_mask(seen, None, None, n_queries, n_keys, device=device)

"""Scaled dot-product attention, ``softmax(QKᵀ/√d_k + mask) V``: one signature over several equal paths.

``fused`` is PyTorch's kernel; ``blocks`` lets each block of queries read its window alone, so that the cost is linear
in length (on a GPU by `nn.flex`, where it can); ``tiled`` is FlashAttention in plain PyTorch, to be read (`nn.tiled`);
``explicit`` holds every score, to be traced. ``auto``, the default, takes ``explicit`` while a recorder looks,
``blocks`` where a window pays, else ``fused``. Another is chosen for whole models by
``with attention_path("tiled"): model(…)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from torch import Tensor

from glassformer.errors import UserError
from glassformer.nn import blocks, flex
from glassformer.nn import mask as masks
from glassformer.nn.fused import alive, fused, no_autocast
from glassformer.nn.tap import recording
from glassformer.nn.tiled import tiled

See = Callable[[Tensor], Tensor]
Path = Literal["auto", "fused", "blocks", "tiled", "explicit"]

_path: ContextVar[Path] = ContextVar("glassformer_attention_path", default="auto")


@contextmanager
def attention_path(path: Path) -> Iterator[None]:
    """All attention inside takes this path, in this thread; a recorder still makes it explicit.

    Raises:
        UserError: There is no such path.
    """
    if path not in get_args(Path):
        raise UserError(f"no attention path {path!r}; there are {', '.join(get_args(Path))}")
    token = _path.set(path)
    try:
        yield
    finally:
        _path.reset(token)


def attend(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    see_scores: See | None = None,
    see_pattern: See | None = None,
    path: Path | None = None,
) -> Tensor:
    """Lets every query gather the values of the keys it matches (Vaswani et al. 2017, equation 1).

    A query that may attend to nothing gets zeros, and passes no gradient, on every path.

    Args:
        q_BHTK: Queries.
        k_BGSK: Keys; each of the G heads serves H/G consecutive heads of queries.
        v_BGSK: Values.
        mask: Boolean, broadcastable to (B, H, T, S), True = may attend.
        causal: Query t stands at position S − T + t and sees no later key.
        window: Query t, standing there, sees only keys less than ``window`` places away.
        bias: Added to the scores, broadcastable to (B, H, T, S).
        scale: Multiplies the scores; ``None`` means ``1/√d_k``.
        see_scores: Called with the scaled and biased scores before masking, on the explicit path.
        see_pattern: Called with the weights after softmax, on the explicit path; zeros for a query without a key.
        path: Forces one; ``None`` is the one of ``attention_path``, or the explicit one while a recorder looks.
            ``blocks`` without a window, or with a bias or a mask of more than keys, is ``fused``.

    Returns:
        Shape (B, H, T, K), in the dtype of the queries.
    """
    path = path or ("explicit" if recording() else _path.get())
    with no_autocast(q_BHTK.device):
        if path == "tiled":
            return tiled(q_BHTK, k_BGSK, v_BGSK, mask=mask, causal=causal, window=window, bias=bias, scale=scale)
        if window is not None and bias is None and path in ("auto", "blocks"):
            out_BHTK = _by_blocks(q_BHTK, k_BGSK, v_BGSK, mask, causal, window, scale, forced=path == "blocks")
            if out_BHTK is not None:
                return out_BHTK
        mask, causal = _masked(q_BHTK, k_BGSK, mask, causal, window, alone=bias is None and path != "explicit")
        if path == "explicit":
            return _explicit(q_BHTK, k_BGSK, v_BGSK, mask, bias, scale, see_scores, see_pattern)
        return fused(q_BHTK, k_BGSK, v_BGSK, mask, causal, bias, scale)


def _by_blocks(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    mask: Tensor | None,
    causal: bool,
    window: int,
    scale: float | None,
    forced: bool,
) -> Tensor | None:
    """A window by blocks; ``None`` where it cannot be, or does not pay."""
    n_queries, n_keys, before, after = q_BHTK.shape[2], k_BGSK.shape[2], window - 1, 0 if causal else window - 1
    if not blocks.of_keys(mask) or n_queries > n_keys:
        return None
    if not (forced or blocks.pays(n_queries, n_keys, before, after)):
        return None
    if mask is None and not forced and flex.usable(q_BHTK):
        out_BHTK = flex.banded(q_BHTK, k_BGSK, v_BGSK, before, after, scale)
        if out_BHTK is not None:
            return out_BHTK
    mask_BS = None if mask is None else mask[:, 0, 0].expand(len(q_BHTK), n_keys)
    return blocks.banded(q_BHTK, k_BGSK, v_BGSK, before, after, mask_BS=mask_BS, scale=scale)


def _masked(
    q_BHTK: Tensor, k_BGSK: Tensor, mask: Tensor | None, causal: bool, window: int | None, alone: bool
) -> tuple[Tensor | None, bool]:
    """One mask for everything that hides keys, unless causality is ``alone``, which kernels know without one."""
    n_queries, n_keys, device = q_BHTK.shape[-2], k_BGSK.shape[-2], q_BHTK.device
    if window is not None and max(n_queries, n_keys) > window:
        mask = masks.combine(mask, masks.window(n_queries, n_keys, window, device))
    # A single query at the end may see every key, so decoding one token needs no causal mask.
    causal = causal and n_queries > 1
    if causal and (mask is not None or not alone or n_queries != n_keys):
        return masks.combine(mask, masks.causal(n_queries, n_keys, device)), False
    return mask, causal


def _explicit(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float | None,
    see_scores: See | None,
    see_pattern: See | None,
) -> Tensor:
    group = q_BHTK.shape[1] // k_BGSK.shape[1]
    k_BHSK, v_BHSK = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k_BGSK, v_BGSK))
    products_BHTS = q_BHTK @ k_BHSK.transpose(-1, -2)
    scores_BHTS = products_BHTS / math.sqrt(q_BHTK.shape[-1]) if scale is None else products_BHTS * scale
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    if see_scores is not None:
        scores_BHTS = see_scores(scores_BHTS)
    scores_BHTS = scores_BHTS.float()  # a float16 softmax overflows
    seen = None
    if mask is not None:
        mask, seen = alive(mask)
        scores_BHTS = scores_BHTS.masked_fill(~mask, -math.inf)
    pattern_BHTS = scores_BHTS.softmax(-1).to(v_BHSK.dtype)
    if seen is not None:
        pattern_BHTS = pattern_BHTS * seen
    if see_pattern is not None:
        pattern_BHTS = see_pattern(pattern_BHTS)
    return pattern_BHTS @ v_BHSK

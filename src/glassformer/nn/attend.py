"""Scaled dot-product attention, ``softmax(QKᵀ/√d_k + mask) V``: one signature over a fused and an explicit path."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.nn import mask as masks
from glassformer.nn.tap import recording

See = Callable[[Tensor], Tensor]


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
    explicit: bool | None = None,
) -> Tensor:
    """Lets every query gather the values of the keys it matches (Vaswani et al. 2017, equation 1).

    A query that may attend to nothing gets zeros, and passes no gradient, on both paths.

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
        explicit: Forces a path; by default the explicit one runs while a recorder looks.

    Returns:
        Shape (B, H, T, K), in the dtype of the queries.
    """
    n_queries, n_keys = q_BHTK.shape[-2], k_BGSK.shape[-2]
    explicit = recording() if explicit is None else explicit
    if window is not None and max(n_queries, n_keys) > window:
        mask = masks.combine(mask, masks.window(n_queries, n_keys, window, q_BHTK.device))
    # A single query at the end may see every key, so decoding one token needs no causal mask.
    causal = causal and n_queries > 1
    if causal and (mask is not None or bias is not None or explicit or n_queries != n_keys):
        mask = masks.combine(mask, masks.causal(n_queries, n_keys, q_BHTK.device))
        causal = False
    alive = None
    if mask is not None:
        # softmax over nothing is 0/0: a row without a key attends to all of them, and its result is taken back below.
        alive = mask.any(-1, keepdim=True)
        mask = mask | ~alive
    device = q_BHTK.device.type
    with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
        if explicit:
            return _explicit(q_BHTK, k_BGSK, v_BGSK, mask, alive, bias, scale, see_scores, see_pattern)
        out_BHTK = _fused(q_BHTK, k_BGSK, v_BGSK, mask, causal, bias, scale)
        return out_BHTK if alive is None else out_BHTK * alive


def _fused(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    mask: Tensor | None,
    causal: bool,
    bias: Tensor | None,
    scale: float | None,
) -> Tensor:
    dtype = q_BHTK.dtype
    if q_BHTK.device.type == "cpu":
        # Measured: at 10 tokens the CPU's bfloat16 kernel is seven times slower than its float32 one (docs/log.md).
        q_BHTK, k_BGSK, v_BGSK = q_BHTK.float(), k_BGSK.float(), v_BGSK.float()
    if bias is not None:
        bias = bias.to(q_BHTK.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -math.inf)
    grouped = q_BHTK.shape[1] != k_BGSK.shape[1]
    return F.scaled_dot_product_attention(
        q_BHTK, k_BGSK, v_BGSK, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    ).to(dtype)


def _explicit(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    mask: Tensor | None,
    alive: Tensor | None,
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
    if mask is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask, -math.inf)
    pattern_BHTS = scores_BHTS.softmax(-1).to(v_BHSK.dtype)
    if alive is not None:
        pattern_BHTS = pattern_BHTS * alive
    if see_pattern is not None:
        pattern_BHTS = see_pattern(pattern_BHTS)
    return pattern_BHTS @ v_BHSK

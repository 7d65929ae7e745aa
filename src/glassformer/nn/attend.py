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
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    see_scores: See | None = None,
    see_pattern: See | None = None,
    explicit: bool | None = None,
) -> Tensor:
    """Lets every query gather the values of the keys it matches (Vaswani et al. 2017, equation 1).

    A query that may attend to nothing gets zeros, and passes no gradient, on both paths.

    Args:
        q_BHTK: Queries.
        k_BHSK: Keys.
        v_BHSK: Values.
        mask: Boolean, broadcastable to (B, H, T, S), True = may attend.
        causal: Query t stands at position S − T + t and sees no later key.
        see_scores: Called with ``QKᵀ/√d_k`` before masking, on the explicit path.
        see_pattern: Called with the weights after softmax, on the explicit path; zeros for a query without a key.
        explicit: Forces a path; by default the explicit one runs while a recorder looks.

    Returns:
        Shape (B, H, T, K), in the dtype of the queries.
    """
    n_queries, n_keys = q_BHTK.shape[-2], k_BHSK.shape[-2]
    explicit = recording() if explicit is None else explicit
    # A single query at the end may see every key, so decoding one token needs no causal mask.
    causal = causal and n_queries > 1
    if causal and (mask is not None or explicit or n_queries != n_keys):
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
            return _explicit(q_BHTK, k_BHSK, v_BHSK, mask, alive, see_scores, see_pattern)
        out_BHTK = _fused(q_BHTK, k_BHSK, v_BHSK, mask, causal)
        return out_BHTK if alive is None else out_BHTK * alive


def _fused(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    dtype = q_BHTK.dtype
    if q_BHTK.device.type == "cpu":
        # Measured: at 10 tokens the CPU's bfloat16 kernel is seven times slower than its float32 one (docs/log.md).
        q_BHTK, k_BHSK, v_BHSK = q_BHTK.float(), k_BHSK.float(), v_BHSK.float()
    return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=mask, is_causal=causal).to(dtype)


def _explicit(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    mask: Tensor | None,
    alive: Tensor | None,
    see_scores: See | None,
    see_pattern: See | None,
) -> Tensor:
    scores_BHTS = q_BHTK @ k_BHSK.transpose(-1, -2) / math.sqrt(q_BHTK.shape[-1])
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

"""Attention by PyTorch's kernels, which never hold the scores."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """What is inside keeps the precision that it is given."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def alive(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The mask with rows that hide every key opened, and which rows see a key, (…, 1).

    Softmax over nothing is 0/0: a row without a key attends to all of them, and its result is taken back afterwards.
    """
    alive = mask.any(-1, keepdim=True)
    return mask | ~alive, alive


def fused(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """As ``attend``; ``causal`` goes with as many queries as keys, and with neither mask nor bias."""
    dtype, seen = q_BHTK.dtype, None
    if mask is not None:
        mask, seen = alive(mask)
    if q_BHTK.device.type == "cpu":
        # Measured: at 10 tokens the CPU's bfloat16 kernel is seven times slower than its float32 one (docs/log.md).
        q_BHTK, k_BGSK, v_BGSK = q_BHTK.float(), k_BGSK.float(), v_BGSK.float()
    if bias is not None:
        bias = bias.to(q_BHTK.dtype)
        mask = bias if mask is None else torch.where(mask, bias, -math.inf)
    grouped = q_BHTK.shape[1] != k_BGSK.shape[1]
    with no_autocast(q_BHTK.device):
        out_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BGSK, v_BGSK, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
        ).to(dtype)
    return out_BHTK if seen is None else out_BHTK * seen

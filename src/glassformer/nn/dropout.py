"""Dropout (Srivastava et al. 2014) that a CPU can afford."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

POOL = 1 << 23


@lru_cache(maxsize=8)
def _pool(probability: float, dtype: torch.dtype) -> Tensor:
    """A long vector of keep-or-drop decisions, each kept one already divided by ``1 − p``."""
    # Shared by every later call: inference mode or another default device around the first one must not stick to it.
    with torch.inference_mode(False), torch.device("cpu"):
        generator = torch.Generator().manual_seed(0x6C617373)
        kept = torch.rand(POOL, generator=generator) >= probability
        return kept.to(dtype) / (1.0 - probability)


class Dropout(nn.Module):
    """Zeroes each element with probability p in training and divides the rest by 1 − p.

    On a CPU, drawing a fresh mask costs as much as a small matrix product. Each mask is instead a slice, at a random
    offset, of a fixed pool of 8 million draws. The offset comes from torch's generator, so seeding and resuming that
    generator makes training repeatable. Elsewhere, and for tensors near the pool's size, it is ``torch.dropout``.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0.0:
            return x
        if x.device.type != "cpu" or 2 * x.numel() > POOL:
            return F.dropout(x, self.probability)
        offset = int(torch.randint(0, POOL - x.numel(), (1,), device="cpu"))
        return x * _pool(self.probability, x.dtype)[offset : offset + x.numel()].view(x.shape)

    def extra_repr(self) -> str:
        return f"p={self.probability}"

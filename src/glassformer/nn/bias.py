"""Relative positions as a bias of the attention scores, computed once a pass for a whole stack."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from glassformer.config import AlibiConfig, BiasConfig, T5BucketsConfig


def _distances(n_queries: int, n_keys: int, device: torch.device) -> Tensor:
    """Place of the key minus place of the query, shape (T, S); the last query stands where the last key stands."""
    keys_S = torch.arange(n_keys, device=device)
    return keys_S - keys_S[n_keys - n_queries :, None]


def buckets(distance: Tensor, config: T5BucketsConfig) -> Tensor:
    """The bucket of each distance: near ones have their own, far ones share one logarithmically.

    Raffel et al. 2020, arXiv:1910.10683, section 2.1. In float32, as the original: at a border the last digit decides.
    """
    count, first = config.buckets, torch.zeros_like(distance)
    if config.bidirectional:
        count //= 2
        first, distance = (distance > 0) * count, distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = count // 2
    ratio = (distance.float() / exact).clamp(min=1).log() / math.log(config.max_distance / exact)
    far = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
    return first + torch.where(distance < exact, distance, far)


class T5Buckets(nn.Module):
    """A learned number for each bucket and head."""

    def __init__(self, config: T5BucketsConfig, n_heads: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.buckets, n_heads))

    def forward(self, n_queries: int, n_keys: int) -> Tensor:
        """Gives the bias, shape (H, T, S)."""
        bucket_TS = buckets(_distances(n_queries, n_keys, self.weight.device), self.config)
        return self.weight[bucket_TS].permute(2, 0, 1)


class Alibi(nn.Module):
    """``−slope_h · |distance|``; the slopes are a geometric sequence (Press et al. 2022, section 3)."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        whole = 2 ** math.floor(math.log2(n_heads))
        slopes = [2 ** (-8 * (h + 1) / whole) for h in range(whole)]
        # Between two powers of two, every other slope of the next power fills up.
        slopes += [2 ** (-8 * (2 * h + 1) / (2 * whole)) for h in range(n_heads - whole)]
        self.slopes = slopes

    def forward(self, n_queries: int, n_keys: int) -> Tensor:
        """Gives the bias, shape (H, T, S)."""
        distance_TS = _distances(n_queries, n_keys, torch.device("cpu")).abs()
        return -torch.tensor(self.slopes)[:, None, None] * distance_TS


def build_bias(config: BiasConfig, n_heads: int) -> T5Buckets | Alibi:
    """The bias that the configuration is of."""
    return Alibi(n_heads) if isinstance(config, AlibiConfig) else T5Buckets(config, n_heads)

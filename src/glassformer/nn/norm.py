"""Normalisation of each token's own features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import LayerNormConfig, NormConfig


class RMSNorm(nn.Module):
    """``y = γ x / √(mean(x²) + ε)`` (Zhang and Sennrich 2019, arXiv:1910.07467), its statistics in float32."""

    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.rms_norm(x_BTD.float(), self.weight.shape, eps=self.eps).to(x_BTD.dtype) * self.weight

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


def build_norm(config: NormConfig, d_model: int) -> nn.LayerNorm | RMSNorm:
    """Layer normalisation, ``y = γ (x − mean) / √(variance + ε) + β``, or that of the root mean square.

    The variance is the biased one (divided by d) and ε stands inside the root (Ba et al. 2016, arXiv:1607.06450).
    """
    if isinstance(config, LayerNormConfig):
        return nn.LayerNorm(d_model, eps=config.eps, bias=config.bias)
    return RMSNorm(d_model, config.eps)

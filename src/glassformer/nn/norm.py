"""Normalisation."""

from __future__ import annotations

from torch import nn

from glassformer.config import LayerNormConfig


def build_norm(config: LayerNormConfig, d_model: int) -> nn.LayerNorm:
    """Layer normalisation: ``y = γ (x − mean) / √(variance + ε) + β`` over each token's own features.

    The variance is the biased one (divided by d) and ε stands inside the root (Ba et al. 2016, arXiv:1607.06450).
    """
    return nn.LayerNorm(d_model, eps=config.eps, bias=config.bias)

"""Learning-rate schedules, each a function of the step alone, and the optimizer."""

from __future__ import annotations

import math

import torch
from torch import nn

from glassformer.train.config import TrainSection


def learning_rate(step: int, config: TrainSection, d_model: int) -> float:
    """The learning rate of a step.

    ``inverse-sqrt`` rises linearly to ``lr`` and then falls as 1/√step. ``noam`` is the same shape in the paper's own
    terms, ``lr · d_model^−0.5 · min(step^−0.5, step · warmup^−1.5)`` (Vaswani et al. 2017, equation 3). ``linear`` and
    ``cosine`` fall to ``min_lr · lr`` at the last step.

    Args:
        step: 1 for the first step; 0 is taken as 1.
    """
    step = max(step, 1)
    warmup = max(config.warmup, 1)
    if config.schedule == "noam":
        return config.lr * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    if step < warmup:
        return config.lr * step / warmup
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "inverse-sqrt":
        return config.lr * math.sqrt(warmup / step)
    done = min(1.0, (step - warmup) / max(config.steps - warmup, 1))
    left = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.lr * (config.min_lr + (1.0 - config.min_lr) * left)


def build_optimizer(model: nn.Module, config: TrainSection) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); vectors (biases and norms) are not decayed."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)

"""Ids to vectors, and vectors back to logits."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import EmbedConfig, HeadConfig
from glassformer.nn.tap import Tap


class TokenEmbedding(nn.Module):
    """Looks up one row of the embedding matrix for each id, times √d_model where the config says so (section 3.4)."""

    def __init__(self, config: EmbedConfig, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, d_model))
        self.factor = math.sqrt(d_model) if config.scale else 1.0

    def forward(self, ids_BT: Tensor) -> Tensor:
        return F.embedding(ids_BT, self.weight) * self.factor


class OutputHead(nn.Module):
    """Linear map to one logit for each id, with its own matrix or, tied, with the embedding's."""

    def __init__(self, config: HeadConfig, d_model: int, vocab_size: int, tied: bool) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(vocab_size, d_model))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.bias else None
        self.logits = Tap("… V")

    def forward(self, x_D: Tensor, embedding: TokenEmbedding) -> Tensor:
        weight_VD = embedding.weight if self.weight is None else self.weight
        return self.logits(F.linear(x_D, weight_VD, self.bias))

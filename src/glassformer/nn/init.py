"""Initialisation schemes."""

from __future__ import annotations

import math

import torch
from torch import nn

from glassformer.nn.attention import MultiHead
from glassformer.nn.embed import OutputHead, TokenEmbedding
from glassformer.nn.position import PositionTable


@torch.no_grad()
def xavier_(model: nn.Module) -> None:
    """Xavier-uniform matrices (Glorot and Bengio 2010), embeddings with deviation 1/√d_model, zero biases.

    The query, key and value matrices get the gain 1/√2, as if the three were one matrix.
    Embeddings times √d_model then have unit variance, of the size of the positions added to them.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, TokenEmbedding | OutputHead | PositionTable) and isinstance(
            module.weight, nn.Parameter
        ):
            nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight.shape[1]))
    for module in model.modules():
        if isinstance(module, MultiHead):
            for projection in (module.query, module.key, module.value):
                nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))

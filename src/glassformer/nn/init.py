"""Initialisation schemes."""

from __future__ import annotations

import math

import torch
from torch import nn

from glassformer.config import InitConfig
from glassformer.nn.attention import MultiHead
from glassformer.nn.bias import T5Buckets
from glassformer.nn.block import Block
from glassformer.nn.embed import OutputHead, PatchEmbedding, TokenEmbedding
from glassformer.nn.mixer import Mixer, Part
from glassformer.nn.position import PositionTable

TABLES = TokenEmbedding | OutputHead | PositionTable | T5Buckets | PatchEmbedding
"""Modules whose own parameters are rows to look up, but for a bias."""


@torch.no_grad()
def initialise_(model: nn.Module, config: InitConfig) -> None:
    """Draws fresh weights by the scheme that the configuration names; biases are 0, gains of norms 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
    {"xavier": _xavier_, "normal": _normal_, "fan-in": _fan_in_}[config.type](model, config)
    for module in model.modules():
        if isinstance(module, Part):
            module.initialise_()


def tables(model: nn.Module) -> list[nn.Parameter]:
    """Embeddings, positions, output matrices: what is looked up by row."""
    owners = [module for module in model.modules() if isinstance(module, TABLES)]
    return [p for owner in owners for name, p in owner.named_parameters(recurse=False) if name != "bias"]


def matrices(model: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    """Everything that multiplies."""
    return [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


def _xavier_(model: nn.Module, config: InitConfig) -> None:
    """Xavier-uniform matrices (Glorot and Bengio 2010), embeddings with deviation 1/√d_model.

    The query, key and value matrices get the gain 1/√2, as if the three were one matrix.
    Embeddings times √d_model then have unit variance, of the size of the positions added to them.
    """
    for module in matrices(model):
        nn.init.xavier_uniform_(module.weight)
    for table in tables(model):
        nn.init.normal_(table, std=1 / math.sqrt(table.shape[-1]))
    for part in model.modules():
        if isinstance(part, MultiHead):
            for projection in (part.query, part.key, part.value):
                nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))


def _normal_(model: nn.Module, config: InitConfig) -> None:
    for weight in [module.weight for module in matrices(model)] + tables(model):
        nn.init.normal_(weight, std=config.std)
    if not config.residual:
        return
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    ends = [
        end
        for block in blocks
        for end in (*_ends(block.mixer), block.cross and block.cross.out, getattr(block.ffn, "down", None))
        if isinstance(end, nn.Linear)
    ]
    for end in ends:
        nn.init.normal_(end.weight, std=config.std / math.sqrt(len(ends)))


def _ends(mixer: Mixer) -> list[nn.Linear]:
    """The linear layers through which a mixer adds to the residual."""
    both = [each for each in mixer.children() if isinstance(each, Mixer)]
    return [each.out for each in both] if both else [mixer.out]


def _fan_in_(model: nn.Module, config: InitConfig) -> None:
    for module in matrices(model):
        nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
    for table in tables(model):
        nn.init.normal_(table)
    for part in model.modules():
        if isinstance(part, MultiHead) and part.config.scale == 1.0:
            # Scores that nothing divides by √d_head: the queries' matrix does it once for all.
            part.query.weight.mul_((part.query.out_features / part.config.n_heads) ** -0.5)

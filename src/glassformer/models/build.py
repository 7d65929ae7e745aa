"""From a configuration to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from glassformer.config import ModelConfig
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.seq2seq import Seq2Seq
from glassformer.nn.init import initialise_
from glassformer.nn.position import PositionTable

MODELS = {"encoder": Encoder, "decoder": Decoder, "encoder-decoder": Seq2Seq}


def build_model(config: ModelConfig, device: str | torch.device = "cpu", *, initialise: bool = True) -> Any:
    """Builds a model: an ``Encoder``, a ``Decoder`` or a ``Seq2Seq``, by the stacks that the configuration holds.

    Args:
        config: The model's whole shape.
        device: Where its parameters live; ``"meta"`` holds shapes only and takes no memory.
        initialise: Draw fresh weights; without it they are arbitrary, for a loader that replaces them all.
    """
    with torch.device(device):
        model = MODELS[config.kind](config)
    if initialise and torch.device(device).type != "meta":
        initialise_(model, config.init)
    return model


def model_of(config: ModelConfig, weights: Mapping[str, Tensor]) -> Any:
    """Builds a model around tensors as they are, such as memory-mapped ones, without a second copy of them.

    Args:
        config: The model's whole shape.
        weights: All of its ``state_dict``, checked by the caller.
    """
    model = build_model(config, "meta", initialise=False)
    model.load_state_dict(weights, assign=True)
    for module in model.modules():
        if isinstance(module, PositionTable) and not isinstance(module.weight, torch.nn.Parameter):
            module.weight = module.fixed(config.d_model)
    return model

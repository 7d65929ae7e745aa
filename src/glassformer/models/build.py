"""From a configuration to a model."""

from __future__ import annotations

import torch

from glassformer.config import ModelConfig
from glassformer.models.seq2seq import Seq2Seq
from glassformer.nn.init import xavier_


def build_model(config: ModelConfig, device: str | torch.device = "cpu", *, initialise: bool = True) -> Seq2Seq:
    """Builds a model.

    Args:
        config: The model's whole shape.
        device: Where its parameters live; ``"meta"`` holds shapes only and takes no memory.
        initialise: Draw fresh weights; without it they are arbitrary, for a loader that replaces them all.
    """
    with torch.device(device):
        model = Seq2Seq(config)
    if initialise:
        xavier_(model)
    return model

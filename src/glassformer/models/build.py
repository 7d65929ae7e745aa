"""From a configuration to a model."""

from __future__ import annotations

import torch

from glassformer.config import ModelConfig
from glassformer.models.seq2seq import Seq2Seq


def build_model(config: ModelConfig, device: str | torch.device = "cpu") -> Seq2Seq:
    """Builds a freshly initialised model.

    Args:
        config: The model's whole shape.
        device: Where its parameters live; ``"meta"`` holds shapes only and takes no memory.
    """
    with torch.device(device):
        return Seq2Seq(config)

"""Ids or images to vectors, and vectors back to logits."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import EmbedConfig, HeadConfig, InputConfig, PatchEmbedConfig
from glassformer.errors import UserError
from glassformer.nn.tap import Tap


class TokenEmbedding(nn.Module):
    """Looks up one row of the embedding matrix for each id, times √d_model where the config says so (section 3.4).

    With ``token_types``, the row of the token's segment is added (Devlin et al. 2019).
    """

    def __init__(self, config: EmbedConfig, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, d_model))
        self.token_types = nn.Parameter(torch.empty(config.token_types, d_model)) if config.token_types else None
        self.factor = math.sqrt(d_model) if config.scale else 1.0

    def forward(self, ids_BT: Tensor, token_types_BT: Tensor | None = None) -> Tensor:
        """Args:
        ids_BT: Token ids.
        token_types_BT: Segments; ``None`` means 0 everywhere.
        """
        x_BTD = F.embedding(ids_BT, self.weight) * self.factor
        if self.token_types is None:
            return x_BTD
        return x_BTD + (self.token_types[0] if token_types_BT is None else self.token_types[token_types_BT])


class PatchEmbedding(nn.Module):
    """Projects each patch of an image, puts the class token before them and adds learned positions.

    Dosovitskiy et al. 2021, arXiv:2010.11929, equation 1. For another image size than the stored one, the grid of
    positions is interpolated (bicubic, as in section 3.2 of the paper's fine-tuning).
    """

    def __init__(self, config: PatchEmbedConfig, d_model: int) -> None:
        super().__init__()
        self.config = config
        self.patch = nn.Conv2d(config.channels, d_model, config.patch_size, config.patch_size, bias=config.bias)
        self.class_token = nn.Parameter(torch.empty(d_model)) if config.class_token else None
        rows, columns = config.grid
        self.position = nn.Parameter(torch.empty(rows * columns + config.class_token, d_model))
        self.patches, self.positions = Tap("B P D"), Tap("T D")

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        """Gives one vector for each patch, row by row, the class token's first: shape (B, T, D).

        Raises:
            UserError: The image has another number of channels, or is no multiple of the patches.
        """
        (height, width), channels = self.config.patch_size, self.config.channels
        if pixels_BCHW.dim() != 4 or pixels_BCHW.shape[1] != channels:
            raise UserError(f"pixels of shape {list(pixels_BCHW.shape)}, but the model reads (B, {channels}, H, W)")
        if pixels_BCHW.shape[2] % height or pixels_BCHW.shape[3] % width or not pixels_BCHW.numel():
            size = " × ".join(map(str, pixels_BCHW.shape[2:]))
            raise UserError(f"an image of {size} pixels is no multiple of patches of {height} × {width}; resize it")
        x_BDHW = self.patch(pixels_BCHW)
        x_BTD = self.patches(x_BDHW.flatten(2).transpose(1, 2))
        if self.class_token is not None:
            x_BTD = torch.cat([self.class_token.expand(len(x_BTD), 1, -1), x_BTD], 1)
        return x_BTD + self.positions(self._positions(x_BDHW.shape[2], x_BDHW.shape[3]))

    def _positions(self, rows: int, columns: int) -> Tensor:
        if (rows, columns) == self.config.grid:
            return self.position
        extra = int(self.config.class_token)
        grid_1DHW = self.position[extra:].T.unflatten(1, self.config.grid)[None]
        grid_1DHW = F.interpolate(grid_1DHW, (rows, columns), mode="bicubic", align_corners=False)
        return torch.cat([self.position[:extra], grid_1DHW[0].flatten(1).T])


def build_embedding(config: InputConfig, d_model: int) -> TokenEmbedding | PatchEmbedding:
    """The embedding that the configuration is of."""
    if isinstance(config, PatchEmbedConfig):
        return PatchEmbedding(config, d_model)
    return TokenEmbedding(config, d_model)


class OutputHead(nn.Module):
    """Linear map to one logit for each id, with its own matrix or, tied, with the embedding's."""

    def __init__(self, config: HeadConfig, d_model: int, vocab_size: int, tied: bool) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(vocab_size, d_model))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.bias else None
        self.factor = d_model**-0.5 if config.scale else 1.0
        self.logits = Tap("… V")

    def forward(self, x_D: Tensor, embedding: Any, mask_BT: Tensor | None = None) -> Tensor:
        weight_VD = embedding.weight if self.weight is None else self.weight
        x_D = x_D if self.factor == 1.0 else x_D * self.factor
        return self.logits(F.linear(x_D, weight_VD, self.bias))

"""Blocks in a row."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from glassformer.config import AttentionConfig, StackConfig
from glassformer.nn import mask as masks
from glassformer.nn import rotary
from glassformer.nn.bias import build_bias
from glassformer.nn.block import Block
from glassformer.nn.dropout import Dropout
from glassformer.nn.mixer import Context
from glassformer.nn.norm import build_norm
from glassformer.nn.position import PositionTable
from glassformer.nn.recurrence import Recurrence
from glassformer.nn.state import BlockState
from glassformer.nn.tap import Tap


class Stack(nn.Module):
    """Adds positions to embeddings, then passes them through every block and the final norm.

    What the blocks share in one pass, rotary tables and a bias of the scores, is computed here once.
    """

    def __init__(self, config: StackConfig, d_model: int) -> None:
        super().__init__()
        self.config = config
        attentions = [block.mixer for block in config.blocks if isinstance(block.mixer, AttentionConfig)]
        self._rotary = {each.rotary: each.head_size(d_model) for each in attentions if each.rotary}
        self.position = PositionTable(config.position, d_model) if config.position else None
        self.bias = build_bias(config.bias, attentions[0].n_heads) if config.bias and attentions else None
        self.input_norm = build_norm(config.input_norm, d_model) if config.input_norm else None
        self.dropout = Dropout(config.dropout)
        self.embedded, self.input = Tap("B T D"), Tap("B T D")
        self.positions = Tap("B T D") if config.position else None
        self.layers = nn.ModuleList(Block(block, d_model) for block in config.blocks)
        self.final_norm = build_norm(config.final_norm, d_model) if config.final_norm else None
        self.output = Tap("B T D")
        self._recurrent = any(isinstance(module, Recurrence) for module in self.modules())

    def forward(self, x_BTD: Tensor, ctx: Context, states: list[BlockState] | None = None) -> Tensor:
        x_BTD = self.embedded(x_BTD)
        ctx = self._prepared(ctx, x_BTD)
        if self.position is not None and self.positions is not None:
            positions = self.position(x_BTD.shape[1], ctx.start, ctx.positions_BT)
            x_BTD = x_BTD + self.positions(positions.expand(x_BTD.shape))
        if self.input_norm is not None:
            x_BTD = self.input_norm(x_BTD)
        x_BTD = self.input(self.dropout(x_BTD))
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, ctx, states[index] if states else None)
        if self.final_norm is not None:
            x_BTD = self.final_norm(x_BTD)
        return self.output(x_BTD)

    def _prepared(self, ctx: Context, x_BTD: Tensor) -> Context:
        """The context with what every block reads of it."""
        n_tokens, end = x_BTD.shape[1], ctx.start + x_BTD.shape[1]
        positions_BT = ctx.positions_BT
        if positions_BT is None and ctx.mask_BS is not None and (self.position is not None or self._rotary):
            positions_BT = masks.positions(ctx.mask_BS)
        tables = {}
        if self._rotary:
            # One row of angles for the whole batch, or one for each row and all of its heads.
            at = torch.arange(ctx.start, end, device=x_BTD.device) if positions_BT is None else positions_BT[:, None]
            tables = {config: rotary.tables(config, size, at, end) for config, size in self._rotary.items()}
        bias_HTS = None if self.bias is None else self.bias(n_tokens, end).to(x_BTD.device)
        holes = self._recurrent and ctx.mask_BS is not None and ctx.start == 0 and masks.holes(ctx.mask_BS)
        return replace(ctx, positions_BT=positions_BT, bias_HTS=bias_HTS, rotary=tables, holes=holes, slots={})

    def init_states(self, memory_BSD: Tensor | None) -> list[BlockState]:
        """One empty state for each block."""
        return [layer.init_state(memory_BSD) for layer in self.layers if isinstance(layer, Block)]

"""Blocks in a row."""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.config import StackConfig
from glassformer.nn.block import Block
from glassformer.nn.dropout import Dropout
from glassformer.nn.mixer import Context
from glassformer.nn.norm import build_norm
from glassformer.nn.position import PositionTable
from glassformer.nn.state import BlockState
from glassformer.nn.tap import Tap


class Stack(nn.Module):
    """Adds positions to embeddings, then passes them through every block and the final norm."""

    def __init__(self, config: StackConfig, d_model: int) -> None:
        super().__init__()
        self.position = PositionTable(config.position, d_model) if config.position else None
        self.dropout = Dropout(config.dropout)
        self.embedded, self.positions, self.input = Tap("B T D"), Tap("T D"), Tap("B T D")
        self.layers = nn.ModuleList(Block(block, d_model) for block in config.blocks)
        self.final_norm = build_norm(config.final_norm, d_model) if config.final_norm else None
        self.output = Tap("B T D")

    def forward(self, x_BTD: Tensor, ctx: Context, states: list[BlockState] | None = None) -> Tensor:
        x_BTD = self.embedded(x_BTD)
        if self.position is not None:
            x_BTD = x_BTD + self.positions(self.position(x_BTD.shape[1], ctx.start))
        x_BTD = self.input(self.dropout(x_BTD))
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, ctx, states[index] if states else None)
        if self.final_norm is not None:
            x_BTD = self.final_norm(x_BTD)
        return self.output(x_BTD)

    def init_states(self, memory_BSD: Tensor | None) -> list[BlockState]:
        """One empty state for each block."""
        return [layer.init_state(memory_BSD) for layer in self.layers if isinstance(layer, Block)]

"""One layer of a stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from glassformer.config import (
    AttentionConfig,
    BidirectionalConfig,
    BlockConfig,
    BlocksConfig,
    Config,
    LSTMConfig,
    Mamba2Config,
    MambaConfig,
    MixerConfig,
    RetentionConfig,
    RWKV4Config,
    RWKV5Config,
    RWKV7Config,
    SlidingConfig,
)
from glassformer.nn.attention import CrossAttention, SelfAttention
from glassformer.nn.dropout import Dropout
from glassformer.nn.ffn import build_ffn
from glassformer.nn.lstm import LSTM
from glassformer.nn.mixer import Context, Mixer
from glassformer.nn.norm import build_norm
from glassformer.nn.recurrence import Bidirectional
from glassformer.nn.retention import Retention
from glassformer.nn.rwkv import RWKV4
from glassformer.nn.rwkv5 import RWKV5
from glassformer.nn.rwkv7 import RWKV7
from glassformer.nn.sparse import BlockAttention, SlidingAttention
from glassformer.nn.ssm import Mamba, Mamba2
from glassformer.nn.state import BlockState
from glassformer.nn.tap import Tap

MIXERS: dict[type[Config], Callable[[Any, int], Mixer]] = {
    AttentionConfig: SelfAttention,
    RetentionConfig: Retention,
    LSTMConfig: LSTM,
    RWKV4Config: RWKV4,
    RWKV5Config: RWKV5,
    RWKV7Config: RWKV7,
    MambaConfig: Mamba,
    Mamba2Config: Mamba2,
    SlidingConfig: SlidingAttention,
    BlocksConfig: BlockAttention,
}
"""The part that each configuration is of."""


def build_mixer(config: MixerConfig, d_model: int) -> Mixer:
    """The mixer that the configuration is of."""
    if isinstance(config, BidirectionalConfig):
        return Bidirectional(build_mixer(config.mixer, d_model), build_mixer(config.mixer, d_model))
    return MIXERS[type(config)](config, d_model)


class Residual(nn.Module):
    """The residual connection, dropout and norm around one sub-layer f.

    ``post``: ``norm(x + f(x))`` (Vaswani et al. 2017, section 3.1). ``pre``: ``x + f(norm(x))`` (Xiong et al. 2020).
    """

    def __init__(self, config: BlockConfig, d_model: int) -> None:
        super().__init__()
        self.order = config.order
        self.norm = build_norm(config.norm, d_model)
        self.dropout = Dropout(config.dropout)
        self.normed, self.sum = Tap("B T D"), Tap("B T D")

    def forward(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor], onto_BTD: Tensor | None = None) -> Tensor:
        """Adds ``f`` of x to x, or to ``onto`` where another sub-layer read the same x before."""
        if self.order == "pre":
            added_BTD = self.dropout(sublayer(self.normed(self.norm(x_BTD))))
            return self.sum((x_BTD if onto_BTD is None else onto_BTD) + added_BTD)
        return self.normed(self.norm(self.sum(x_BTD + self.dropout(sublayer(x_BTD)))))


class Block(nn.Module):
    """A mixer, perhaps cross-attention, perhaps a feed-forward part; nothing else."""

    def __init__(self, config: BlockConfig, d_model: int) -> None:
        super().__init__()
        self.parallel = config.parallel
        self.mixer = build_mixer(config.mixer, d_model)
        self.mixer_residual = Residual(config, d_model)
        self.cross = CrossAttention(config.cross, d_model) if config.cross else None
        self.cross_residual = Residual(config, d_model) if config.cross else None
        self.ffn = build_ffn(config.ffn, d_model) if config.ffn else None
        self.ffn_residual = Residual(config, d_model) if config.ffn else None

    def forward(self, x_BTD: Tensor, ctx: Context, state: BlockState | None = None) -> Tensor:
        mixer_state, cross_state, ffn_state = (state.mixer, state.cross, state.ffn) if state else (None, None, None)
        mixed_BTD = self.mixer_residual(x_BTD, lambda y: self.mixer(y, ctx, mixer_state))
        ffn = self.ffn
        if self.parallel and ffn is not None and self.ffn_residual is not None:
            return self.ffn_residual(x_BTD, lambda y: ffn(y, ctx, ffn_state), mixed_BTD)
        x_BTD = mixed_BTD
        if self.cross is not None and self.cross_residual is not None:
            cross = self.cross
            x_BTD = self.cross_residual(x_BTD, lambda y: cross(y, ctx, cross_state))
        if ffn is not None and self.ffn_residual is not None:
            x_BTD = self.ffn_residual(x_BTD, lambda y: ffn(y, ctx, ffn_state))
        return x_BTD

    def init_state(self, memory_BSD: Tensor | None) -> BlockState:
        """An empty state, with the encoder's output already projected for cross-attention."""
        cross = self.cross.memory_state(memory_BSD) if self.cross is not None and memory_BSD is not None else None
        return BlockState(self.mixer.init_state(), cross, self.ffn.init_state() if self.ffn is not None else None)

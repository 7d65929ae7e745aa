"""Feed-forward parts: what each position does on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import ChannelMixConfig, Config, FFNConfig, GatedMLPConfig, MLPConfig
from glassformer.nn.mixer import Context, Part
from glassformer.nn.rwkv import ChannelMix
from glassformer.nn.state import State
from glassformer.nn.tap import Tap

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "quick-gelu": lambda x: x * (1.702 * x).sigmoid(),
    "tanh": lambda x: x.tanh(),
}


class MLP(Part):
    """``FFN(x) = activation(x W_1 + b_1) W_2 + b_2`` (Vaswani et al. 2017, equation 2)."""

    def __init__(self, config: MLPConfig, d_model: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, config.d_ff, bias=config.bias)
        self.down = nn.Linear(config.d_ff, d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.pre, self.post, self.result = Tap("B T F"), Tap("B T F"), Tap("B T D")

    def forward(self, x_BTD: Tensor, ctx: Context | None = None, state: State | None = None) -> Tensor:
        hidden_BTF = self.post(self.activation(self.pre(self.up(x_BTD))))
        return self.result(self.down(hidden_BTF))


class GatedMLP(Part):
    """``FFN(x) = (activation(x W) ⊗ x V) W_2`` (Shazeer 2020, equation 6); W is ``gate``, V ``up``, W_2 ``down``."""

    def __init__(self, config: GatedMLPConfig, d_model: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, config.d_ff, bias=config.bias)
        self.up = nn.Linear(d_model, config.d_ff, bias=config.bias)
        self.down = nn.Linear(config.d_ff, d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.pre, self.linear, self.post, self.result = Tap("B T F"), Tap("B T F"), Tap("B T F"), Tap("B T D")

    def forward(self, x_BTD: Tensor, ctx: Context | None = None, state: State | None = None) -> Tensor:
        gate_BTF = self.activation(self.pre(self.gate(x_BTD)))
        return self.result(self.down(self.post(gate_BTF * self.linear(self.up(x_BTD)))))


FFNS: dict[type[Config], Callable[[Any, int], Part]] = {
    MLPConfig: MLP,
    GatedMLPConfig: GatedMLP,
    ChannelMixConfig: ChannelMix,
}


def build_ffn(config: FFNConfig, d_model: int) -> Part:
    """The feed-forward part that the configuration is of."""
    return FFNS[type(config)](config, d_model)

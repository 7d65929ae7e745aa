"""The LSTM, the recurrence that the Transformer was measured against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import LSTMConfig
from glassformer.nn.fused import no_autocast
from glassformer.nn.mixer import Kept
from glassformer.nn.recurrence import Recurrence
from glassformer.nn.state import Memory
from glassformer.nn.tap import Tap, recording

SHUT = 1e4
"""A number whose sigmoid is 1, and whose negative's sigmoid is 0, in every precision."""


class LSTM(Recurrence):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; with the forget gate of Gers et al. 2000).

    ``i, f, g, o = W x_t + U h_(t−1) + b``; ``c_t = σ(f) c_(t−1) + σ(i) tanh(g)``; ``h_t = σ(o) tanh(c_t)`` comes out,
    through one more matrix where it is not as wide as the model. PyTorch's fused kernel reads whole sequences; a tracer
    is shown the same step by step. Padding on the left carries one more feature, which shuts the input gate.
    """

    def __init__(self, config: LSTMConfig, d_model: int) -> None:
        super().__init__()
        self.config, self.width = config, config.d_hidden or d_model
        self.input = nn.Linear(d_model, 4 * self.width, bias=config.bias)
        self.hidden = nn.Linear(self.width, 4 * self.width, bias=False)
        same = self.width == d_model
        # The one mixer that may need no matrix: what asks for that of any mixer asks whether it is one.
        self.out = nn.Identity() if same else nn.Linear(self.width, d_model, config.bias)  # type: ignore[assignment]
        self.input_gate, self.forget_gate = Tap("B T E"), Tap("B T E")
        self.candidate, self.output_gate = Tap("B T E"), Tap("B T E")
        self.cell, self.result = Tap("B T E"), Tap("B T D")

    def scan(self, x_BTD: Tensor, real_BT: Tensor | None, memory: Memory | None) -> tuple[Tensor, Memory]:
        weights = [self.input.weight, self.hidden.weight]
        x_BTD = x_BTD.to(weights[0].dtype)
        if memory is None:
            zeros_BE = x_BTD.new_zeros(len(x_BTD), self.width)
            memory = {"h": zeros_BE, "c": zeros_BE}
        if self.input.bias is not None:
            weights += [self.input.bias, torch.zeros_like(self.input.bias)]
        if real_BT is not None:
            shut_E = x_BTD.new_tensor([-SHUT, SHUT, 0.0, 0.0]).repeat_interleave(self.width)
            weights[0] = torch.cat([weights[0], shut_E[:, None]], 1)
            padding_BT1 = (~real_BT)[..., None]
            x_BTD = torch.cat([x_BTD.masked_fill(padding_BT1, 0.0), padding_BT1.to(x_BTD.dtype)], -1)
        with no_autocast(x_BTD.device):
            if recording():
                y_BTE, h_BE, c_BE = self._steps(x_BTD, weights, memory["h"], memory["c"])
            else:
                before = (memory["h"][None], memory["c"][None])
                biased = self.input.bias is not None
                y_BTE, h_1BE, c_1BE = torch.lstm(x_BTD, before, weights, biased, 1, 0.0, self.training, False, True)
                h_BE, c_BE = h_1BE[0], c_1BE[0]
        return self.result(self.out(y_BTE)), {"h": h_BE, "c": c_BE}

    def _steps(self, x_BTD: Tensor, weights: list[Tensor], h_BE: Tensor, c_BE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same, one token after the other, with every gate to be seen."""
        seen: list[tuple[Tensor, ...]] = []
        for x_BD in x_BTD.unbind(1):
            bias_E = weights[2] if len(weights) > 2 else None
            i, f, g, o = (F.linear(x_BD, weights[0], bias_E) + F.linear(h_BE, weights[1])).chunk(4, -1)
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            c_BE = f * c_BE + i * g
            h_BE = o * c_BE.tanh()
            seen.append((i, f, g, o, c_BE, h_BE))
        *gates, y_BTE = (torch.stack(each, 1) for each in zip(*seen, strict=True))
        taps = (self.input_gate, self.forget_gate, self.candidate, self.output_gate, self.cell)
        for tap, value_BTE in zip(taps, gates, strict=True):
            tap(value_BTE)
        return y_BTE, h_BE, c_BE

    def flops(self, context: int) -> int:
        return 4 * self.width

    def kept(self) -> Kept:
        return Kept(constant=2 * self.width)

    def shape(self) -> str:
        return f"{self.width} wide"

    def initialise_(self) -> None:
        if self.input.bias is not None:
            # What is remembered stays at first (Jozefowicz et al. 2015, section 2.2).
            self.input.bias[self.width : 2 * self.width].fill_(1.0)

"""RWKV-4's parts, and what RWKV-5 and RWKV-7 share with it.

Axes besides those of `nn`: A the width of the time-mix. Everything is exact for any length: nothing is cut into chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.config import ChannelMixConfig, RWKV4Config
from glassformer.nn.fused import no_autocast
from glassformer.nn.mixer import Kept
from glassformer.nn.recurrence import Recurrence
from glassformer.nn.state import Memory
from glassformer.nn.tap import Tap

AT_ONCE = 30.0
"""A decay's parameter by which all is forgotten at the next token; beyond, its exponential would overflow."""

NOTHING = -1e30
"""The logarithm of no weight at all: finite, so that no difference of two is undefined."""


def before(x_BTD: Tensor, real_BT: Tensor | None, memory: Memory | None) -> tuple[Tensor, Tensor]:
    """Token shift: each token's hidden state, 0 where it is padding, and that of the token before it."""
    if real_BT is not None:
        x_BTD = x_BTD * real_BT[..., None]
    last_BD = torch.zeros_like(x_BTD[:, 0]) if memory is None else memory["last"]
    return x_BTD, torch.cat([last_BD[:, None], x_BTD[:, :-1]], 1)


def mixed(x_BTD: Tensor, before_BTD: Tensor, share_D: Tensor) -> Tensor:
    """``μ x_t + (1 − μ) x_(t−1)``."""
    return before_BTD + (x_BTD - before_BTD) * share_D


def shares(*powers: float, d_model: int) -> list[nn.Parameter]:
    """Shares μ of the current token that grow over the features from 0 to 1, each by its own power."""
    ramp_D = torch.arange(d_model) / d_model
    return [nn.Parameter(ramp_D**power) for power in powers]


class ChannelMix(Recurrence):
    """The feed-forward part of RWKV, which sees the token before, too.

    ``k = μ_k x_t + (1 − μ_k) x_(t−1)``; ``relu(k W_k)² W_v`` comes out, in RWKV-4 and RWKV-5 times ``σ(r W_r)`` with r
    mixed likewise (Peng et al. 2023, arXiv:2305.13048, equations 12, 13 and 18).
    """

    def __init__(self, config: ChannelMixConfig, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.mix_key = nn.Parameter(torch.empty(d_model))
        self.up = nn.Linear(d_model, config.d_ff, bias=False)
        self.down = nn.Linear(config.d_ff, d_model, bias=False)
        self.pre, self.post, self.result = Tap("B T F"), Tap("B T F"), Tap("B T D")
        self.mix_gate = nn.Parameter(torch.empty(d_model)) if config.gate else None
        self.gate = nn.Linear(d_model, d_model, bias=False) if config.gate else None
        self.opened = Tap("B T D") if config.gate else None

    def scan(self, x_BTD: Tensor, real_BT: Tensor | None, memory: Memory | None) -> tuple[Tensor, Memory]:
        x_BTD, before_BTD = before(x_BTD, real_BT, memory)
        pre_BTF = self.pre(self.up(mixed(x_BTD, before_BTD, self.mix_key)))
        y_BTD = self.down(self.post(pre_BTF.relu().square()))
        if self.gate is not None and self.mix_gate is not None and self.opened is not None:
            y_BTD = y_BTD * self.opened(self.gate(mixed(x_BTD, before_BTD, self.mix_gate)).sigmoid())
        return self.result(y_BTD), {"last": x_BTD[:, -1]}

    def kept(self) -> Kept:
        return Kept(constant=self.d_model)

    def shape(self) -> str:
        return "relu²" if self.gate is None else "relu², gated"

    def initialise_(self) -> None:
        (ramp,) = shares(0.5, d_model=self.d_model)
        for mix in (self.mix_key, self.mix_gate):
            if mix is not None:
                mix.copy_(ramp)


class RWKV4(Recurrence):
    """RWKV-4's time-mix: a mean of all values so far, each weighted by its key and its age.

    ``wkv_t = (Σ_(i<t) e^(k_i − (t−1−i) w) v_i + e^(u + k_t) v_t) / (Σ_(i<t) e^(k_i − (t−1−i) w) + e^(u + k_t))`` for
    each channel, where ``w = e^decay``, and ``(σ(r) ⊙ wkv) W_o`` comes out (Peng et al. 2023, arXiv:2305.13048,
    equations 11 to 17). What is remembered is the mean, and the logarithm of the sum of its weights. Two such pairs
    make one, so that all the tokens are read in log₂ T rounds, each of which joins every pair with one twice as far
    away as the round before. No exponential leaves [0, 1], as with the running maximum of the paper's appendix.

    Deviation: fresh shares and decays grow over the channels, but are the same in every layer.
    """

    def __init__(self, config: RWKV4Config, d_model: int) -> None:
        super().__init__()
        self.d_model, self.width = d_model, config.d_attention or d_model
        self.mix_key, self.mix_value, self.mix_receptance = (nn.Parameter(torch.empty(d_model)) for _ in range(3))
        self.decay, self.first = nn.Parameter(torch.empty(self.width)), nn.Parameter(torch.empty(self.width))
        self.receptance = nn.Linear(d_model, self.width, bias=False)
        self.key = nn.Linear(d_model, self.width, bias=False)
        self.value = nn.Linear(d_model, self.width, bias=False)
        self.out = nn.Linear(self.width, d_model, bias=False)
        self.k, self.v, self.r = Tap("B T A"), Tap("B T A"), Tap("B T A")
        self.wkv, self.result = Tap("B T A"), Tap("B T D")

    def scan(self, x_BTD: Tensor, real_BT: Tensor | None, memory: Memory | None) -> tuple[Tensor, Memory]:
        x_BTD, before_BTD = before(x_BTD, real_BT, memory)
        r_BTA = self.r(self.receptance(mixed(x_BTD, before_BTD, self.mix_receptance)).sigmoid())
        k_BTA = self.k(self.key(mixed(x_BTD, before_BTD, self.mix_key))).float()
        v_BTA = self.v(self.value(mixed(x_BTD, before_BTD, self.mix_value))).float()
        if real_BT is not None:
            k_BTA = k_BTA.masked_fill(~real_BT[..., None], NOTHING)
        if memory is None:
            weight_BA, mean_BA = torch.full_like(k_BTA[:, 0], NOTHING), torch.zeros_like(k_BTA[:, 0])
        else:
            weight_BA, mean_BA = memory["weight"], memory["mean"]
        with no_autocast(x_BTD.device):
            weight_BTA, mean_BTA = self._means(
                torch.cat([weight_BA[:, None], k_BTA], 1), torch.cat([mean_BA[:, None], v_BTA], 1)
            )
            share_BTA = (self.first.float() + k_BTA - weight_BTA[:, :-1]).sigmoid()
            wkv_BTA = mean_BTA[:, :-1] + (v_BTA - mean_BTA[:, :-1]) * share_BTA
        y_BTD = self.result(self.out(r_BTA * self.wkv(wkv_BTA.to(r_BTA.dtype))))
        return y_BTD, {"last": x_BTD[:, -1], "weight": weight_BTA[:, -1], "mean": mean_BTA[:, -1]}

    def _means(self, weight_BTA: Tensor, mean_BTA: Tensor) -> tuple[Tensor, Tensor]:
        """The logarithm of the weights, and the mean, of everything up to each place (Hillis and Steele 1986)."""
        rate_A, stride = self.decay.float().clamp(max=AT_ONCE).exp(), 1
        while stride < weight_BTA.shape[1]:
            far_BTA, near_BTA = weight_BTA[:, :-stride] - stride * rate_A, weight_BTA[:, stride:]
            share_BTA = (far_BTA - near_BTA).sigmoid()
            joined_BTA = torch.lerp(mean_BTA[:, stride:], mean_BTA[:, :-stride], share_BTA)
            mean_BTA = torch.cat([mean_BTA[:, :stride], joined_BTA], 1)
            weight_BTA = torch.cat([weight_BTA[:, :stride], torch.logaddexp(far_BTA, near_BTA)], 1)
            stride *= 2
        return weight_BTA, mean_BTA

    def flops(self, context: int) -> int:
        return 4 * self.width

    def kept(self) -> Kept:
        return Kept(constant=self.d_model + 2 * self.width)

    def shape(self) -> str:
        return f"{self.width} channels"

    def initialise_(self) -> None:
        for mine, drawn in zip(
            (self.mix_key, self.mix_value, self.mix_receptance),
            shares(0.5, 0.5, 0.25, d_model=self.d_model),
            strict=True,
        ):
            mine.copy_(drawn)
        self.decay.copy_(-5 + 8 * torch.linspace(0, 1, self.width) ** 0.7)
        self.first.copy_(0.5 * ((torch.arange(self.width) + 1) % 3 - 1) + 0.3)

"""Selective state spaces: recurrences whose decay, input and output depend on each token.

Axes besides those of `nn`: E inner features, N numbers of state for each of them, W the width of a convolution, P the
size of a head, G groups of heads that share what enters and what is read.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import Mamba2Config, MambaConfig
from glassformer.nn.ffn import ACTIVATIONS
from glassformer.nn.fused import no_autocast
from glassformer.nn.mixer import Kept
from glassformer.nn.recurrence import Recurrence
from glassformer.nn.scan import selective_scan
from glassformer.nn.state import Memory
from glassformer.nn.tap import Tap, recording

SHOWN = 8
"""Of how many features of a Mamba, evenly spread, the pattern is shown: each has one of its own."""


class ShortConv(nn.Module):
    """Each feature's own weighted sum over the last W tokens."""

    def __init__(self, features: int, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features, 1, width))
        self.bias = nn.Parameter(torch.empty(features)) if bias else None
        self.initialise_()

    @property
    def width(self) -> int:
        """Of how many tokens, this one included."""
        return self.weight.shape[2]

    def forward(self, x_BTE: Tensor, before_BWE: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gives the sums, and the last W − 1 tokens, which the next call's come after."""
        n_tokens, features = x_BTE.shape[1:]
        if before_BWE is None:
            before_BWE = x_BTE.new_zeros(len(x_BTE), self.width - 1, features)
        all_BTE = torch.cat([before_BWE.to(x_BTE.dtype), x_BTE], 1)
        y_BTE = all_BTE[:, :n_tokens] * self.weight[:, 0, 0]
        for place in range(1, self.width):
            y_BTE = torch.addcmul(y_BTE, all_BTE[:, place : place + n_tokens], self.weight[:, 0, place])
        return y_BTE if self.bias is None else y_BTE + self.bias, all_BTE[:, n_tokens:]

    @torch.no_grad()
    def initialise_(self) -> None:
        """As PyTorch draws convolutions: uniform within 1/√W."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(self.width**-0.5), self.width**-0.5)


def fresh_steps(count: int, low: float, high: float, floor: float = 1e-4) -> Tensor:
    """What softplus turns into step sizes between ``low`` and ``high``, evenly in their logarithm."""
    steps = torch.exp(torch.rand(count) * (math.log(high) - math.log(low)) + math.log(low)).clamp(min=floor)
    return steps + torch.log(-torch.expm1(-steps))


def _rates(a_log: Tensor) -> Tensor:
    """−A, as far as float32 holds it."""
    return a_log.float().clamp(max=80.0).exp()


class Mamba(Recurrence):
    """A selective state space for each inner feature, with a short convolution before and a gate behind it.

    Gu and Dao 2023, arXiv:2312.00752, algorithm 2 and figure 3: ``h_t = exp(Δ_t A) h_(t−1) + Δ_t B_t x_t`` and
    ``y_t = C_t h_t + D x_t``, where Δ, B and C are made of ``x = silu(conv(W_in u))``; ``W_out (y ⊙ silu(W_z u))``
    comes out. As the authors' code has it, B is multiplied by Δ rather than discretised exactly (section 2).

    The pattern shows of some features how much each token's input counts in each output (Ali et al. 2024,
    arXiv:2403.01590): ``C_t · exp(A (Δ_(s+1) + … + Δ_t)) Δ_s B_s``.
    """

    undecayed = ("a_log",)

    def __init__(self, config: MambaConfig, d_model: int) -> None:
        super().__init__()
        self.config = config
        inner, rank = config.inner(d_model), config.rank(d_model)
        self.into = nn.Linear(d_model, inner, bias=config.bias)
        self.gate = nn.Linear(d_model, inner, bias=config.bias)
        self.conv = ShortConv(inner, config.d_conv, config.conv_bias)
        self.select = nn.Linear(inner, rank + 2 * config.d_state, bias=False)
        self.step = nn.Linear(rank, inner)
        self.a_log = nn.Parameter(torch.empty(inner, config.d_state))
        self.skip = nn.Parameter(torch.empty(inner))
        self.out = nn.Linear(inner, d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.pre, self.post, self.delta = Tap("B T E"), Tap("B T E"), Tap("B T E")
        self.b, self.c, self.pattern = Tap("B T N"), Tap("B T N"), Tap("B H T S")
        self.state, self.y, self.gated = Tap("B E N"), Tap("B T E"), Tap("B T E")
        self.result = Tap("B T D")

    def scan(self, x_BTD: Tensor, real_BT: Tensor | None, memory: Memory | None) -> tuple[Tensor, Memory]:
        config = self.config
        x_BTE = self.into(x_BTD)
        if real_BT is not None:
            x_BTE = x_BTE * real_BT[..., None]
        mixed_BTE, last_BWE = self.conv(self.pre(x_BTE), None if memory is None else memory["conv"])
        x_BTE = self.post(self.activation(mixed_BTE))
        rank = self.step.in_features
        step_BTR, b_BTN, c_BTN = self.select(x_BTE).split([rank, config.d_state, config.d_state], -1)
        delta_BTE = F.softplus(self.step(step_BTR).float())
        if real_BT is not None:  # no step at all, so that padding leaves the state as it is
            delta_BTE = delta_BTE * real_BT[..., None]
        delta_BTE, b_BTN, c_BTN = self.delta(delta_BTE), self.b(b_BTN), self.c(c_BTN)
        a_EN = -_rates(self.a_log)
        start_BEN = delta_BTE.new_zeros(len(x_BTE), *a_EN.shape) if memory is None else memory["state"]
        y_BTE, state_BEN = selective_scan(x_BTE, delta_BTE, a_EN, b_BTN, c_BTN, start_BEN)
        if recording():
            self.state(state_BEN)
            self.pattern(self._weights(delta_BTE, a_EN, b_BTN, c_BTN))
        y_BTE = self.y((y_BTE + x_BTE * self.skip).to(x_BTD.dtype))
        gated_BTE = self.gated(y_BTE * F.silu(self.gate(x_BTD)))
        return self.result(self.out(gated_BTE)), {"conv": last_BWE, "state": state_BEN}

    @staticmethod
    def _weights(delta_BTE: Tensor, a_EN: Tensor, b_BTN: Tensor, c_BTN: Tensor) -> Tensor:
        inner = len(a_EN)
        shown = torch.arange(0, inner, max(1, inner // SHOWN), device=a_EN.device)[:SHOWN]
        delta_BHT, a_HN = delta_BTE[..., shown].transpose(1, 2), a_EN[shown]
        since_BHTS = delta_BHT[..., None].expand(-1, -1, -1, delta_BHT.shape[-1]).tril(-1).cumsum(-2)
        pattern_BHTS = torch.zeros_like(since_BHTS)
        for number in range(a_EN.shape[1]):  # one at a time: T · S · N at once would be much
            read_BTS = c_BTN[..., number, None].float() * b_BTN[:, None, :, number].float()
            pattern_BHTS += (since_BHTS * a_HN[:, number, None, None]).exp() * read_BTS[:, None]
        return (pattern_BHTS * delta_BHT[:, :, None]).tril()

    @torch.no_grad()
    def initialise_(self) -> None:
        """As the authors draw them: A = −(1 … N) (section 3.6), step sizes evenly in their logarithm."""
        self.conv.initialise_()
        self.a_log.copy_(torch.arange(1, self.config.d_state + 1).log().expand_as(self.a_log))
        self.skip.fill_(1.0)
        nn.init.uniform_(self.step.weight, -(self.step.in_features**-0.5), self.step.in_features**-0.5)
        self.step.bias.copy_(fresh_steps(len(self.step.bias), self.config.dt_min, self.config.dt_max))

    def flops(self, context: int) -> int:
        # Each number of state: two products to discretise it, two operations to update it, two to read it.
        return self.into.out_features * (2 * self.conv.width + 6 * self.config.d_state)

    def kept(self) -> Kept:
        return Kept(constant=self.into.out_features * (self.conv.width - 1 + self.config.d_state))

    def shape(self) -> str:
        return f"{self.into.out_features} × {self.config.d_state} of state, convolution of {self.conv.width}"


class Mamba2(Recurrence):
    """State spaces whose decay is one number for a whole head, so that a chunk of them is attention with a decay.

    Dao and Gu 2024, arXiv:2405.21060, sections 5 to 7: within a chunk ``y = (L ⊙ C Bᵀ) (Δ x)`` with
    ``L_ts = exp(A (Δ_(s+1) + … + Δ_t))``; from chunk to chunk goes ``S = Σ L Δ x Bᵀ``. B and C are shared by a group of
    heads, the convolution mixes them, too, and ``W_out norm(y ⊙ silu(W_z u))`` comes out.
    """

    def __init__(self, config: Mamba2Config, d_model: int) -> None:
        super().__init__()
        self.config = config
        inner, shared = config.n_heads * config.d_head, config.n_groups * config.d_state
        self.gate = nn.Linear(d_model, inner, bias=config.bias)
        self.into = nn.Linear(d_model, inner + 2 * shared, bias=config.bias)
        self.step = nn.Linear(d_model, config.n_heads, bias=config.bias)
        self.step_bias = nn.Parameter(torch.empty(config.n_heads))
        self.conv = ShortConv(inner + 2 * shared, config.d_conv, config.conv_bias)
        self.a_log = nn.Parameter(torch.empty(config.n_heads))
        self.skip = nn.Parameter(torch.empty(config.n_heads))
        self.norm = GroupedRMSNorm(inner, config.norm_groups or config.n_groups, config.eps)
        self.out = nn.Linear(inner, d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.pre, self.post, self.delta = Tap("B T E"), Tap("B T E"), Tap("B T H")
        self.x, self.b, self.c = Tap("B T H P"), Tap("B T G N"), Tap("B T G N")
        self.scores, self.decay, self.pattern = Tap("B H T S"), Tap("B H T S"), Tap("B H T S")
        self.state, self.y, self.gated = Tap("B H P N"), Tap("B T H P"), Tap("B T E")
        self.result = Tap("B T D")

    def scan(self, x_BTD: Tensor, real_BT: Tensor | None, memory: Memory | None) -> tuple[Tensor, Memory]:
        config, n_tokens = self.config, x_BTD.shape[1]
        x_BTE = self.into(x_BTD)
        if real_BT is not None:
            x_BTE = x_BTE * real_BT[..., None]
        mixed_BTE, last_BWE = self.conv(self.pre(x_BTE), None if memory is None else memory["conv"])
        shared = config.n_groups * config.d_state
        x_BTE, b_BTE, c_BTE = self.post(self.activation(mixed_BTE)).split([config.inner, shared, shared], -1)
        x_BTHP = self.x(x_BTE.unflatten(-1, (config.n_heads, -1)))
        b_BTGN, c_BTGN = (
            self.b(b_BTE.unflatten(-1, (config.n_groups, -1))),
            self.c(c_BTE.unflatten(-1, (config.n_groups, -1))),
        )
        delta_BTH = F.softplus((self.step(x_BTD) + self.step_bias).float())
        if config.dt_range is not None:
            delta_BTH = delta_BTH.clamp(*config.dt_range)
        if real_BT is not None:  # no step at all, so that padding leaves the state as it is
            delta_BTH = delta_BTH * real_BT[..., None]
        delta_BTH = self.delta(delta_BTH)
        if memory is None:
            state_BHPN = delta_BTH.new_zeros(len(x_BTD), config.n_heads, config.d_head, config.d_state)
        else:
            state_BHPN = memory["state"]
        parts = []
        # One chunk while a tracer looks, so that the whole pattern is there.
        size = n_tokens if recording() else config.chunk
        for start in range(0, n_tokens, size):
            chunk = slice(start, start + size)
            y, state_BHPN = self._chunk(
                x_BTHP[:, chunk], delta_BTH[:, chunk], b_BTGN[:, chunk], c_BTGN[:, chunk], state_BHPN
            )
            parts.append(y)
        self.state(state_BHPN)
        y_BTHP = torch.cat(parts, 2).transpose(1, 2) + x_BTHP * self.skip[:, None]
        gated_BTE = self.y(y_BTHP).flatten(2) * F.silu(self.gate(x_BTD).float())
        gated_BTE = self.gated(self.norm(gated_BTE).to(x_BTD.dtype))
        return self.result(self.out(gated_BTE)), {"conv": last_BWE, "state": state_BHPN}

    def _chunk(
        self, x_BTHP: Tensor, delta_BTH: Tensor, b_BTGN: Tensor, c_BTGN: Tensor, state_BHPN: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output (B, H, T, P) of one chunk without D's part, and the state after it."""
        each = self.config.n_heads // self.config.n_groups
        b_BGTN, c_BGTN = b_BTGN.transpose(1, 2), c_BTGN.transpose(1, 2)
        exponent_BHT = (delta_BTH * -_rates(self.a_log)).transpose(1, 2)
        past_BHT = exponent_BHT.cumsum(-1)
        # Each sum by itself: as a difference of two, it would lose its digits behind a token that forgets everything.
        since_BHTS = exponent_BHT[..., None].expand(-1, -1, -1, exponent_BHT.shape[-1]).tril(-1).cumsum(-2)
        decay_BHTS = self.decay(since_BHTS.exp().tril())
        scores_BHTS = self.scores((c_BGTN @ b_BGTN.transpose(2, 3)).repeat_interleave(each, 1))
        x_BHTP = x_BTHP.transpose(1, 2).float() * delta_BTH.transpose(1, 2)[..., None]
        weights_BHTS = scores_BHTS * decay_BHTS
        if recording():
            self.pattern(weights_BHTS * delta_BTH.transpose(1, 2)[:, :, None])
        with no_autocast(x_BTHP.device):  # what accumulates over a text does so in float32
            b_BHTN, c_BHTN = (part.float().repeat_interleave(each, 1) for part in (b_BGTN, c_BGTN))
            y_BHTP = weights_BHTS.float() @ x_BHTP + (c_BHTN @ state_BHPN.transpose(2, 3)) * past_BHT.exp()[..., None]
            left_BHT = decay_BHTS[..., -1, :]
            new_BHPN = (x_BHTP * left_BHT[..., None]).transpose(2, 3) @ b_BHTN
            return y_BHTP, state_BHPN * past_BHT[..., -1:, None].exp() + new_BHPN

    @torch.no_grad()
    def initialise_(self) -> None:
        """As the authors draw them: −A uniform in 1 … 16, step sizes evenly in their logarithm."""
        self.conv.initialise_()
        self.a_log.uniform_(1.0, 16.0).log_()
        self.skip.fill_(1.0)
        self.step_bias.copy_(fresh_steps(len(self.step_bias), self.config.dt_min, self.config.dt_max))

    def flops(self, context: int) -> int:
        config = self.config
        beside, inner = min(context, config.chunk), config.inner
        convolution = 2 * self.conv.width * self.into.out_features
        return convolution + 2 * beside * (config.n_groups * config.d_state + inner) + 4 * inner * config.d_state

    def kept(self) -> Kept:
        config = self.config
        return Kept(constant=self.into.out_features * (self.conv.width - 1) + config.inner * config.d_state)

    def shape(self) -> str:
        config = self.config
        groups = f" in {config.n_groups} groups" if config.n_groups > 1 else ""
        return (
            f"{config.n_heads} × {config.d_head}{groups}, {config.d_state} of state, convolution of {self.conv.width}"
        )


class GroupedRMSNorm(nn.Module):
    """The norm of the root mean square, of each group of features by itself, in float32."""

    def __init__(self, features: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.groups, self.eps = groups, eps

    def forward(self, x_BTE: Tensor) -> Tensor:
        x_BTGE = x_BTE.float().unflatten(-1, (self.groups, -1))
        return F.rms_norm(x_BTGE, x_BTGE.shape[-1:], eps=self.eps).flatten(2) * self.weight

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, groups={self.groups}, eps={self.eps}"

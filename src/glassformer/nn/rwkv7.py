"""RWKV-7's time-mix: a memory that unlearns what a new value replaces.

Axes besides those of `nn`: K the size of a head's keys and of its values; C one chunk; W is 2 D, a hidden state with a
value of the first layer behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import RWKV7Config
from glassformer.nn.fused import no_autocast
from glassformer.nn.mixer import Context, Kept
from glassformer.nn.recurrence import Recurrence
from glassformer.nn.rwkv import before, mixed, shares
from glassformer.nn.rwkv5 import CHUNK, HeadNorm, heads
from glassformer.nn.state import Memory, State
from glassformer.nn.tap import Tap, reading_backwards

FASTEST = math.exp(-0.5)
"""No channel decays by more than ``e^-FASTEST`` a token, so that a chunk's decays can be divided by one another."""


def _same(x: Tensor) -> Tensor:
    return x


class LowRank(nn.Module):
    """``f(x A) B + c`` through few features: how RWKV-7 lets every token choose its own rates."""

    def __init__(self, d_model: int, rank: int, activation: Callable[[Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(d_model, rank, bias=False), nn.Linear(rank, d_model, bias=bias)
        self.activation = activation

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.up(self.activation(self.down(x_BTD)))
        return y_BTD


class RWKV7(Recurrence):
    """RWKV-7's time-mix, a generalised delta rule (Peng et al. 2025, arXiv:2503.14456, section 4).

    ``S_t = S_(t−1) (diag(w_t) − κ_tᵀ (a_t ⊙ κ_t)) + v_tᵀ k_t`` and ``S_t r_t`` comes out of each head: κ, the key of
    length 1, says which value is taken out, a how much of it, w how fast each channel decays. The heads are normalised,
    get ``(r · (ρ ⊙ k)) v`` added, and are multiplied by a gate. Values are mixed with those of the stack's first
    RWKV-7 layer, token by token, where ``value_rank`` is given; these travel in the pass' context, not on any module.

    A chunk is solved at once: what each token reads along its κ depends on the tokens before it in the chunk through a
    triangular matrix, whose solution is a second set of values (Yang et al. 2024, arXiv:2406.06484, section 3).

    Deviation: fresh shares and decays grow over the channels, but are the same in every layer.
    """

    def __init__(self, config: RWKV7Config, d_model: int) -> None:
        super().__init__()
        self.d_model, self.n_heads, self.d_head = d_model, config.n_heads, d_model // config.n_heads
        self.mix_receptance, self.mix_decay, self.mix_key = (nn.Parameter(torch.empty(d_model)) for _ in range(3))
        self.mix_value, self.mix_rate, self.mix_gate = (nn.Parameter(torch.empty(d_model)) for _ in range(3))
        self.decay = LowRank(d_model, config.decay_rank, torch.tanh)
        self.rate = LowRank(d_model, config.rate_rank, _same)
        self.carry = LowRank(d_model, config.value_rank, _same) if config.value_rank else None
        self.gate = LowRank(d_model, config.gate_rank, torch.sigmoid, bias=False)
        self.removal, self.renewal = nn.Parameter(torch.empty(d_model)), nn.Parameter(torch.empty(d_model))
        self.bonus = nn.Parameter(torch.empty(d_model))
        self.receptance = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.norm = HeadNorm(config.n_heads, d_model, config.eps)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.k, self.v, self.r = Tap("B H T K"), Tap("B H T K"), Tap("B H T K")
        self.removed, self.rates, self.kept_share = Tap("B H T K"), Tap("B H T K"), Tap("B H T K")
        self.wkv, self.gated, self.result = Tap("B H T K"), Tap("B T D"), Tap("B T D")

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        slot = "values read backwards" if reading_backwards() else "values"
        first_BTD = ctx.slots.get(slot)
        x_BTW = torch.cat([x_BTD, torch.zeros_like(x_BTD) if first_BTD is None else first_BTD], -1)
        y_BTD, v_BTD = super().forward(x_BTW, ctx, state).chunk(2, -1)
        ctx.slots.setdefault(slot, v_BTD)
        return y_BTD

    def scan(self, x_BTD: Tensor, real_BT: Tensor | None, memory: Memory | None) -> tuple[Tensor, Memory]:
        """As the base; where the first layer's values stand behind the hidden states, this layer's come out so, too."""
        paired = x_BTD.shape[-1] > self.d_model
        x_BTD, first_BTD = x_BTD.chunk(2, -1) if paired else (x_BTD, torch.zeros_like(x_BTD))
        # At padding x is 0, and so are its key and what it would add to the sums.
        x_BTD, before_BTD = before(x_BTD, real_BT, memory)
        key_BTD = self.key(mixed(x_BTD, before_BTD, self.mix_key))
        value_mix_BTD = mixed(x_BTD, before_BTD, self.mix_value)
        value_BTD = self.value(value_mix_BTD)
        if self.carry is not None:
            value_BTD = value_BTD + (first_BTD - value_BTD) * self.carry(value_mix_BTD).sigmoid()
        rate_BTD = self.rate(mixed(x_BTD, before_BTD, self.mix_rate)).sigmoid()
        decay_BTD = self.decay(mixed(x_BTD, before_BTD, self.mix_decay))
        split = self.n_heads
        r_BHTK = self.r(heads(self.receptance(mixed(x_BTD, before_BTD, self.mix_receptance)), split))
        k_BHTK = self.k(heads(key_BTD * (1 + (rate_BTD - 1) * self.renewal), split))
        v_BHTK, a_BHTK = self.v(heads(value_BTD, split)), self.rates(heads(rate_BTD, split))
        with no_autocast(x_BTD.device):
            removed_BHTK = self.removed(F.normalize(heads(key_BTD * self.removal, split), dim=-1))
            log_BHTK = -FASTEST * heads(decay_BTD, split).sigmoid()
            self.kept_share(log_BHTK.exp())
            sums = k_BHTK.new_zeros(*k_BHTK.shape[:2], self.d_head, self.d_head) if memory is None else memory["sums"]
            parts = []
            rows = (r_BHTK, k_BHTK, v_BHTK, removed_BHTK, removed_BHTK * a_BHTK, log_BHTK)
            for r, k, v, z, b, log in zip(*(each.split(CHUNK, 2) for each in rows), strict=True):
                part, sums = self._chunk(r, k, v, -z, b, log, sums)
                parts.append(part)
            bonus_BHT1 = (r_BHTK * k_BHTK * self.bonus.float().view(split, 1, -1)).sum(-1, keepdim=True)
            added_BTD = (bonus_BHT1 * v_BHTK).transpose(1, 2).flatten(2)
        y_BTD = (self.norm(self.wkv(torch.cat(parts, 2))) + added_BTD).to(x_BTD.dtype)
        y_BTD = self.gated(y_BTD * self.gate(mixed(x_BTD, before_BTD, self.mix_gate)))
        y_BTD = self.result(self.out(y_BTD))
        after = {"last": x_BTD[:, -1], "sums": sums}
        return (torch.cat([y_BTD, value_BTD.to(y_BTD.dtype)], -1) if paired else y_BTD), after

    @staticmethod
    def _chunk(
        r_BHCK: Tensor,
        k_BHCK: Tensor,
        v_BHCK: Tensor,
        z_BHCK: Tensor,
        b_BHCK: Tensor,
        log_BHCK: Tensor,
        sums_BHKK: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """What comes out of one chunk after the sums before it, (keys, values); and the sums after it.

        Args:
            z_BHCK, b_BHCK: ``S (diag(w) + zᵀ b) + vᵀ k`` are the next sums.
            log_BHCK: log w.
        """
        total_BHCK = log_BHCK.cumsum(2)
        # What is written is told as if nothing had decayed since the chunk's beginning, what reads it decays it.
        z_BHCK, r_BHCK = z_BHCK * (total_BHCK - log_BHCK).exp(), r_BHCK * total_BHCK.exp()
        grown_BHCK = (-total_BHCK).exp()
        b_BHCK, k_BHCK = b_BHCK * grown_BHCK, k_BHCK * grown_BHCK
        read_BHCK = z_BHCK @ sums_BHKK + (z_BHCK @ k_BHCK.mT).tril(-1) @ v_BHCK
        if z_BHCK.shape[2] > 1:
            system_BHCC = torch.eye(z_BHCK.shape[2], device=z_BHCK.device) - (z_BHCK @ b_BHCK.mT).tril(-1)
            read_BHCK = torch.linalg.solve_triangular(system_BHCC, read_BHCK, upper=False, unitriangular=True)
        y_BHCK = r_BHCK @ sums_BHKK + (r_BHCK @ b_BHCK.mT).tril() @ read_BHCK + (r_BHCK @ k_BHCK.mT).tril() @ v_BHCK
        sums_BHKK = sums_BHKK + b_BHCK.mT @ read_BHCK + k_BHCK.mT @ v_BHCK
        return y_BHCK, sums_BHKK * total_BHCK[:, :, -1, :, None].exp()

    def flops(self, context: int) -> int:
        return 8 * self.d_model * self.d_head

    def kept(self) -> Kept:
        return Kept(constant=self.d_model * (1 + self.d_head))

    def shape(self) -> str:
        return f"{self.n_heads} × {self.d_head}"

    def initialise_(self) -> None:
        mixes = (self.mix_receptance, self.mix_decay, self.mix_key, self.mix_value, self.mix_rate, self.mix_gate)
        for mine, drawn in zip(mixes, shares(0.25, 0.5, 0.5, 0.5, 0.5, 0.25, d_model=self.d_model), strict=True):
            mine.copy_(drawn)
        self.decay.up.bias.copy_(-6 + 5 * torch.linspace(0, 1, self.d_model))
        if self.carry is not None:
            self.carry.up.bias.fill_(1.0)
        self.removal.fill_(0.85)
        self.renewal.fill_(1.0)
        self.bonus.zero_()

"""RWKV-5's time-mix, and the norm of heads that RWKV-7 has, too.

Axes besides those of `nn`: K the size of a head's keys and of its values; C one chunk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import RWKV5Config
from glassformer.nn.fused import no_autocast
from glassformer.nn.mixer import Kept
from glassformer.nn.recurrence import Recurrence
from glassformer.nn.rwkv import AT_ONCE, before, mixed, shares
from glassformer.nn.state import Memory
from glassformer.nn.tap import Tap

CHUNK = 16
"""Tokens that are read in parallel; it changes no result."""


class HeadNorm(nn.Module):
    """Layer normalisation of each head's own features, with a gain and a bias for every feature of all heads."""

    def __init__(self, n_heads: int, d_model: int, eps: float) -> None:
        super().__init__()
        self.n_heads, self.eps = n_heads, eps
        self.weight, self.bias = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))

    def forward(self, x_BHTK: Tensor) -> Tensor:
        """Normalises (B, H, T, K) and gives (B, T, D)."""
        normed_BTD = F.layer_norm(x_BHTK, x_BHTK.shape[-1:], eps=self.eps).transpose(1, 2).flatten(2)
        return normed_BTD * self.weight + self.bias

    def extra_repr(self) -> str:
        return f"{self.n_heads} heads, eps={self.eps}"


def heads(x_BTD: Tensor, n_heads: int) -> Tensor:
    """(B, T, D) as (B, H, T, K), in float32: what accumulates over a text does so in float32."""
    return x_BTD.unflatten(-1, (n_heads, -1)).transpose(1, 2).float()


class RWKV5(Recurrence):
    """RWKV-5's time-mix: each head adds up outer products of keys and values, whose channels decay at their own rates.

    ``wkv_t = r_t (S_(t−1) + diag(u) k_tᵀ v_t)`` and ``S_t = diag(w) S_(t−1) + k_tᵀ v_t`` with ``w = e^(−e^decay)``; the
    heads are normalised, and in RWKV-5.2 multiplied by ``silu(g)`` (Peng et al. 2024, arXiv:2404.05892, section 3).
    A chunk of n tokens reads the ones before it from S, and its own by their pairs: the decay between two of them is
    one power of w, never a quotient of two that could overflow.

    Deviation: fresh shares and decays grow over the channels, but are the same in every layer.
    """

    def __init__(self, config: RWKV5Config, d_model: int) -> None:
        super().__init__()
        self.d_model, self.n_heads, self.d_head = d_model, config.n_heads, d_model // config.n_heads
        self.mix_key, self.mix_value, self.mix_receptance = (nn.Parameter(torch.empty(d_model)) for _ in range(3))
        self.mix_gate = nn.Parameter(torch.empty(d_model)) if config.gate else None
        self.decay, self.first = nn.Parameter(torch.empty(d_model)), nn.Parameter(torch.empty(d_model))
        self.receptance = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.gate = nn.Linear(d_model, d_model, bias=False) if config.gate else None
        self.norm = HeadNorm(config.n_heads, d_model, config.eps)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.k, self.v, self.r = Tap("B H T K"), Tap("B H T K"), Tap("B H T K")
        self.wkv, self.gated, self.result = Tap("B H T K"), Tap("B T D"), Tap("B T D")

    def scan(self, x_BTD: Tensor, real_BT: Tensor | None, memory: Memory | None) -> tuple[Tensor, Memory]:
        # At padding x is 0, and so are its key and what it would add to the sums.
        x_BTD, before_BTD = before(x_BTD, real_BT, memory)
        r_BHTK = self.r(heads(self.receptance(mixed(x_BTD, before_BTD, self.mix_receptance)), self.n_heads))
        k_BHTK = self.k(heads(self.key(mixed(x_BTD, before_BTD, self.mix_key)), self.n_heads))
        v_BHTK = self.v(heads(self.value(mixed(x_BTD, before_BTD, self.mix_value)), self.n_heads))
        sums = k_BHTK.new_zeros(*k_BHTK.shape[:2], self.d_head, self.d_head) if memory is None else memory["sums"]
        parts = []
        with no_autocast(x_BTD.device):
            for r, k, v in zip(*(each.split(CHUNK, 2) for each in (r_BHTK, k_BHTK, v_BHTK)), strict=True):
                part, sums = self._chunk(r, k, v, sums)
                parts.append(part)
        y_BTD = self.norm(self.wkv(torch.cat(parts, 2))).to(x_BTD.dtype)
        if self.gate is not None and self.mix_gate is not None:
            y_BTD = y_BTD * F.silu(self.gate(mixed(x_BTD, before_BTD, self.mix_gate)))
        return self.result(self.out(self.gated(y_BTD))), {"last": x_BTD[:, -1], "sums": sums}

    def _chunk(self, r_BHCK: Tensor, k_BHCK: Tensor, v_BHCK: Tensor, sums_BHKK: Tensor) -> tuple[Tensor, Tensor]:
        """What comes out of one chunk after the sums before it; and the sums after it."""
        n = r_BHCK.shape[2]
        place_C = torch.arange(n, device=r_BHCK.device)
        rate_H1K = -self.decay.float().clamp(max=AT_ONCE).exp().view(self.n_heads, 1, -1)
        first_H1K = self.first.float().view(self.n_heads, 1, -1)
        z_BHCK = (r_BHCK * (rate_H1K * place_C[:, None]).exp()) @ sums_BHKK
        z_BHCK = z_BHCK + (r_BHCK * first_H1K * k_BHCK).sum(-1, keepdim=True) * v_BHCK
        if n > 1:
            age_CC = place_C[:, None] - 1 - place_C
            decay_HCCK = (rate_H1K[:, None] * age_CC.clamp(min=0)[..., None]).exp()
            scores_BHCC = (r_BHCK[:, :, :, None] * decay_HCCK * k_BHCK[:, :, None]).sum(-1)
            z_BHCK = z_BHCK + scores_BHCC.tril(-1) @ v_BHCK
        left_BHCK = k_BHCK * (rate_H1K * (n - 1 - place_C)[:, None]).exp()
        return z_BHCK, sums_BHKK * (rate_H1K * n).exp().mT + left_BHCK.mT @ v_BHCK

    def flops(self, context: int) -> int:
        return 4 * self.d_model * self.d_head

    def kept(self) -> Kept:
        return Kept(constant=self.d_model * (1 + self.d_head))

    def shape(self) -> str:
        return f"{self.n_heads} × {self.d_head}"

    def initialise_(self) -> None:
        mixes = (self.mix_key, self.mix_value, self.mix_receptance, self.mix_gate)
        for mine, drawn in zip(mixes, shares(0.5, 0.5, 0.25, 0.25, d_model=self.d_model), strict=True):
            if mine is not None:
                mine.copy_(drawn)
        self.decay.copy_(-6 + 5 * torch.linspace(0, 1, self.d_model))
        self.first.copy_(0.1 * ((torch.arange(self.d_model) + 1) % 3 - 1) + 0.3)

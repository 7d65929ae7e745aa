"""Retention: attention without softmax, whose weights decay with distance, so that it is a recurrence as well.

Axes besides those of `nn`: V the size of a head's values; a trailing W is V + 1, the last column summing the weights.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import RetentionConfig
from glassformer.nn.fused import no_autocast
from glassformer.nn.mixer import Kept
from glassformer.nn.recurrence import Recurrence
from glassformer.nn.rotary import rotate
from glassformer.nn.state import Memory
from glassformer.nn.tap import Tap, recording


class Retention(Recurrence):
    """Multi-scale retention with its gate (Sun et al. 2023, arXiv:2307.08621, equations 5 to 8).

    ``Retention(X) = (Q Kᵀ ⊙ D) V`` with ``D_nm = γ^(n−m)`` for ``n ≥ m``, queries and keys turned by their position;
    ``(swish(X W_G) ⊙ GroupNorm(heads)) W_O`` comes out. The scores are divided by √K, D's rows by the root of their
    sum, and the weights' rows by their sum where it is more than 1 (section 2.2); that sum is recurrent, too.

    All three forms are one: a chunk of n tokens reads the ones before it from ``S = Σ γ^age k vᵀ``, one chunk is the
    parallel form, and chunks of one token are the recurrent form. S is kept as seen from the last token read, and turns
    with it, so that no position is ever counted and none is too far.
    """

    def __init__(self, config: RetentionConfig, d_model: int) -> None:
        super().__init__()
        self.config = config
        heads, size = config.n_heads, config.head_size(d_model)
        self.d_head, self.d_value = size, config.d_value or 2 * size
        self.query = nn.Linear(d_model, heads * size, bias=config.bias)
        self.key = nn.Linear(d_model, heads * size, bias=config.bias)
        self.value = nn.Linear(d_model, heads * self.d_value, bias=config.bias)
        self.gate = nn.Linear(d_model, heads * self.d_value, bias=config.bias)
        self.out = nn.Linear(heads * self.d_value, d_model, bias=config.bias)
        self.q, self.k, self.v = Tap("B H T K"), Tap("B H S K"), Tap("B H S V")
        self.scores, self.decay, self.pattern = Tap("B H T S"), Tap("H T S"), Tap("B H T S")
        self.z, self.gated, self.result = Tap("B H T V"), Tap("B T E"), Tap("B T D")

    def scan(self, x_BTD: Tensor, real_BT: Tensor | None, memory: Memory | None) -> tuple[Tensor, Memory]:
        heads, n_tokens = self.config.n_heads, x_BTD.shape[1]
        q_BHTK, k_BHTK, v_BHTV = (
            part(x_BTD).unflatten(-1, (heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        k_BHTK = k_BHTK * self.d_head**-0.5
        if real_BT is not None:
            k_BHTK = k_BHTK * real_BT[:, None, :, None]
        v_BHTW = F.pad(v_BHTV, (0, 1), value=1.0)
        seen_BT = torch.ones_like(x_BTD[..., 0]) if real_BT is None else real_BT.to(x_BTD.dtype)
        if memory is None:
            sums = q_BHTK.new_zeros(len(x_BTD), heads, self.d_head, self.d_value + 1, dtype=torch.float32)
            memory = {"sums": sums, "count": q_BHTK.new_zeros(len(x_BTD), dtype=torch.float32)}
        parts, decays = [], self._decays(x_BTD.device)
        # One chunk while a tracer looks, so that the whole pattern is there.
        size = n_tokens if recording() else self.config.chunk
        for start in range(0, n_tokens, size):
            chunk = slice(start, start + size)
            z, memory = self._chunk(
                q_BHTK[:, :, chunk], k_BHTK[:, :, chunk], v_BHTW[:, :, chunk], seen_BT[:, chunk], memory, decays
            )
            parts.append(z)
        z_BHTV = self.z(F.layer_norm(torch.cat(parts, 2), (self.d_value,), eps=self.config.eps))
        gated_BTE = self.gated(F.silu(self.gate(x_BTD)) * z_BHTV.transpose(1, 2).flatten(2).to(x_BTD.dtype))
        return self.result(self.out(gated_BTE)), memory

    def _chunk(
        self,
        q_BHTK: Tensor,
        k_BHTK: Tensor,
        v_BHTW: Tensor,
        seen_BT: Tensor,
        memory: Memory,
        decays: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Memory]:
        """Retention over one chunk and what came before it, before the group norm; and the memory after it."""
        n, device, (forget_H, log_H) = q_BHTK.shape[2], q_BHTK.device, decays
        place_T = torch.arange(1, n + 1, device=device, dtype=torch.float32)  # 0 is the last token of the memory
        cos_TP, sin_TP = self._turns(place_T)
        q_BHTK = self.q(rotate(q_BHTK, cos_TP, sin_TP, "interleaved"))
        k_BHTK = self.k(rotate(k_BHTK, cos_TP, sin_TP, "interleaved"))
        self.v(v_BHTW[..., :-1])
        age_TS = place_T[:, None] - place_T
        decay_HTS = self.decay((log_H[:, None, None] * age_TS.clamp(min=0)).exp().tril())
        scores_BHTS = self.scores(q_BHTK @ k_BHTK.transpose(2, 3))
        weights_BHTS = scores_BHTS * decay_HTS
        with no_autocast(device):  # what accumulates over a text does so in float32
            count_BT = memory["count"][:, None] + seen_BT.float().cumsum(1)
            # The sum of D's row over the real tokens, 1 + γ + γ² …
            total_BHT = -(log_H[:, None] * count_BT.clamp(min=1)[:, None]).expm1() / forget_H[:, None]
            before_HT1 = (log_H[:, None] * place_T).exp()[..., None]
            z_BHTW = (q_BHTK.float() @ memory["sums"]) * before_HT1 + weights_BHTS.float() @ v_BHTW.float()
            z_BHTW = z_BHTW * total_BHT.rsqrt()[..., None]
            whole_BHT1 = z_BHTW[..., -1:].abs().clamp(min=1.0)
            after_HS1 = (log_H[:, None] * (n - place_T)).exp()[..., None]
            sums_BHKW = (k_BHTK.float() * after_HS1).transpose(2, 3) @ v_BHTW.float()
            sums_BHKW = sums_BHKW + memory["sums"] * (log_H * n).exp()[:, None, None]
            cos_P, sin_P = self._turns(-place_T[-1:])
            sums_BHKW = rotate(sums_BHKW.transpose(2, 3), cos_P, sin_P, "interleaved").transpose(2, 3)
        if recording():
            self.pattern(weights_BHTS * total_BHT.rsqrt()[..., None] / whole_BHT1)
        return z_BHTW[..., :-1] / whole_BHT1, {"sums": sums_BHKW, "count": count_BT[:, -1]}

    def _decays(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """1 − γ and log γ of each head."""
        # The floor is for more heads than float32 can tell apart.
        forget = self.config.forget or [max(2.0 ** (-5 - head), 1e-30) for head in range(self.config.n_heads)]
        return torch.tensor(forget, device=device), torch.tensor([math.log1p(-each) for each in forget], device=device)

    def _turns(self, place_T: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of each place's angles, (T, P)."""
        pairs = self.d_head // 2
        # From 1 to 1/base, as in the released code (microsoft/torchscale); the paper leaves θ open.
        exponent_P = torch.linspace(0, 1, pairs, device=place_T.device)
        angles_TP = place_T[:, None] * self.config.base**-exponent_P
        return angles_TP.cos(), angles_TP.sin()

    def flops(self, context: int) -> int:
        beside, wide = min(context, self.config.chunk), self.d_value + 1
        return 2 * self.config.n_heads * (beside * (self.d_head + wide) + 2 * self.d_head * wide)

    def kept(self) -> Kept:
        return Kept(constant=self.config.n_heads * self.d_head * (self.d_value + 1) + 1)

    def shape(self) -> str:
        return f"{self.config.n_heads} × {self.d_head}, values {self.d_value}"

"""Positions: what tells 我打你 from 你打我."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import LearnedPositionConfig, PositionConfig, SinusoidalConfig
from glassformer.errors import UserError


def sinusoids(positions_T: Tensor, d_model: int, *, base: float = 10000.0, layout: str = "interleaved") -> Tensor:
    """Computes ``PE(pos, 2i) = sin(pos / base^(2i/d))`` and ``PE(pos, 2i+1) = cos(pos / base^(2i/d))``.

    Vaswani et al. 2017, section 3.5. In double precision, since float32 loses digits of the phase at far positions.

    Args:
        positions_T: Positions, any real numbers.
        d_model: Even number of features.
        base: Wavelengths run from 2π to ``base``·2π.
        layout: ``interleaved`` puts sine in even and cosine in odd columns; ``halves`` puts all sines first.

    Returns:
        A float32 tensor of shape (T, d_model).
    """
    pair = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions_T.device)
    angles_TP = positions_T.to(torch.float64)[:, None] * base ** (-pair / d_model)
    sine_TP, cosine_TP = angles_TP.sin(), angles_TP.cos()
    if layout == "interleaved":
        table_TD = torch.stack([sine_TP, cosine_TP], dim=-1).flatten(1)
    else:
        table_TD = torch.cat([sine_TP, cosine_TP], dim=-1)
    return table_TD.to(torch.float32)


class PositionTable(nn.Module):
    """One vector for each position, from a table of ``max_len`` rows.

    Raises:
        UserError: When a sequence is longer than the table.
    """

    weight: Tensor

    def __init__(self, config: PositionConfig, d_model: int) -> None:
        super().__init__()
        self.config, self.max_len = config, config.max_len
        if isinstance(config, SinusoidalConfig):
            # Recomputed from the config at every load, so it is no part of a checkpoint.
            self.register_buffer("weight", self.fixed(d_model).to(torch.get_default_device()), persistent=False)
        else:
            assert isinstance(config, LearnedPositionConfig)
            self.weight = nn.Parameter(torch.empty(config.first + config.max_len, d_model))

    def fixed(self, d_model: int) -> Tensor:
        """The sinusoids of the configuration, on the CPU."""
        config = self.config
        assert isinstance(config, SinusoidalConfig)
        # On the CPU also for the meta device, whose first arithmetic would load PyTorch's compiler (1 s).
        positions = torch.arange(config.first, config.first + config.max_len, device="cpu")
        return sinusoids(positions, d_model, base=config.base, layout=config.layout)

    def forward(self, length: int, start: int = 0, positions_BT: Tensor | None = None) -> Tensor:
        """Gives the rows ``start … start + length − 1``, shape (T, D), or those of the positions, (B, T, D)."""
        needed = start + length
        if needed > self.max_len and positions_BT is not None:
            needed = int(positions_BT.max()) + 1  # padding takes no position
        if needed > self.max_len:
            raise UserError(
                f"a sequence of {needed} tokens is longer than the model's {self.max_len} positions; "
                "shorten the text, or train with a larger position.max_len"
            )
        first = self.config.first if isinstance(self.config, LearnedPositionConfig) else 0
        if positions_BT is not None:
            return F.embedding(positions_BT + first, self.weight)
        return self.weight[first + start : first + start + length]

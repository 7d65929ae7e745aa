"""Rotary positions: queries and keys turned so that their product knows how far apart they stand.

Su et al. 2021, arXiv:2104.09864, equation 34. P counts the pairs of features that turn, K/2 of a whole head.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from glassformer.config import DynamicScaling, LinearScaling, Llama3Scaling, RotaryConfig, YarnScaling


def tables(config: RotaryConfig, d_head: int, positions_T: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position's angles, in float32.

    Args:
        config: Base, fraction and scaling.
        d_head: Size of one head.
        positions_T: Positions, of any shape.
        length: Number of tokens up to the last one; dynamic scaling depends on it, so that with it, alone of all, a
            token's hidden state changes once the text behind it outgrows the original length.

    Returns:
        Two tensors of the positions' shape with one more dimension, P.
    """
    dynamic = isinstance(config.scaling, DynamicScaling)
    frequency_P = _frequencies(config, d_head, length if dynamic else 0).to(positions_T.device)
    # The product needs doubles: float32 loses digits of the phase at far positions.
    angles_TP = positions_T.to(frequency_P.dtype)[..., None] * frequency_P
    factor = _sharpness(config)
    return (angles_TP.cos() * factor).float(), (angles_TP.sin() * factor).float()


def rotate(x_BHTK: Tensor, cos_TP: Tensor, sin_TP: Tensor, layout: str) -> Tensor:
    """Turns the first 2P features of every head: ``(a, b) → (a cos − b sin, b cos + a sin)``.

    Args:
        x_BHTK: Queries or keys.
        cos_TP: Cosines, broadcastable to (B, H, T, P).
        sin_TP: Sines, likewise.
        layout: ``halves`` pairs feature i with i + P, ``interleaved`` 2i with 2i + 1.
    """
    size = 2 * cos_TP.shape[-1]
    turned, rest = x_BHTK[..., :size].float(), x_BHTK[..., size:]
    a, b = turned.chunk(2, -1) if layout == "halves" else turned.unflatten(-1, (-1, 2)).unbind(-1)
    pair = a * cos_TP - b * sin_TP, b * cos_TP + a * sin_TP
    turned = torch.cat(pair, -1) if layout == "halves" else torch.stack(pair, -1).flatten(-2)
    return torch.cat([turned.to(x_BHTK.dtype), rest], -1)


@lru_cache(maxsize=256)
def _frequencies(config: RotaryConfig, d_head: int, length: int) -> Tensor:
    """Angle per position of each pair, shape (P,), in float64 on the CPU."""
    size = int(config.fraction * d_head)
    base, scaling = config.base, config.scaling
    with torch.inference_mode(False), torch.device("cpu"):
        if isinstance(scaling, DynamicScaling):
            times = max(length / scaling.original_max_len, 1.0)
            stretch = scaling.factor * times - (scaling.factor - 1)
            base *= stretch ** (size / (size - 2))
        pair_P = torch.arange(0, size, 2, dtype=torch.float64)
        frequency_P = base ** (-pair_P / size)
        if isinstance(scaling, LinearScaling):
            return frequency_P / scaling.factor
        if isinstance(scaling, Llama3Scaling):
            # How many turns a pair makes over the original length decides how much of it is stretched.
            turns_P = scaling.original_max_len * frequency_P / (2 * math.pi)
            low, high = scaling.low_freq_factor, scaling.high_freq_factor
            kept_P = ((turns_P - low) / (high - low)).clamp(0, 1)
            return kept_P * frequency_P + (1 - kept_P) * frequency_P / scaling.factor
        if isinstance(scaling, YarnScaling):
            first, last = (_pair(config, scaling, size, turns) for turns in (scaling.beta_fast, scaling.beta_slow))
            if scaling.truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, size - 1)
            kept_P = 1 - ((pair_P / 2 - first) / max(last - first, 1e-3)).clamp(0, 1)
            return kept_P * frequency_P + (1 - kept_P) * frequency_P / scaling.factor
        return frequency_P


def _pair(config: RotaryConfig, scaling: YarnScaling, size: int, turns: float) -> float:
    """The pair, as a real number, that makes so many turns over the original length (YaRN, section 3.2)."""
    return size * math.log(scaling.original_max_len / (turns * 2 * math.pi)) / (2 * math.log(config.base))


def _sharpness(config: RotaryConfig) -> float:
    if not isinstance(config.scaling, YarnScaling):
        return 1.0
    given = config.scaling.attention_factor
    return given if given is not None else 0.1 * math.log(max(config.scaling.factor, 1.0)) + 1.0

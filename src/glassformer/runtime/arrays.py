"""Arrays as the kernels want them: read, padded, quantised; and the tables of positions. Plain numpy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from glassformer.config import LinearScaling, Llama3Scaling, RotaryConfig, SinusoidalConfig
from glassformer.errors import UserError
from glassformer.runtime.library import EngineUnavailable

PANEL = 16
"""What every inner size is a multiple of (native/abi.h)."""


def read_weights(file: Path) -> dict[str, np.ndarray]:
    """A safetensors file's float tensors as float32 (https://github.com/huggingface/safetensors, "Format").

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        data = np.memmap(file, np.uint8, "r")
        length = int(data[:8].view("<u8")[0])
        header = json.loads(bytes(data[8 : 8 + length]))
        weights = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            raw = data[8 + length + first : 8 + length + last]
            if entry["dtype"] == "BF16":
                values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                values = raw.view({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[entry["dtype"]]).astype(np.float32)
            weights[name] = values.reshape(entry["shape"])
    except FileNotFoundError:
        raise UserError(f"{file.parent}: not a model directory: it has no {file.name}") from None
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{file}: damaged or not readable ({error}); copy or train it again") from None
    return weights


def quantise(weight_NK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8, one scale a row: weight ≈ scale · q, |q| ≤ 127.

    Returns:
        q (N, K) int8 and scale (N,) float32.
    """
    scale_N = (np.abs(weight_NK).max(1) / 127).astype(np.float32)
    inverse_N = np.divide(1, scale_N, out=np.zeros_like(scale_N), where=scale_N > 1e-35)
    return np.clip(np.rint(weight_NK * inverse_N[:, None]), -127, 127).astype(np.int8), scale_N


EXTRAS = 16
"""Inputs of a balanced product that come twice."""


def balanced(weight_NK: np.ndarray, peaks_K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A matrix whose inputs are evened out before they are quantised, so that a few large ones do not cost all others.

    The largest are split into equal parts (Zhao et al. 2019, arXiv:1901.09504, section 3.1); each input is then divided
    by √(its peak / its column's largest weight), and its column multiplied (Xiao et al. 2023, arXiv:2211.10438,
    equation 4, α = ½).

    Args:
        peaks_K: the largest magnitude of each input.

    Returns:
        The matrix (N, K + EXTRAS), the factors of its inputs (K + EXTRAS), and which inputs come again (EXTRAS).
    """
    parts_K, extra = np.ones(len(peaks_K)), []
    for _ in range(EXTRAS):
        extra.append(int((peaks_K / parts_K).argmax()))
        parts_K[extra[-1]] += 1
    columns = np.array([*range(len(peaks_K)), *extra], np.int32)
    peaks, largest = (peaks_K / parts_K)[columns], np.abs(weight_NK).max(0)[columns]
    there = (peaks > 1e-12) & (largest > 1e-12)  # padding is not
    divisor = np.sqrt(np.divide(peaks, largest, out=np.ones(len(columns)), where=there))
    factors = 1 / (parts_K[columns] * divisor)
    return (weight_NK[:, columns] * divisor).astype(np.float32), factors.astype(np.float32), columns[-EXTRAS:]


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The upper halves of float32, rounded to nearest, ties to even, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rounded_up(n: int) -> int:
    return -(-n // PANEL) * PANEL


def padded(array: np.ndarray, *multiples: int) -> np.ndarray:
    """Zeros behind the last axes, up to multiples of these."""
    array = np.asarray(array, np.float32)
    axes = [(0, 0)] * (array.ndim - len(multiples))
    axes += [(0, -size % m) for size, m in zip(array.shape[-len(multiples) :], multiples, strict=True)]
    return np.pad(array, axes)


def pad_heads(array: np.ndarray, heads: int, size: int) -> np.ndarray:
    """[heads · size, …] to [heads · size padded, …], zeros behind each head."""
    split = array.reshape(heads, size, *array.shape[1:])
    result = np.pad(split, [(0, 0), (0, rounded_up(size) - size), *[(0, 0)] * (array.ndim - 1)])
    return result.reshape(heads * rounded_up(size), *array.shape[1:])


def sinusoids(config: SinusoidalConfig, d_model: int) -> np.ndarray:
    """The table (max_len, d_model) that `glassformer.nn.position.sinusoids` computes."""
    angles = np.arange(config.first, config.first + config.max_len, dtype=np.float64)[:, None]
    angles = angles * config.base ** (-np.arange(0, d_model, 2, dtype=np.float64) / d_model)
    pairs = np.sin(angles), np.cos(angles)
    if config.layout == "interleaved":
        return np.stack(pairs, axis=-1).reshape(config.max_len, d_model)
    return np.concatenate(pairs, axis=-1)


def angles(config: RotaryConfig, size: int) -> tuple[np.ndarray, float]:
    """The angle a position of each pair of features, float64, and what `glassformer.nn.rotary` multiplies by."""
    turned, scaling = int(config.fraction * size), config.scaling
    frequencies = config.base ** (-np.arange(0, turned, 2, dtype=np.float64) / turned)
    if isinstance(scaling, LinearScaling):
        frequencies /= scaling.factor
    elif isinstance(scaling, Llama3Scaling):
        turns = scaling.original_max_len * frequencies / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = np.clip((turns - low) / (high - low), 0, 1)
        frequencies = kept * frequencies + (1 - kept) * frequencies / scaling.factor
    elif scaling is not None:
        raise EngineUnavailable(f"it does not know the scaling {scaling.type}")
    if not np.isfinite(frequencies).all():
        raise UserError(f"rotary positions: base {config.base} gives angles that are no numbers")
    return frequencies, 1.0


def halves(config: RotaryConfig, heads: int, size: int) -> np.ndarray:
    """The order of rows in which the features of a pair stand half of what turns apart, whatever their own layout."""
    order = np.arange(size)
    if config.layout == "interleaved":
        turned = int(config.fraction * size)
        order[:turned] = np.concatenate([order[0:turned:2], order[1:turned:2]])
    return (np.arange(heads)[:, None] * size + order).reshape(-1)

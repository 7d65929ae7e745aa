"""Retention as loops over numbers, straight from the paper (Sun et al. 2023, arXiv:2307.08621, equations 3 to 8).

The parallel form with its three normalisations, every weight by itself, at absolute positions; nothing is shared with
the fast code.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping

import numpy as np

from glassformer.config import RetentionConfig

Weights = Mapping[str, np.ndarray]
Row = list[float]


def linear(weights: Weights, name: str, x: Row) -> Row:
    out = [sum(w * v for w, v in zip(row, x, strict=True)) for row in weights[f"{name}.weight"]]
    bias = weights.get(f"{name}.bias")
    return out if bias is None else [value + b for value, b in zip(out, bias, strict=True)]


def retention(config: RetentionConfig, weights: Weights, rows: list[Row], d_model: int, first: int = 7) -> list[Row]:
    """What the mixer makes of a sequence of rows.

    Args:
        first: Position of the first one, which must change nothing.
    """
    size = config.d_head or d_model // config.n_heads
    wide, pairs = config.d_value or 2 * size, size // 2
    q, k, v, g = ([linear(weights, part, row) for row in rows] for part in ("query", "key", "value", "gate"))
    made = []
    for n in range(len(rows)):
        y: Row = []
        for head in range(config.n_heads):
            gamma = 1 - (config.forget[head] if config.forget else 2.0 ** (-5 - head))
            row_sum = sum(gamma ** (n - m) for m in range(n + 1))
            scores = []
            for m in range(n + 1):
                score = 0.0
                for pair in range(pairs):
                    theta = config.base ** -(pair / (pairs - 1) if pairs > 1 else 0)
                    at = head * size + 2 * pair
                    turned_q = complex(q[n][at], q[n][at + 1]) * cmath.exp(1j * theta * (first + n))
                    turned_k = complex(k[m][at], k[m][at + 1]) * cmath.exp(1j * theta * (first + m))
                    score += (turned_q * turned_k.conjugate()).real
                scores.append(score / math.sqrt(size) * gamma ** (n - m) / math.sqrt(row_sum))
            whole = max(abs(sum(scores)), 1.0)
            read = [sum(score / whole * v[m][head * wide + e] for m, score in enumerate(scores)) for e in range(wide)]
            mean = sum(read) / wide
            variance = sum((value - mean) ** 2 for value in read) / wide
            normed = [(value - mean) / math.sqrt(variance + config.eps) for value in read]
            gates = g[n][head * wide : (head + 1) * wide]
            y += [gate / (1 + math.exp(-gate)) * value for gate, value in zip(gates, normed, strict=True)]
        made.append(linear(weights, "out", y))
    return made

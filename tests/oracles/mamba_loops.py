"""Mamba and Mamba-2 as loops over numbers, straight from the papers; nothing is shared with the fast code.

Gu and Dao 2023, arXiv:2312.00752, algorithm 2 and figure 3; Dao and Gu 2024, arXiv:2405.21060, section 7.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from glassformer.config import Mamba2Config, MambaConfig

Weights = Mapping[str, np.ndarray]
Row = list[float]


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "silu": silu,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu-tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick-gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
}


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def linear(weights: Weights, name: str, x: Row) -> Row:
    out = [sum(w * v for w, v in zip(row, x, strict=True)) for row in weights[f"{name}.weight"]]
    bias = weights.get(f"{name}.bias")
    return out if bias is None else [value + b for value, b in zip(out, bias, strict=True)]


def convolved(weights: Weights, rows: list[Row], activation: Callable[[float], float]) -> list[Row]:
    kernel, bias = weights["conv.weight"], weights.get("conv.bias")
    width = kernel.shape[2]
    made = []
    for t in range(len(rows)):
        row = []
        for e in range(len(rows[0])):
            total = 0.0 if bias is None else float(bias[e])
            for back in range(width):
                if t - back >= 0:
                    total += kernel[e, 0, width - 1 - back] * rows[t - back][e]
            row.append(activation(total))
        made.append(row)
    return made


def mamba(config: MambaConfig, weights: Weights, rows: list[Row]) -> list[Row]:
    """What the mixer makes of a sequence of rows."""
    xs = convolved(weights, [linear(weights, "into", row) for row in rows], ACTIVATIONS[config.activation])
    inner, states = len(xs[0]), config.d_state
    rank = weights["step.weight"].shape[1]
    h = [[0.0] * states for _ in range(inner)]
    made = []
    for row, x in zip(rows, xs, strict=True):
        selected = linear(weights, "select", x)
        b, c = selected[rank : rank + states], selected[rank + states :]
        deltas, gate = linear(weights, "step", selected[:rank]), linear(weights, "gate", row)
        y = []
        for e in range(inner):
            delta = softplus(deltas[e])
            for n in range(states):
                h[e][n] = math.exp(-delta * math.exp(weights["a_log"][e, n])) * h[e][n] + delta * b[n] * x[e]
            read = sum(c[n] * h[e][n] for n in range(states)) + weights["skip"][e] * x[e]
            y.append(read * silu(gate[e]))
        made.append(linear(weights, "out", y))
    return made


def mamba2(config: Mamba2Config, weights: Weights, rows: list[Row]) -> list[Row]:
    """What the mixer makes of a sequence of rows."""
    mixed = convolved(weights, [linear(weights, "into", row) for row in rows], ACTIVATIONS[config.activation])
    size, states, groups = config.d_head, config.d_state, config.n_groups
    inner = config.n_heads * size
    h = np.zeros((config.n_heads, size, states))
    made = []
    for row, x in zip(rows, mixed, strict=True):
        steps, gate, y = linear(weights, "step", row), linear(weights, "gate", row), []
        for head in range(config.n_heads):
            delta = softplus(steps[head] + weights["step_bias"][head])
            if config.dt_range:
                delta = min(max(delta, config.dt_range[0]), config.dt_range[1])
            decay = math.exp(-delta * math.exp(weights["a_log"][head]))
            group = head * groups // config.n_heads
            b = x[inner + group * states : inner + (group + 1) * states]
            c = x[inner + (groups + group) * states : inner + (groups + group + 1) * states]
            for p in range(size):
                value = x[head * size + p]
                for n in range(states):
                    h[head, p, n] = decay * h[head, p, n] + delta * b[n] * value
                read = sum(c[n] * h[head, p, n] for n in range(states))
                y.append((read + weights["skip"][head] * value) * silu(gate[head * size + p]))
        each = inner // (config.norm_groups or groups)
        normed = []
        for e in range(inner):
            group_of = y[e // each * each : (e // each + 1) * each]
            mean = sum(value * value for value in group_of) / each
            normed.append(y[e] / math.sqrt(mean + config.eps) * weights["norm.weight"][e])
        made.append(linear(weights, "out", normed))
    return made

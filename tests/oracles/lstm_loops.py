"""An LSTM in plain loops: one text, one token and one number after the other. Nothing is shared with the package."""

import math

from tests.oracles.rwkv_loops import matrix, sigmoid


def lstm(weights, text):
    """The rows of the matrices are the gates i, f, g and o, one behind the other."""
    width = len(weights["hidden.weight"]) // 4
    h, c, out = [0.0] * width, [0.0] * width, []
    for x in text:
        gates = [a + b for a, b in zip(matrix(weights, "input", x), matrix(weights, "hidden", h), strict=True)]
        for n in range(width):
            i, f, g, o = (gates[gate * width + n] for gate in range(4))
            c[n] = sigmoid(f) * c[n] + sigmoid(i) * math.tanh(g)
            h[n] = sigmoid(o) * math.tanh(c[n])
        out.append(matrix(weights, "out", h) if "out.weight" in weights else list(h))
    return out

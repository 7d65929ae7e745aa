"""RWKV-4, RWKV-5, RWKV-7 and their channel-mix in plain loops: one text, one token and one number after the other.

Nothing is shared with the package. Every function takes the weights of one part by their names in it, and the hidden
states of a text as lists, and gives what comes out of each token. The formulas are those of the papers' appendices.
"""

import math

from tests.oracles.transformer_loops import dot


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def matrix(weights, name, x):
    bias = weights[f"{name}.bias"].tolist() if f"{name}.bias" in weights else [0.0] * len(weights[f"{name}.weight"])
    return [dot(row, x) + b for row, b in zip(weights[f"{name}.weight"].tolist(), bias, strict=True)]


def mix(weights, name, x, last):
    shares = weights[name].tolist()
    return [share * now + (1 - share) * then for share, now, then in zip(shares, x, last, strict=True)]


def heads_norm(weights, heads, eps):
    """Every head normalised on its own; the gain and the bias are of all features."""
    flat = []
    for head in heads:
        mean = sum(head) / len(head)
        variance = sum((value - mean) ** 2 for value in head) / len(head)
        flat += [(value - mean) / math.sqrt(variance + eps) for value in head]
    gains, biases = weights["norm.weight"].tolist(), weights["norm.bias"].tolist()
    return [gain * value + bias for gain, value, bias in zip(gains, flat, biases, strict=True)]


def split(x, n_heads):
    size = len(x) // n_heads
    return [x[head * size : (head + 1) * size] for head in range(n_heads)]


def channel_mix(weights, text):
    last, out = [0.0] * len(text[0]), []
    for x in text:
        hidden = [max(value, 0.0) ** 2 for value in matrix(weights, "up", mix(weights, "mix_key", x, last))]
        y = matrix(weights, "down", hidden)
        if "gate.weight" in weights:
            gate = matrix(weights, "gate", mix(weights, "mix_gate", x, last))
            y = [sigmoid(g) * value for g, value in zip(gate, y, strict=True)]
        out.append(y)
        last = x
    return out


def rwkv4(weights, text):
    """With the running maximum of appendix D, as the released kernel has it."""
    rates = [math.exp(value) for value in weights["decay"].tolist()]
    firsts = weights["first"].tolist()
    above, below, top = [0.0] * len(rates), [0.0] * len(rates), [-math.inf] * len(rates)
    last, out = [0.0] * len(text[0]), []
    for x in text:
        k = matrix(weights, "key", mix(weights, "mix_key", x, last))
        v = matrix(weights, "value", mix(weights, "mix_value", x, last))
        r = matrix(weights, "receptance", mix(weights, "mix_receptance", x, last))
        z = []
        for c, (rate, first) in enumerate(zip(rates, firsts, strict=True)):
            most = max(top[c], first + k[c])
            old, new = math.exp(top[c] - most), math.exp(first + k[c] - most)
            z.append(sigmoid(r[c]) * (old * above[c] + new * v[c]) / (old * below[c] + new))
            most = max(top[c] - rate, k[c])
            old, new = math.exp(top[c] - rate - most), math.exp(k[c] - most)
            above[c], below[c], top[c] = old * above[c] + new * v[c], old * below[c] + new, most
        out.append(matrix(weights, "out", z))
        last = x
    return out


def rwkv5(weights, text, n_heads, eps):
    kept = split([math.exp(-math.exp(value)) for value in weights["decay"].tolist()], n_heads)
    firsts = split(weights["first"].tolist(), n_heads)
    size = len(kept[0])
    sums = [[[0.0] * size for _ in range(size)] for _ in range(n_heads)]
    last, out = [0.0] * len(text[0]), []
    for x in text:
        k = split(matrix(weights, "key", mix(weights, "mix_key", x, last)), n_heads)
        v = split(matrix(weights, "value", mix(weights, "mix_value", x, last)), n_heads)
        r = split(matrix(weights, "receptance", mix(weights, "mix_receptance", x, last)), n_heads)
        z = [[0.0] * size for _ in range(n_heads)]
        for h in range(n_heads):
            for i in range(size):
                for j in range(size):
                    product = k[h][i] * v[h][j]
                    z[h][j] += r[h][i] * (firsts[h][i] * product + sums[h][i][j])
                    sums[h][i][j] = kept[h][i] * sums[h][i][j] + product
        y = heads_norm(weights, z, eps)
        if "gate.weight" in weights:
            gate = matrix(weights, "gate", mix(weights, "mix_gate", x, last))
            y = [g * sigmoid(g) * value for g, value in zip(gate, y, strict=True)]
        out.append(matrix(weights, "out", y))
        last = x
    return out


def low_rank(weights, name, x, inner=lambda value: value):
    return matrix(weights, f"{name}.up", [inner(value) for value in matrix(weights, f"{name}.down", x)])


def rwkv7(weights, text, n_heads, eps, firsts=None):
    """What comes out, and the values, which later layers get as ``firsts``."""
    width = len(text[0])
    size = width // n_heads
    state = [[[0.0] * size for _ in range(size)] for _ in range(n_heads)]  # rows are values, columns keys
    removal, renewal = weights["removal"].tolist(), weights["renewal"].tolist()
    bonus = split(weights["bonus"].tolist(), n_heads)
    last, out, values = [0.0] * width, [], []
    for place, x in enumerate(text):
        r = split(matrix(weights, "receptance", mix(weights, "mix_receptance", x, last)), n_heads)
        key = matrix(weights, "key", mix(weights, "mix_key", x, last))
        mixed = mix(weights, "mix_value", x, last)
        value = matrix(weights, "value", mixed)
        if "carry.up.weight" in weights:
            first = firsts[place] if firsts else [0.0] * width
            shares = [sigmoid(share) for share in low_rank(weights, "carry", mixed)]
            value = [v + (f - v) * share for v, f, share in zip(value, first, shares, strict=True)]
        values.append(value)
        rate = [sigmoid(a) for a in low_rank(weights, "rate", mix(weights, "mix_rate", x, last))]
        decay = low_rank(weights, "decay", mix(weights, "mix_decay", x, last), math.tanh)
        kept = split([math.exp(-math.exp(-0.5) * sigmoid(w)) for w in decay], n_heads)
        kappa = split([k * gain for k, gain in zip(key, removal, strict=True)], n_heads)
        k = split([k * (1 + (a - 1) * gain) for k, a, gain in zip(key, rate, renewal, strict=True)], n_heads)
        v, a = split(value, n_heads), split(rate, n_heads)
        z = []
        for h in range(n_heads):
            length = max(math.sqrt(dot(kappa[h], kappa[h])), 1e-12)
            unit = [each / length for each in kappa[h]]
            z.append([])
            for i in range(size):
                read = dot(state[h][i], unit)
                state[h][i] = [
                    state[h][i][j] * kept[h][j] - read * a[h][j] * unit[j] + v[h][i] * k[h][j] for j in range(size)
                ]
                z[h].append(dot(state[h][i], r[h]))
        y = heads_norm(weights, z, eps)
        extra = []
        for h in range(n_heads):
            score = sum(r[h][j] * k[h][j] * bonus[h][j] for j in range(size))
            extra += [score * each for each in v[h]]
        gate = low_rank(weights, "gate", mix(weights, "mix_gate", x, last), sigmoid)
        out.append(matrix(weights, "out", [(a + b) * g for a, b, g in zip(y, extra, gate, strict=True)]))
        last = x
    return out, values

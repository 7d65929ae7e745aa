"""Sparse attention in plain loops, for one text without padding: each query lists the keys it sees, one by one.

Names of weights as in ``transformer_loops``. It shares no code with the package; random blocks are given.
"""

import math

from tests.oracles.transformer_loops import dot, linear, softmax


def gathered(weights, name, config, x, seen, own=lambda t: ""):
    """Attention in which query t sees ``seen(head, t)``, a list of keys in which one may stand several times.

    ``own(t)`` is what the names of the projections of query t end in.
    """
    size = config.d_head or len(x[0]) // config.n_heads
    parts = {
        kind + end: [linear(weights, f"{name}.{kind}{end}", row) for row in x]
        for end in {own(t) for t in range(len(x))}
        for kind in ("query", "key", "value")
    }
    results = []
    for t in range(len(x)):
        query, key, value = (parts[kind + own(t)] for kind in ("query", "key", "value"))
        joined = []
        for head in range(config.n_heads):
            mine = slice(head * size, (head + 1) * size)
            keys = seen(head, t)
            pattern = softmax([dot(query[t][mine], key[s][mine]) / math.sqrt(size) for s in keys])
            joined += [sum(p * value[s][mine][i] for p, s in zip(pattern, keys, strict=True)) for i in range(size)]
        results.append(linear(weights, f"{name}.out", joined))
    return results


def sliding(weights, name, config, x, everywhere=()):
    """Longformer's window; the tokens at the places of ``everywhere`` are global."""

    def seen(head, t):
        if t in everywhere:
            return list(range(len(x)))
        steps = range(-config.reach, 1 if config.causal else config.reach + 1)
        near = [t + step * config.dilation for step in steps]
        return sorted({s for s in near if 0 <= s < len(x)} | set(everywhere))

    return gathered(weights, name, config, x, seen, lambda t: "_global" if t in everywhere else "")


def blocks(weights, name, config, x, drawn):
    """BigBird's blocks; ``drawn[head][block]`` are the random ones of a block."""
    size, last = config.block, (len(x) - 1) // config.block

    def seen(head, t):
        own = t // size
        if len(x) <= (5 + 2 * config.random) * size or own in (0, last):
            return list(range(len(x)))
        chosen = sorted({0, own - 1, own, own + 1, last}) + list(drawn[head][own])
        return [s for block in chosen for s in range(block * size, min((block + 1) * size, len(x)))]

    return gathered(weights, name, config, x, seen)

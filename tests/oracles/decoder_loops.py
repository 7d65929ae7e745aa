"""A decoder such as LLaMA, Mistral, GPT-2 or GPT-NeoX in plain loops, for one text, without padding, masks or caches.

It shares no code with the package: rotations are products of complex numbers, a group of heads is a division of head
numbers, a window is a range. Names as in ``transformer_loops``.
"""

import cmath
import math

from tests.oracles.transformer_loops import activation, add, dot, layer_norm, linear, softmax


def norm(weights, name, config, x):
    if config.type == "layer":
        return layer_norm(weights, name, x, config.eps)
    size = math.sqrt(sum(value * value for value in x) / len(x) + config.eps)
    return [gain * value / size for gain, value in zip(weights[f"{name}.weight"].tolist(), x, strict=True)]


def turned(vector, place, rotary, length):
    """The vector of one head with its pairs turned by their angles at this place, in a text of that length."""
    size = int(rotary.fraction * len(vector))
    result = list(vector)
    for pair in range(size // 2):
        a, b = (pair, pair + size // 2) if rotary.layout == "halves" else (2 * pair, 2 * pair + 1)
        step, factor = frequency(rotary, size, pair, length)
        z = complex(vector[a], vector[b]) * cmath.exp(1j * place * step) * factor
        result[a], result[b] = z.real, z.imag
    return result


def frequency(rotary, size, pair, length):
    """Angle per place of a pair, and what queries and keys are multiplied with."""
    scaling, step = rotary.scaling, rotary.base ** (-2 * pair / size)
    if scaling is None:
        return step, 1.0
    if scaling.type == "linear":
        return step / scaling.factor, 1.0
    original = scaling.original_max_len
    if scaling.type == "dynamic":
        if length <= original:
            return step, 1.0
        base = rotary.base * (scaling.factor * length / original - (scaling.factor - 1)) ** (size / (size - 2))
        return base ** (-2 * pair / size), 1.0
    if scaling.type == "llama3":
        wave = 2 * math.pi / step
        if wave < original / scaling.high_freq_factor:
            return step, 1.0
        if wave > original / scaling.low_freq_factor:
            return step / scaling.factor, 1.0
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        smooth = (original / wave - low) / (high - low)
        return (1 - smooth) * step / scaling.factor + smooth * step, 1.0
    ends = []
    for turns in (scaling.beta_fast, scaling.beta_slow):
        ends.append(size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rotary.base)))
    if scaling.truncate:
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], size - 1)
    ramp = min(max((pair - first) / (last - first if last > first else 0.001), 0.0), 1.0)
    sharper = scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1
    return ramp * step / scaling.factor + (1 - ramp) * step, sharper


def attention(weights, name, config, d_model, queries, memory, bias=None):
    """Every place of ``queries`` gathers from places of ``memory``; ``bias(head, distance)`` is added to its scores."""
    size = config.d_head or d_model // config.n_heads
    group = config.n_heads // (config.n_kv_heads or config.n_heads)
    query = [linear(weights, f"{name}.query", x) for x in queries]
    key = [linear(weights, f"{name}.key", x) for x in memory]
    value = [linear(weights, f"{name}.value", x) for x in memory]
    results = []
    for t in range(len(queries)):
        joined = []
        for head in range(config.n_heads):
            own, shared = head * size, head // group * size
            seen = range(t + 1) if config.causal else range(len(memory))
            if config.window:
                seen = [s for s in seen if abs(t - s) < config.window]
            scores = []
            for s in seen:
                q, k = query[t][own : own + size], key[s][shared : shared + size]
                if config.rotary:
                    q, k = (turned(x, at, config.rotary, len(memory)) for x, at in ((q, t), (k, s)))
                score = dot(q, k) * (config.scale or 1 / math.sqrt(size))
                scores.append(score + (bias(head, s - t) if bias else 0.0))
            pattern = dict(zip(seen, softmax(scores), strict=True))
            joined += [sum(pattern[s] * value[s][shared + i] for s in seen) for i in range(size)]
        results.append(linear(weights, f"{name}.out", joined))
    return results


def feed_forward(weights, name, config, x):
    hidden = linear(weights, f"{name}.up", x)
    if config.type == "gated":
        gate = [activation(config.activation, g) for g in linear(weights, f"{name}.gate", x)]
        hidden = [g * h for g, h in zip(gate, hidden, strict=True)]
    else:
        hidden = [activation(config.activation, h) for h in hidden]
    return linear(weights, f"{name}.down", hidden)


def block(weights, name, config, d_model, x, memory=None, bias=None):
    def normed(part, rows):
        return [norm(weights, f"{name}.{part}_residual.norm", config.norm, row) for row in rows]

    def plus(a, b):
        return [add(p, q) for p, q in zip(a, b, strict=True)]

    def mix(rows):
        return attention(weights, f"{name}.mixer", config.mixer, d_model, rows, rows, bias)

    def look(rows):
        return attention(weights, f"{name}.cross", config.cross, d_model, rows, memory)

    def think(rows):
        return [feed_forward(weights, f"{name}.ffn", config.ffn, row) for row in rows]

    if config.parallel:
        return plus(x, plus(mix(normed("mixer", x)), think(normed("ffn", x))))
    for part, f in (("mixer", mix), ("cross", look), ("ffn", think)):
        if getattr(config, part) is not None:
            x = plus(x, f(normed(part, x))) if config.order == "pre" else normed(part, plus(x, f(x)))
    return x


def alibi(n_heads):
    """Slopes for a power of two are 2^(-8/n), 2^(-16/n) …; another number takes every other slope of the next power."""
    power = 1
    while 2 * power <= n_heads:
        power *= 2
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * power, 2)]
    return lambda head, distance: -slopes[head] * abs(distance)


def stack(weights, name, config, d_model, x, memory=None, bias=None):
    for place in range(len(x)):
        if config.position is not None:
            row = weights[f"{name}.position.weight"][config.position.first + place].tolist()
            x[place] = add(x[place], row)
        if config.input_norm is not None:
            x[place] = norm(weights, f"{name}.input_norm", config.input_norm, x[place])
    if config.bias is not None and config.bias.type == "alibi":
        bias = alibi(config.blocks[0].mixer.n_heads)
    for index, layer in enumerate(config.blocks):
        x = block(weights, f"{name}.layers.{index}", layer, d_model, x, memory, bias)
    if config.final_norm is not None:
        x = [norm(weights, f"{name}.final_norm", config.final_norm, row) for row in x]
    return x


def embedded(weights, name, config, d_model, ids):
    factor = math.sqrt(d_model) if config.scale else 1.0
    return [[factor * value for value in weights[f"{name}.weight"][token].tolist()] for token in ids]


def predicted(config, weights, x, reads="embed"):
    """One logit for each id."""
    factor = config.d_model**-0.5 if config.head.scale else 1.0
    table = weights[f"{reads}.weight" if config.tie else "head.weight"].tolist()
    bias = weights["head.bias"].tolist() if config.head.bias else [0.0] * len(table)
    return [[dot(row, h) * factor + b for row, b in zip(table, bias, strict=True)] for h in x]


def logits(config, weights, ids):
    """Logits, [position][id], of one list of ids."""
    x = embedded(weights, "embed", config.embed, config.d_model, ids)
    return predicted(config, weights, stack(weights, "decoder", config.decoder, config.d_model, x))

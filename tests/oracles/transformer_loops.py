"""The encoder–decoder Transformer in plain loops, to be read from top to bottom. It shares no code with the package.

One sentence pair at a time, without padding, masks, batches, caches or heads folded into one tensor: a key that must
not be seen is simply not in the loop. Everything is a Python float or a list of them, in double precision.

    d_model   length of a hidden state          x, y     hidden states, one list of d_model numbers a position
    W, b      a matrix [out][in] and its bias   weights  name → numpy array, the model's ``state_dict``
"""

import math


def add(a, b):
    return [x + y for x, y in zip(a, b, strict=True)]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def linear(weights, name, x):
    """y_o = Σ_i W_oi x_i + b_o"""
    rows = weights[f"{name}.weight"].tolist()
    bias = weights[f"{name}.bias"].tolist() if f"{name}.bias" in weights else [0.0] * len(rows)
    return [dot(row, x) + b for row, b in zip(rows, bias, strict=True)]


def layer_norm(weights, name, x, eps):
    """y_i = γ_i (x_i − mean) / √(variance + ε) + β_i, the variance divided by d."""
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    gain = weights[f"{name}.weight"].tolist()
    shift = weights[f"{name}.bias"].tolist() if f"{name}.bias" in weights else [0.0] * len(x)
    return [g * (v - mean) / math.sqrt(variance + eps) + s for g, v, s in zip(gain, x, shift, strict=True)]


def activation(kind, x):
    if kind == "relu":
        return max(0.0, x)
    if kind == "gelu":
        return x * 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))
    if kind == "gelu-tanh":
        return 0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    if kind == "quick-gelu":
        return x / (1.0 + math.exp(-1.702 * x))
    if kind == "silu":
        return x / (1.0 + math.exp(-x))
    raise ValueError(kind)


def softmax(scores):
    largest = max(scores)
    powers = [math.exp(score - largest) for score in scores]
    return [power / sum(powers) for power in powers]


def position(weights, name, config, place, d_model):
    """The vector added to the token at place 0, 1, 2 …"""
    if config.type == "learned":
        return weights[f"{name}.weight"][place].tolist()
    vector = [0.0] * d_model
    for pair in range(d_model // 2):
        angle = (place + config.first) / config.base ** (2 * pair / d_model)
        sine, cosine = (2 * pair, 2 * pair + 1) if config.layout == "interleaved" else (pair, d_model // 2 + pair)
        vector[sine], vector[cosine] = math.sin(angle), math.cos(angle)
    return vector


def attention(weights, name, config, d_model, queries, memory):
    """Every position of ``queries`` gathers from the positions of ``memory``, which for self-attention are its own."""
    d_head = config.d_head or d_model // config.n_heads
    query = [linear(weights, f"{name}.query", x) for x in queries]
    key = [linear(weights, f"{name}.key", x) for x in memory]
    value = [linear(weights, f"{name}.value", x) for x in memory]
    results = []
    for t in range(len(queries)):
        joined = []
        for head in range(config.n_heads):
            ours = range(head * d_head, (head + 1) * d_head)
            seen = range(t + 1) if config.causal else range(len(memory))
            scores = [dot([query[t][i] for i in ours], [key[s][i] for i in ours]) / math.sqrt(d_head) for s in seen]
            pattern = softmax(scores)
            joined += [sum(pattern[s] * value[s][i] for s in seen) for i in ours]
        results.append(linear(weights, f"{name}.out", joined))
    return results


def feed_forward(weights, name, config, x):
    hidden = [activation(config.activation, h) for h in linear(weights, f"{name}.up", x)]
    return linear(weights, f"{name}.down", hidden)


def residual(weights, name, config, x, sublayer):
    """post: norm(x + f(x)); pre: x + f(norm(x)). ``x`` is every position, ``sublayer`` maps all of them."""

    def norm(rows):
        return [layer_norm(weights, f"{name}.norm", row, config.norm.eps) for row in rows]

    if config.order == "pre":
        return [add(a, b) for a, b in zip(x, sublayer(norm(x)), strict=True)]
    return norm([add(a, b) for a, b in zip(x, sublayer(x), strict=True)])


def stack(weights, name, config, d_model, x, memory=None):
    if config.position is not None:
        for place in range(len(x)):
            x[place] = add(x[place], position(weights, f"{name}.position", config.position, place, d_model))
    for index, block in enumerate(config.blocks):
        here = f"{name}.layers.{index}"

        def self_attend(y, here=here, block=block):
            return attention(weights, f"{here}.mixer", block.mixer, d_model, y, y)

        def cross_attend(y, here=here, block=block):
            return attention(weights, f"{here}.cross", block.cross, d_model, y, memory)

        def transform(y, here=here, block=block):
            return [feed_forward(weights, f"{here}.ffn", block.ffn, row) for row in y]

        x = residual(weights, f"{here}.mixer_residual", block, x, self_attend)
        if block.cross is not None:
            x = residual(weights, f"{here}.cross_residual", block, x, cross_attend)
        if block.ffn is not None:
            x = residual(weights, f"{here}.ffn_residual", block, x, transform)
    if config.final_norm is not None:
        x = [layer_norm(weights, f"{name}.final_norm", row, config.final_norm.eps) for row in x]
    return x


def embed(weights, name, config, d_model, ids):
    factor = math.sqrt(d_model) if config.scale else 1.0
    return [[factor * value for value in weights[f"{name}.weight"][token].tolist()] for token in ids]


def logits(config, weights, source, target):
    """Teacher-forced logits, [position of target][id], for one pair of lists of ids."""
    d = config.d_model
    reads = "target_embed" if config.target_embed is not None else "embed"
    memory = stack(weights, "encoder", config.encoder, d, embed(weights, "embed", config.embed, d, source))
    written = embed(weights, reads, config.target_embed or config.embed, d, target)
    hidden = stack(weights, "decoder", config.decoder, d, written, memory)
    table = weights[f"{reads}.weight" if config.tie else "head.weight"].tolist()
    bias = weights["head.bias"].tolist() if config.head.bias else [0.0] * len(table)
    return [[dot(row, h) + b for row, b in zip(table, bias, strict=True)] for h in hidden]

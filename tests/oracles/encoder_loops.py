"""An encoder such as BERT or RoBERTa in plain loops, for one text, with every head that it may have."""

import math

from tests.oracles.decoder_loops import embedded, norm, stack
from tests.oracles.transformer_loops import activation, add, dot, linear


def hidden(config, weights, ids, token_types=None):
    """The last hidden states, one list a token."""
    x = embedded(weights, "embed", config.embed, config.d_model, ids)
    if config.embed.token_types:
        rows = weights["embed.token_types"].tolist()
        x = [add(x[t], rows[token_types[t] if token_types else 0]) for t in range(len(x))]
    return stack(weights, "encoder", config.encoder, config.d_model, x)


def output(config, weights, ids, token_types=None):
    """What the head says."""
    x, head = hidden(config, weights, ids, token_types), config.head
    if head is None or head.type == "pooler":  # a pooler's vector stands beside the hidden states
        return x
    if head.type == "masked-lm":
        x = [[activation(head.activation, h) for h in linear(weights, "head.dense", row)] for row in x]
        x = [norm(weights, "head.norm", head.norm, row) for row in x]
        table = weights["embed.weight" if config.tie else "head.output.weight"].tolist()
        bias = weights["head.output.bias"].tolist() if head.bias else [0.0] * len(table)
        return [[dot(row, h) + b for row, b in zip(table, bias, strict=True)] for h in x]
    if head.type in ("token-classifier", "span"):
        return [linear(weights, "head.output", row) for row in x]
    one = {"first": x[0], "last": x[-1], "mean": [sum(column) / len(x) for column in zip(*x, strict=True)]}[head.pool]
    if head.type == "pool":
        length = math.sqrt(dot(one, one)) if head.normalise else 1.0
        return [value / length for value in one]
    if head.hidden:
        bent = {"tanh": math.tanh, "relu": lambda h: max(0.0, h)}[head.hidden]
        one = [bent(h) for h in linear(weights, "head.dense", one)]
    return linear(weights, "head.output", one)

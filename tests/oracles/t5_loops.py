"""An encoder–decoder with relative positions such as T5 in plain loops, for one pair of texts."""

import math

from tests.oracles.decoder_loops import embedded, predicted, stack


def bucket(config, distance):
    """The bucket of key minus query: half of them (of each side's) for one distance each, the others logarithmic."""
    count, first = config.buckets, 0
    if config.bidirectional:
        count //= 2
        if distance > 0:
            first = count
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = count // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(config.max_distance / exact)
    # What is a whole number but for rounding is that number.
    return first + min(count - 1, exact + math.floor(share * (count - exact) + 1e-6))


def logits(config, weights, source, target):
    """Teacher-forced logits, [position of target][id], for one pair of lists of ids."""

    def bias(side, config):
        table = weights[f"{side}.bias.weight"]
        return lambda head, distance: float(table[bucket(config, distance)][head])

    d = config.d_model
    x = embedded(weights, "embed", config.embed, d, source)
    memory = stack(weights, "encoder", config.encoder, d, x, bias=bias("encoder", config.encoder.bias))
    x = embedded(weights, "embed", config.embed, d, target)
    return predicted(
        config, weights, stack(weights, "decoder", config.decoder, d, x, memory, bias("decoder", config.decoder.bias))
    )

"""What is hidden in a text, so that a model learns to fill it in.

All draws are by ``random()``, the one stream that Python promises never to change.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from random import Random

from glassformer.data.collate import IGNORE


def shuffled(count: int, rng: Random) -> list[int]:
    """The numbers below ``count`` in random order."""
    order = [rng.random() for _ in range(count)]
    return sorted(range(count), key=order.__getitem__)


def mask_tokens(
    ids: Sequence[int],
    rng: Random,
    *,
    share: float,
    mask_id: int,
    ordinary: Sequence[int],
    special: Collection[int],
    continues: Collection[int] | None = None,
) -> tuple[list[int], list[int]]:
    """Hides tokens for a masked language model (Devlin et al. 2019, section 3.1).

    Of the tokens chosen, 80 % become the mask, 10 % a random token, and 10 % stay; all are to be predicted.

    Args:
        share: Of the tokens that are not special; at least one is chosen where there is any.
        ordinary: Ids that a random token is drawn from.
        special: Ids that are never chosen.
        continues: Ids that go on with the word before them, to choose whole words; None chooses tokens alone.

    Returns:
        The ids to read, and for each place the id to predict, or `IGNORE`.
    """
    units: list[list[int]] = []
    open_word = False
    for place, token in enumerate(ids):
        if token in special:
            open_word = False
        elif continues is not None and open_word and token in continues:
            units[-1].append(place)
        else:
            units.append([place])
            open_word = True
    budget = max(1, round(share * sum(map(len, units))))
    read, labels = list(ids), [IGNORE] * len(ids)
    for index in shuffled(len(units), rng):
        if budget <= 0:
            break
        # As in BERT's own code, a word that is longer than what is left is passed over, unless it is the first.
        if len(units[index]) > budget and any(label != IGNORE for label in labels):
            continue
        budget -= len(units[index])
        for place in units[index]:
            labels[place], draw = ids[place], rng.random()
            if draw < 0.8:
                read[place] = mask_id
            elif draw < 0.9:
                read[place] = ordinary[int(rng.random() * len(ordinary))]
    return read, labels


def count_spans(length: int, share: float, mean: float) -> tuple[int, int]:
    """How many tokens of a text are in spans, and how many spans there are."""
    noise = min(max(round(length * share), 1), length - 1)
    return noise, min(max(round(noise / mean), 1), length - noise)


def corrupt_spans(
    ids: Sequence[int], rng: Random, *, sentinels: Sequence[int], share: float, mean: float
) -> tuple[list[int], list[int]]:
    """Takes spans out of a text, a sentinel in the place of each (Raffel et al. 2020, figure 2).

    Args:
        ids: Two or more.
        sentinels: Ids that stand for spans, in the order of use; one more than there are spans.
        share: Of the tokens that are taken out.
        mean: Tokens of a span.

    Returns:
        The text with sentinels; and each sentinel with the span that it stands for, closed by one more sentinel.
    """
    noise, count = count_spans(len(ids), share, mean)
    source: list[int] = []
    target: list[int] = []
    at = 0
    lengths = zip(_parts(len(ids) - noise, count, rng), _parts(noise, count, rng), strict=True)
    for sentinel, (kept, taken) in zip(sentinels, lengths, strict=False):
        source += [*ids[at : at + kept], sentinel]
        target += [sentinel, *ids[at + kept : at + kept + taken]]
        at += kept + taken
    return source, [*target, sentinels[count]]


def _parts(total: int, count: int, rng: Random) -> list[int]:
    """Cuts a number into so many parts of one or more, all ways alike."""
    cuts = sorted(place + 1 for place in shuffled(total - 1, rng)[: count - 1])
    return [end - start for start, end in zip([0, *cuts], [*cuts, total], strict=True)]


def infill(ids: Sequence[int], rng: Random, *, mask_id: int, share: float, mean: float) -> list[int]:
    """Puts one mask in the place of each of some spans (Lewis et al. 2020, section 2.2).

    Lengths of spans are drawn from a Poisson distribution until they hold the share of the tokens; a span of length 0
    inserts a mask. Spans do not touch.
    """
    budget = round(share * len(ids))
    lengths: list[int] = []
    while budget > 0:
        lengths.append(min(_poisson(mean, rng), budget))
        budget -= lengths[-1]
    kept = len(ids) - sum(lengths)
    # Spans stand in different gaps between the tokens that are kept, so that two masks are never one.
    gaps = sorted(shuffled(kept + 1, rng)[: len(lengths)])
    noisy: list[int] = []
    at = before = 0
    for gap, length in zip(gaps, lengths, strict=False):
        noisy += [*ids[at : at + gap - before], mask_id]
        at += gap - before + length
        before = gap
    return [*noisy, *ids[at:]]


def permute_sentences(ids: Sequence[int], rng: Random, ends: Collection[int]) -> list[int]:
    """Shuffles sentences, each of which goes to the first id of ``ends``, and the last to the text's end."""
    sentences: list[list[int]] = [[]]
    for token in ids:
        sentences[-1].append(token)
        if token in ends:
            sentences.append([])
    sentences = [sentence for sentence in sentences if sentence]
    return [token for index in shuffled(len(sentences), rng) for token in sentences[index]]


def _poisson(mean: float, rng: Random) -> int:
    """Knuth 1969, volume 2, section 3.4.1."""
    limit, product, count = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count

"""Batches bounded in padded tokens, planned as a pure function of the data's lengths, the seed and the epoch."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

FULL_ENOUGH = 0.4


class Plan(NamedTuple):
    """The batches of one epoch, as indices into the data, and how many examples fit in none."""

    batches: list[list[int]]
    dropped: int


def plan_epoch(
    lengths: Sequence[tuple[int, int]], *, batch_tokens: int, seed: int, epoch: int, max_len: int | None = None
) -> Plan:
    """Cut an epoch into batches of similar lengths, in random order.

    Every batch holds `(longest source + longest target) * examples <= batch_tokens`: the bound is on what is computed,
    padding included. The plan depends on the arguments alone: `(epoch, index of the batch)` is the whole position in
    the data, and training resumes exactly from it.

    Examples are sorted by source length, then by target length with a little seeded noise, so that an epoch does not
    repeat the batches of the last one. A batch is cut when full, or at a change of source length when it is full
    enough: most batches then need no source padding, and attention no padding mask.

    Args:
        lengths: tokens of each example's source and target, special tokens included.
        batch_tokens: the most tokens in a batch, of source and target together.
        seed: any integer.
        epoch: any integer; each epoch has its own batches and order.
        max_len: the most tokens on either side, usually the model's number of positions.

    Returns:
        The batches, and the number of examples dropped because they alone exceed `batch_tokens` or `max_len`.
    """
    limit = batch_tokens if max_len is None else max_len
    kept = [i for i, (s, t) in enumerate(lengths) if s + t <= batch_tokens and s <= limit and t <= limit]
    # Seeded by a string, and drawing with random() alone: the one stream that Python promises never to change.
    rng = Random(f"{seed}/{epoch}")
    stride = max((lengths[i][1] for i in kept), default=0) + 2
    place = {i: lengths[i][0] * stride + lengths[i][1] + 2 * rng.random() for i in kept}

    batches: list[list[int]] = []
    batch: list[int] = []
    longest_source = longest_target = 0
    for i in sorted(kept, key=place.__getitem__):
        source, target = lengths[i]
        full = (max(longest_source, source) + max(longest_target, target)) * (len(batch) + 1) > batch_tokens
        enough = (longest_source + longest_target) * len(batch) >= FULL_ENOUGH * batch_tokens
        if batch and (full or (source != longest_source and enough)):
            batches.append(batch)
            batch, longest_source, longest_target = [], 0, 0
        batch.append(i)
        longest_source, longest_target = max(longest_source, source), max(longest_target, target)
    if batch:
        batches.append(batch)
    order = [rng.random() for _ in batches]
    return Plan([batches[j] for j in sorted(range(len(batches)), key=order.__getitem__)], len(lengths) - len(kept))


def shard(batch: list[int], rank: int, world: int) -> list[int]:
    """Give one of `world` data-parallel ranks its rows of a batch, perhaps none, by stride: lengths spread evenly."""
    return batch[rank::world]

"""Laws of the batch plan: nothing lost, nothing too large, nothing left to chance."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data import plan_epoch, read_pairs, shard

shapes = st.tuples(st.integers(0, 30), st.integers(0, 30))
# Many examples of few shapes, too: only those fill a batch across a change of source length.
lengths_of_examples = st.lists(shapes, max_size=40) | st.lists(shapes, min_size=1, max_size=4).flatmap(
    lambda few: st.lists(st.sampled_from(few), max_size=120)
)
seeds = st.integers(-(2**40), 2**40)


def corpus(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Lengths like those of short sentences, with a target that follows its source."""
    rng = Random(seed)
    sources = [2 + int(rng.gammavariate(4, 3)) for _ in range(count)]
    return [(source, max(1, int(source * rng.uniform(0.6, 1.2)))) for source in sources]


@given(lengths_of_examples, st.integers(1, 200), seeds, st.integers(0, 50), st.none() | st.integers(1, 30))
def test_every_example_that_fits_comes_once_and_no_batch_is_too_large(
    lengths: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int, max_len: int | None
) -> None:
    plan = plan_epoch(lengths, batch_tokens=batch_tokens, seed=seed, epoch=epoch, max_len=max_len)
    fits = {
        i
        for i, (source, target) in enumerate(lengths)
        if source + target <= batch_tokens and (max_len is None or (source <= max_len and target <= max_len))
    }
    assert Counter(i for batch in plan.batches for i in batch) == Counter(fits)
    assert plan.dropped == len(lengths) - len(fits)
    for batch in plan.batches:
        assert batch, "an empty batch is a step without a loss"
        padded = max(lengths[i][0] for i in batch) + max(lengths[i][1] for i in batch)
        assert padded * len(batch) <= batch_tokens


@given(lengths_of_examples, st.integers(1, 200), seeds, st.integers(0, 50))
def test_a_plan_follows_from_its_arguments_whatever_was_drawn_before(
    lengths: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int
) -> None:
    plan = plan_epoch(lengths, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
    plan_epoch(lengths, batch_tokens=batch_tokens, seed=seed, epoch=epoch + 1)
    assert plan == plan_epoch(list(lengths), batch_tokens=batch_tokens, seed=seed, epoch=epoch)


def test_a_plan_is_the_same_in_another_process_with_another_hash_seed() -> None:
    lengths = corpus(300)
    program = (
        "import json, sys; from glassformer.data import plan_epoch; lengths = json.load(sys.stdin);"
        "print(json.dumps(plan_epoch(lengths, batch_tokens=400, seed=3, epoch=2).batches));"
        "assert 'torch' not in sys.modules, 'planning needs no torch'"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(lengths),
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    here = plan_epoch(lengths, batch_tokens=400, seed=3, epoch=2).batches
    assert [json.loads(output) for output in outputs] == [here, here]


def test_a_plan_stays_what_it_was_so_that_an_old_run_resumes() -> None:
    lengths = [(3, 4), (3, 5), (5, 4), (5, 9), (2, 2), (8, 8), (3, 3), (5, 5), (2, 3), (40, 1)]
    assert plan_epoch(lengths, batch_tokens=24, seed=1, epoch=0) == ([[4, 8], [3], [5], [6, 1, 0], [2, 7]], 1)


@pytest.mark.parametrize("other", [{"seed": 2, "epoch": 0}, {"seed": 1, "epoch": 1}, {"seed": 11, "epoch": 0}])
def test_another_seed_or_epoch_gives_other_batches_in_another_order(other: dict[str, int]) -> None:
    lengths = corpus(2000)
    first = plan_epoch(lengths, batch_tokens=500, seed=1, epoch=0).batches
    second = plan_epoch(lengths, batch_tokens=500, seed=other["seed"], epoch=other["epoch"]).batches
    same = {frozenset(batch) for batch in first} & {frozenset(batch) for batch in second}
    assert len(same) < len(first) / 4, "the same batches again"

    def order(batches: list[list[int]]) -> list[int]:
        return [max(lengths[i][0] for i in batch) for batch in batches]

    assert order(first) != order(second)
    assert sum(a > b for a, b in zip(order(first), order(first)[1:], strict=False)) > len(first) / 4, "short ones first"


@given(st.lists(st.integers(), max_size=40), st.integers(1, 9))
def test_shards_part_a_batch_evenly(batch: list[int], world: int) -> None:
    shards = [shard(batch, rank, world) for rank in range(world)]
    assert Counter(i for rows in shards for i in rows) == Counter(batch)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_no_examples_and_no_example_that_fits() -> None:
    assert plan_epoch([], batch_tokens=100, seed=1, epoch=0) == ([], 0)
    assert plan_epoch([(60, 60), (5, 101)], batch_tokens=100, seed=1, epoch=0) == ([], 2)


def test_one_huge_pair_is_dropped_and_costs_its_neighbours_nothing() -> None:
    lengths = corpus(500)
    alone = plan_epoch(lengths, batch_tokens=600, seed=1, epoch=0)
    with_huge = plan_epoch([*lengths, (5000, 5000)], batch_tokens=600, seed=1, epoch=0)
    assert with_huge.dropped == alone.dropped + 1
    assert with_huge.batches == alone.batches


def test_real_text_is_batched_with_little_padding(shared: Path) -> None:
    pairs = read_pairs(shared / "data/zh-en/train.tsv", source="zh", target="en")
    one_way = [(len(pair.source) + 2, len(re.findall(r"\w+|[^\w\s]", pair.target)) + 1) for pair in pairs]
    lengths = one_way + [(target + 1, source - 1) for source, target in one_way]
    plan = plan_epoch(lengths, batch_tokens=6000, seed=1, epoch=0)
    real = sum(map(sum, lengths))
    sides = [([lengths[i][0] for i in batch], [lengths[i][1] for i in batch]) for batch in plan.batches]
    padded = sum((max(sources) + max(targets)) * len(sources) for sources, targets in sides)
    assert plan.dropped == 0
    assert 1 - real / padded < 0.06
    assert sum(min(sources) == max(sources) for sources, _ in sides) > 0.9 * len(sides), "no source padding, no mask"

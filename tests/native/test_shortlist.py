"""Shortlists: learnt as the equations say, and a search that sees no other piece."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest

from glassformer.errors import UserError
from glassformer.runtime.shortlist import ROUNDS, Shortlist
from tests.native.models import BOS, EOS, drawn, module_of, opened

VOCAB = 30


def pairs(seed: int) -> list[tuple[list[int], list[int]]]:
    r = np.random.default_rng(seed)
    return [
        (r.integers(0, VOCAB, r.integers(0, 6)).tolist(), r.integers(0, VOCAB, r.integers(0, 7)).tolist())
        for _ in range(40)
    ]


def model_one(data) -> dict[tuple[int, int], float]:
    """Brown et al. 1993, section 4.1, in loops: t(target | source)."""
    data = [(sorted(set(s)), t) for s, t in data if s and t]
    given = {(s, t): 1.0 for source, target in data for s in source for t in target}
    for _ in range(ROUNDS):
        count: dict[tuple[int, int], float] = defaultdict(float)
        for source, target in data:
            for t in target:
                total = sum(given[s, t] for s in source)
                for s in source:
                    count[s, t] += given[s, t] / total
        sums: dict[int, float] = defaultdict(float)
        for (s, _), c in count.items():
            sums[s] += c
        given = {(s, t): c / sums[s] for (s, t), c in count.items()}
    return given


@pytest.mark.parametrize("seed", range(3))
def test_a_shortlist_holds_the_likeliest_targets_of_model_one(seed):
    data, given = pairs(seed), model_one(pairs(seed))
    learnt = Shortlist.learn(data, VOCAB, per_piece=4, frequent=3, always=[EOS])
    for source in range(VOCAB):
        found = learnt.targets[learnt.starts[source] : learnt.starts[source + 1]].tolist()
        mine = {t: p for (s, t), p in given.items() if s == source}
        assert len(found) == min(4, len(mine)) and len(set(found)) == len(found)
        if found:
            least = min(mine[t] for t in found)
            assert all(p <= least + 1e-12 for t, p in mine.items() if t not in found)
    seen = defaultdict(int)
    for source, target in data:
        for t in target if source else ():
            seen[t] += 1
    assert set(learnt.always.tolist()) - {EOS} <= {t for t in seen if seen[t] >= sorted(seen.values())[-3]}
    ids = learnt.of([5, 5, 9], besides=[28])
    assert ids == sorted(set(ids)) and {5, 9, 28, EOS, *learnt.always.tolist()} <= set(ids)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("seed", range(4))
def test_a_search_with_a_shortlist_is_one_over_its_pieces_alone(seed, precision, tmp_path):
    config = drawn(seed, embed=dict(vocab_size=VOCAB), target_embed=None)
    module = module_of(config, seed)
    native = opened(module, config, tmp_path, precision, threads=2)
    r = np.random.default_rng(seed)
    sources = [r.integers(3, VOCAB, n).tolist() for n in (4, 1, 7, 5)]
    lists = [sorted({EOS, *r.integers(3, VOCAB, n).tolist()}) for n in (9, 25, 1, 12)]
    lists[1] = []  # the whole vocabulary, beside the others
    options = dict(limits=[6] * 4, bos_id=BOS, eos_id=EOS, banned_ids=[BOS, lists[0][-1]], beam_size=3, n_best=3)
    found = native.search(sources, shortlists=lists, **options)
    assert found == [
        native.search([s], shortlists=[each], **options | dict(limits=[6]))[0]
        for s, each in zip(sources, lists, strict=True)
    ]
    for source, allowed, of_one in zip(sources, lists, found, strict=True):
        allowed = allowed or list(range(VOCAB))
        for one in of_one:
            ids = [*one.ids, *[EOS] * one.finished]
            assert set(ids) <= set(allowed) - {BOS, lists[0][-1]}
            state = native.start([source])
            told_TV = state.step(np.array([[BOS, *ids[:-1]]]), last_only=False)[0].astype(np.float64)
            among = [math.log(np.exp(row - row[ids[t]])[allowed].sum()) for t, row in enumerate(told_TV)]
            assert one.token_logprobs == pytest.approx([-each for each in among], abs=2e-4)


def test_a_shortlist_that_is_none_or_of_another_vocabulary_is_refused(tmp_path):
    file = tmp_path / "list"
    Shortlist.learn(pairs(0), VOCAB).save(file)
    again = Shortlist.load(file, VOCAB)
    assert again.of([4, 5]) == Shortlist.learn(pairs(0), VOCAB).of([4, 5])
    with pytest.raises(UserError, match="made for 30 pieces, and the model has 31"):
        Shortlist.load(file, VOCAB + 1)
    file.write_bytes(b"nothing")
    with pytest.raises(UserError, match="--shortlist .*: no shortlist"):
        Shortlist.load(file, VOCAB)
    with pytest.raises(UserError, match="there are none"):
        Shortlist.learn([([], [1])], VOCAB)

"""Laws of greedy and beam search, on a toy model whose next token depends on the source and the whole prefix."""

import functools
import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import UserError
from glassformer.generate import Hypothesis, SearchConfig, search

PAD, BOS, EOS = 0, 1, 2
BANNED = (PAD, BOS)


@functools.cache
def table_logits(seed: int, vocab: int, source: tuple[int, ...], prefix: tuple[int, ...]) -> tuple[float, ...]:
    rng = random.Random(repr((seed, source, prefix)))
    return tuple(rng.gauss(0.0, 1.5) for _ in range(vocab))


class TableState:
    def __init__(self, sources: list[tuple[int, ...]]) -> None:
        self.rows = [(source, ()) for source in sources]
        self.length = 0

    def select(self, index_N: torch.Tensor) -> None:
        self.rows = [self.rows[i] for i in index_N.tolist()]


class TableModel:
    """A `Decodable` that looks up every distribution by its source and prefix."""

    def __init__(self, seed: int, vocab: int) -> None:
        self.seed, self.vocab = seed, vocab
        self.batch_sizes: list[int] = []

    def start(self, source_BS, source_mask_BS=None):
        mask_BS = torch.ones_like(source_BS, dtype=torch.bool) if source_mask_BS is None else source_mask_BS
        return TableState([tuple(row[keep].tolist()) for row, keep in zip(source_BS, mask_BS, strict=True)])

    def step(self, tokens_BT, state):
        assert tokens_BT.shape[0] == len(state.rows)
        state.rows = [(s, p + tuple(new)) for (s, p), new in zip(state.rows, tokens_BT.tolist(), strict=True)]
        state.length += tokens_BT.shape[1]
        self.batch_sizes.append(len(state.rows))
        return torch.tensor([table_logits(self.seed, self.vocab, s, p) for s, p in state.rows])

    def logprobs(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> list[float]:
        logits = table_logits(self.seed, self.vocab, source, (BOS, *prefix))
        normaliser = math.log(math.fsum(math.exp(x) for x in logits))
        return [x - normaliser for x in logits]


def batch(sources: list[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, sources))
    ids = torch.tensor([s + (PAD,) * (width - len(s)) for s in sources])
    return ids, ids != PAD


def run(model: TableModel, sources: list[tuple[int, ...]], **config) -> list[list[Hypothesis]]:
    return search(model, *batch(sources), SearchConfig(**config), bos_id=BOS, eos_id=EOS, banned_ids=BANNED)


def score(logprobs: list[float], alpha: float) -> float:
    return sum(logprobs) / ((5 + len(logprobs)) / 6) ** alpha


def exhaustive(model: TableModel, source: tuple[int, ...], limit: int, alpha: float) -> list[tuple]:
    """Every target of up to `limit` tokens as (score, ids, finished), best first."""
    words = [t for t in range(model.vocab) if t not in (*BANNED, EOS)]
    found = []
    for length in range(limit + 1):
        for ids in itertools.product(words, repeat=length):
            logprobs = [model.logprobs(source, ids[:i])[ids[i]] for i in range(length)]
            if length < limit:
                found.append((score([*logprobs, model.logprobs(source, ids)[EOS]], alpha), ids, True))
            else:
                found.append((score(logprobs, alpha), ids, False))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
@pytest.mark.parametrize("seed", range(8))
def test_wide_beam_is_exhaustive_search(seed, alpha):
    model = TableModel(seed, vocab=5)
    source = (3, 4, 3)
    expected = exhaustive(model, source, limit=4, alpha=alpha)
    (found,) = run(model, [source], beam_size=len(expected), n_best=7, length_penalty=alpha, max_new_tokens=4)
    assert [(h.ids, h.finished) for h in found] == [(ids, finished) for _, ids, finished in expected[:7]]
    assert [h.score for h in found] == pytest.approx([s for s, _, _ in expected[:7]], abs=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_beam_of_one_is_the_greedy_loop(seed):
    model = TableModel(seed, vocab=12)
    source = (3, 5, 4)
    ids: list[int] = []
    for _ in range(2 * len(source) + 10):
        logprobs = model.logprobs(source, tuple(ids))
        token = max((t for t in range(model.vocab) if t not in BANNED), key=logprobs.__getitem__)
        if token == EOS:
            break
        ids.append(token)
    ((found,),) = run(model, [source], beam_size=1)
    assert list(found.ids) == ids
    assert found.finished == (len(ids) < 2 * len(source) + 10)


ragged = st.lists(st.lists(st.integers(3, 8), min_size=1, max_size=5).map(tuple), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None)
@given(sources=ragged, seed=st.integers(0, 99), beam=st.integers(1, 5), alpha=st.sampled_from([0.0, 1.0]))
def test_batch_mates_and_order_change_nothing(sources, seed, beam, alpha):
    model = TableModel(seed, vocab=9)
    config = {"beam_size": beam, "n_best": beam, "length_penalty": alpha}
    together = run(model, sources, **config)
    assert together == [run(model, [source], **config)[0] for source in sources]
    assert together[::-1] == run(model, sources[::-1], **config)


@settings(max_examples=40, deadline=None)
@given(source=st.lists(st.integers(3, 8), min_size=1, max_size=4).map(tuple), seed=st.integers(0, 999))
def test_n_best_is_distinct_sorted_scored_and_free_of_banned_tokens(source, seed):
    model, alpha, beam = TableModel(seed, vocab=7), 0.8, 5
    (found,) = run(model, [source], beam_size=beam, n_best=beam, length_penalty=alpha)
    assert len(found) == beam
    assert len({h.ids for h in found}) == beam
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    for h in found:
        assert not set(h.ids) & {*BANNED, EOS}
        forced = [*h.ids, EOS] if h.finished else list(h.ids)
        teacher = [model.logprobs(source, h.ids[:i])[token] for i, token in enumerate(forced)]
        assert list(h.token_logprobs) == pytest.approx(teacher, abs=1e-5)
        assert h.score == pytest.approx(score(teacher, alpha), abs=1e-5)
    for n_best in range(1, beam):
        assert run(model, [source], beam_size=beam, n_best=n_best, length_penalty=alpha) == [found[:n_best]]


class ScriptModel(TableModel):
    """Gives each prefix the probabilities written down for it, and `</s>` everything elsewhere."""

    def __init__(self, script: dict[tuple[int, ...], dict[int, float]], vocab: int = 6) -> None:
        super().__init__(0, vocab)
        self.script = script

    def step(self, tokens_BT, state):
        super().step(tokens_BT, state)
        logits = torch.full((len(state.rows), self.vocab), -math.inf)
        for row, (_, prefix) in enumerate(state.rows):
            for token, p in self.script.get(prefix[1:], {EOS: 1.0}).items():
                logits[row, token] = math.log(p)
        return logits


def test_search_goes_on_while_a_longer_hypothesis_can_still_win():
    certain = {(4,) * n: {4: 1.0} for n in range(1, 6)}
    model = ScriptModel({(): {EOS: 0.6, 4: 0.4}, **certain})
    ((short,),) = run(model, [(3,)], beam_size=2, length_penalty=0.0)
    assert short.ids == () and len(model.batch_sizes) == 1  # at α = 0 a sum only falls: nothing can overtake

    ((long,),) = run(model, [(3,)], beam_size=2, length_penalty=2.0)
    assert long.ids == (4,) * 6 and long.finished
    assert long.score == pytest.approx(math.log(0.4) / (12 / 6) ** 2.0)


def test_a_hypothesis_that_ends_keeps_its_slot_and_costs_no_more_rows():
    halves = {(4,) * n: {4: 0.6, 5: 0.4} for n in range(1, 4)}
    model = ScriptModel({(): {EOS: 0.6, 4: 0.4}, **halves})
    (found,) = run(model, [(3,)], beam_size=2, n_best=2, length_penalty=0.0)
    assert [h.ids for h in found] == [(), (4,) * 4]
    assert model.batch_sizes == [1] * 5


def test_a_settled_sentence_leaves_the_batch():
    model = TableModel(seed=3, vocab=9)
    sources = [(3,), (4, 5), (6, 7, 8), (5, 5, 5, 5)]
    alone = []
    for source in sources:
        model.batch_sizes.clear()
        run(model, [source], beam_size=3)
        alone.append(list(model.batch_sizes))
    model.batch_sizes.clear()
    run(model, sources, beam_size=3)
    assert len(model.batch_sizes) == max(map(len, alone))
    assert len({len(steps) for steps in alone}) > 1
    for t, rows in enumerate(model.batch_sizes):
        running = [steps for steps in alone if len(steps) > t]
        assert rows <= 3 * len(running)


def test_the_length_limit_cuts_and_says_so():
    endless = ScriptModel({(4,) * n: {4: 1.0} for n in range(50)})
    for beam in (1, 4):
        ((cut,),) = run(endless, [(3, 3)], beam_size=beam, max_new_tokens=5)
        assert cut.ids == (4,) * 5 and not cut.finished and len(cut.token_logprobs) == 5
        ((default,),) = run(endless, [(3, 3)], beam_size=beam)
        assert len(default.ids) == 2 * 2 + 10
        result = search(endless, *batch([(3, 3)]), SearchConfig(beam), bos_id=BOS, eos_id=EOS, max_length=7)
        assert len(result[0][0].ids) == 7


def test_padded_vocabulary_rows_are_never_chosen_even_when_they_are_likeliest():
    model = ScriptModel({(): {5: 0.7, 4: 0.3}})
    result = search(model, *batch([(3,)]), SearchConfig(2), bos_id=BOS, eos_id=EOS, banned_ids=(PAD, BOS, 5))
    assert result[0][0].ids == (4,)
    assert result[0][0].token_logprobs[0] == pytest.approx(math.log(0.3))


def test_nan_logits_are_a_fault_not_a_translation():
    model = TableModel(0, 6)
    model.step = lambda tokens, state: torch.full((len(state.rows), 6), math.nan)
    with pytest.raises(FloatingPointError, match="position 1"):
        run(model, [(3,)])


@pytest.mark.parametrize(
    "values, flags",
    [
        ({"beam_size": 0}, ["--beam-size"]),
        ({"beam_size": 513}, ["--beam-size", "512"]),
        ({"beam_size": 2, "n_best": 3}, ["--n-best 3", "--beam-size 2"]),
        ({"n_best": 0}, ["--n-best"]),
        ({"length_penalty": math.nan}, ["--length-penalty"]),
        ({"length_penalty": -1.0}, ["--length-penalty"]),
        ({"max_new_tokens": 0}, ["--max-new-tokens"]),
    ],
)
def test_impossible_settings_name_their_flags(values, flags):
    with pytest.raises(UserError) as error:
        SearchConfig(**values)
    assert all(flag in str(error.value) for flag in flags) and "\n" not in str(error.value)


def test_an_empty_batch_gives_an_empty_list():
    assert search(TableModel(0, 6), torch.empty(0, 3).long(), None, SearchConfig(), bos_id=BOS, eos_id=EOS) == []

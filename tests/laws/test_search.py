"""Laws of greedy and beam search, on a toy model whose next token depends on the source and the whole prefix."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import UserError
from glassformer.generate import (
    Allowed,
    BannedWords,
    Hypothesis,
    NoRepeatNgram,
    RepetitionPenalty,
    SearchConfig,
    search,
)
from tests.toys import BANNED, BOS, EOS, PAD, ScriptModel, TableModel, batch, request, score, teacher_forced


def run(model: TableModel, sources: list[tuple[int, ...]], processors=(), **config) -> list[list[Hypothesis]]:
    settings_ = SearchConfig(**config)
    return search(model, *batch(sources), settings_, request(processors=processors))


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


def no_bigram_twice(ids: tuple[int, ...]) -> bool:
    pairs = list(itertools.pairwise(ids))
    return len(set(pairs)) == len(pairs)


def without_three_four(ids: tuple[int, ...]) -> bool:
    return (3, 4) not in itertools.pairwise(ids)


def even_then_odd(ids: tuple[int, ...]) -> set[int] | None:
    return None if not ids else {EOS, 3} if ids[-1] % 2 == 0 else {4}


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "processor, lawful",
    [
        (NoRepeatNgram(2), no_bigram_twice),
        (BannedWords(((3, 4),)), without_three_four),
        (Allowed(even_then_odd), lambda ids: all(b in even_then_odd(ids[: i + 1]) for i, b in enumerate(ids[1:]))),
    ],
)
def test_wide_beam_with_a_processor_is_exhaustive_search_of_what_it_allows(seed, alpha, processor, lawful):
    model, source = TableModel(seed, vocab=5), (3, 4, 3)
    expected = [
        (s, ids, finished)
        for s, ids, finished in exhaustive(model, source, limit=4, alpha=alpha)
        if lawful(ids) and not (isinstance(processor, Allowed) and finished and ids and ids[-1] % 2)
    ]
    (found,) = run(model, [source], (processor,), beam_size=200, n_best=7, length_penalty=alpha, max_new_tokens=4)
    assert [(h.ids, h.finished) for h in found] == [(ids, finished) for _, ids, finished in expected[:7]]
    assert [h.score for h in found] == pytest.approx([s for s, _, _ in expected[:7]], abs=1e-5)


@settings(max_examples=15)
@given(seed=st.integers(0, 99), beam=st.integers(1, 4), source=st.lists(st.integers(3, 6), min_size=1).map(tuple))
def test_a_penalty_steers_but_the_printed_scores_stay_those_of_the_model(seed, beam, source):
    model = TableModel(seed, vocab=7)
    config = {"beam_size": beam, "n_best": beam, "length_penalty": 0.7, "max_new_tokens": 6}
    (found,) = run(model, [source], (RepetitionPenalty(5.0),), **config)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    for h in found:
        assert h.score == pytest.approx(score(teacher_forced(model, source, h.ids, h.finished), 0.7), abs=1e-5)
    many = [run(model, [source], (RepetitionPenalty(r),), beam_size=1, max_new_tokens=12)[0][0] for r in (1.0, 1e9)]
    assert many[0] == run(model, [source], beam_size=1, max_new_tokens=12)[0][0]
    seen_at = [i for i, token in enumerate(many[1].ids) if token in many[1].ids[:i]]
    for i in seen_at:  # only where every new token's logit is negative may an old one be written again
        logits = model.row_logits(source, (BOS, *many[1].ids[:i]))
        new = [x for t, x in enumerate(logits) if t not in (*BANNED, *many[1].ids[:i])]
        assert max(new, default=-math.inf) <= 1e-6


def test_where_nothing_is_allowed_any_more_the_target_ends_unfinished():
    model = TableModel(0, vocab=7)
    only = Allowed(lambda ids: {5} if len(ids) < 2 else set())
    for beam in (1, 3):
        ((stuck,),) = run(model, [(3,)], (only,), beam_size=beam)
        assert stuck.ids == (5, 5) and not stuck.finished and len(stuck.token_logprobs) == 2
        ((empty,),) = run(model, [(3,)], (Allowed(lambda ids: ()),), beam_size=beam)
        assert empty == Hypothesis((), 0.0, (), False)


def diverse_oracle(model, source, limit, groups, width, diversity) -> list[tuple[float, tuple[int, ...]]]:
    """Algorithm 1 of Vijayakumar et al. 2018 in plain loops, α = 0."""
    beams = [[(0.0, ())] for _ in range(groups)]
    done: list[list[tuple[float, tuple[int, ...]]]] = [[] for _ in range(groups)]
    for length in range(1, limit + 1):
        times = [0] * model.vocab
        for g in range(groups):
            options = []
            for total, ids in beams[g]:
                for token, logprob in enumerate(model.logprobs(source, ids)):
                    if token not in BANNED:
                        options.append((total + logprob - diversity * times[token], total + logprob, (*ids, token)))
            options.sort(reverse=True)
            beams[g], kept = [], options[: width - len(done[g])]
            for _, total, ids in kept:
                (done[g] if ids[-1] == EOS or length == limit else beams[g]).append((total, ids))
            for _, _, ids in kept:
                times[ids[-1]] += 1
    return sorted({pair for group in done for pair in group}, reverse=True)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 99), groups=st.integers(1, 3), width=st.integers(1, 2), diversity=st.sampled_from([0.0, 2.0])
)
def test_diverse_beam_is_the_papers_algorithm_and_knows_no_batch_mates(seed, groups, width, diversity):
    model, sources = TableModel(seed, vocab=7), [(3, 4), (5,), (3, 3, 3)]
    beam = groups * width
    config = dict(beam_size=beam, n_best=beam, length_penalty=0.0, max_new_tokens=4, groups=groups, diversity=diversity)
    if groups == 1:
        config |= dict(n_best=1)
    together = run(model, sources, **config)
    for source, found in zip(sources, together, strict=True):
        expected = diverse_oracle(model, source, 4, groups, width, diversity)[: config["n_best"]]
        assert [h.score for h in found] == pytest.approx([total for total, _ in expected], abs=1e-5)
        assert [h.ids for h in found] == [tuple(t for t in ids if t != EOS) for _, ids in expected]
        assert run(model, [source], **config) == [found]
    narrow = run(model, sources, **config | dict(n_best=1))
    assert narrow == [found[:1] for found in together], "the top result depends on n-best"


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
        teacher = teacher_forced(model, source, h.ids, h.finished)
        assert list(h.token_logprobs) == pytest.approx(teacher, abs=1e-5)
        assert h.score == pytest.approx(score(teacher, alpha), abs=1e-5)
    for n_best in range(1, beam):
        assert run(model, [source], beam_size=beam, n_best=n_best, length_penalty=alpha) == [found[:n_best]]


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
        result = search(endless, *batch([(3, 3)]), SearchConfig(beam), request(banned_ids=(), max_length=7))
        assert len(result[0][0].ids) == 7


def test_padded_vocabulary_rows_are_never_chosen_even_when_they_are_likeliest():
    model = ScriptModel({(): {5: 0.7, 4: 0.3}})
    result = search(model, *batch([(3,)]), SearchConfig(2), request(banned_ids=(PAD, BOS, 5)))
    assert result[0][0].ids == (4,)
    assert result[0][0].token_logprobs[0] == pytest.approx(math.log(0.3))


def test_nan_logits_are_a_fault_not_a_translation():
    model = TableModel(0, 6)
    model.step = lambda tokens, state, last_only=True: torch.full((len(state.rows), 6), math.nan)
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
        ({"beam_size": 100_000}, ["--beam-size 100000", "512"]),
        ({"beam_size": 4, "groups": 3}, ["--beam-groups 3", "--beam-size 4"]),
        ({"groups": 0}, ["--beam-groups 0"]),
        ({"beam_size": 4, "groups": 2, "diversity": -1.0}, ["--diversity -1.0"]),
    ],
)
def test_impossible_settings_name_their_flags(values, flags):
    with pytest.raises(UserError) as error:
        SearchConfig(**values)
    assert all(flag in str(error.value) for flag in flags) and "\n" not in str(error.value)


def test_an_empty_batch_gives_an_empty_list():
    assert search(TableModel(0, 6), torch.empty(0, 3).long(), None, SearchConfig(), request()) == []

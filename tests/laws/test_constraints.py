"""Laws of forced prefixes and phrases, against enumeration of every target."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import UserError
from glassformer.generate import (
    BannedWords,
    Constraints,
    NoRepeatNgram,
    SamplingConfig,
    SearchConfig,
    generate,
    search,
)
from glassformer.generate.constraints import Phrases, allocate, limits
from tests.toys import BANNED, EOS, ScriptModel, TableModel, batch, request, score, teacher_forced

words = st.integers(3, 5)
phrase = st.lists(words, min_size=1, max_size=3).map(tuple)


def run(model, sources, constraints, processors=(), max_length=None, **config):
    return search(
        model,
        *batch(sources),
        SearchConfig(**config),
        request(max_length=max_length, processors=processors, constraints=constraints),
    )


def holds(ids, constraint):
    found = all(any(ids[i : i + len(p)] == p for i in range(len(ids))) for p in constraint.phrases)
    return found and ids[: len(constraint.prefix)] == constraint.prefix


def fewest(begun, phrases, vocab=(3, 4, 5, 6)):
    """The length of the shortest continuation that completes all phrases, by breadth."""
    for n in range(12):
        for more in itertools.product(vocab, repeat=n):
            if holds((*begun, *more), Constraints(phrases=phrases)):
                return n
    raise AssertionError


@settings(max_examples=60)
@given(phrases=st.lists(phrase, max_size=3).map(tuple), begun=st.lists(words, max_size=4).map(tuple))
def test_the_cost_of_missing_phrases_is_that_of_the_shortest_completion(phrases, begun):
    if sum(map(len, phrases)) > 6:
        phrases = phrases[:2]
    automaton = Phrases(phrases)
    progress = automaton.start(begun)
    cost = automaton.cost(progress)
    assert cost == fewest(begun, phrases)
    if cost:
        nexts = [automaton.cost(automaton.advance(progress, token)) for token in automaton.useful(progress)]
        assert min(nexts) == cost - 1
        assert all(
            automaton.cost(automaton.advance(progress, t)) >= cost
            for t in range(3, 7)
            if t not in automaton.useful(progress)
        )


def test_many_phrases_are_bounded_and_still_come_to_an_end():
    phrases = tuple((3 + i, 4 + i, 20) for i in range(12))
    automaton = Phrases(phrases)
    progress, steps = automaton.start(), 0
    while automaton.cost(progress):
        before = automaton.cost(progress)
        progress = min((automaton.advance(progress, t) for t in automaton.useful(progress)), key=automaton.cost)
        assert automaton.cost(progress) < before
        steps += 1
    assert steps <= 36


def test_slots_are_shared_out_over_the_banks_and_none_is_left_empty():
    scores = [-1.0, -2.0, -3.0, -9.0, -math.inf, -8.0]
    costs = [2, 2, 2, 0, 0, 1]
    assert allocate(scores, costs, 3) == [3, 5, 0]
    assert allocate(scores, costs, 5) == [3, 5, 0, 1, 2]
    assert allocate(scores, costs, 99) == [3, 5, 0, 1, 2]


def exhaustive(model, source, limit, alpha, constraint):
    found = []
    for length in range(limit + 1):
        for ids in itertools.product([t for t in range(model.vocab) if t not in (*BANNED, EOS)], repeat=length):
            if holds(ids, constraint):
                finished = length < limit
                found.append((score(teacher_forced(model, source, ids, finished), alpha), ids, finished))
    return sorted(found, reverse=True)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 99),
    alpha=st.sampled_from([0.0, 1.0]),
    prefix=st.lists(words, max_size=2).map(tuple),
    phrases=st.lists(st.lists(words, min_size=1, max_size=2).map(tuple), max_size=2).map(tuple),
)
def test_wide_constrained_beam_is_exhaustive_search_of_what_holds_them(seed, alpha, prefix, phrases):
    model, source, constraint = TableModel(seed, vocab=6), (3, 4), Constraints(prefix, phrases)
    expected = exhaustive(model, source, 4, alpha, constraint)
    config = dict(beam_size=300, n_best=5, length_penalty=alpha, max_new_tokens=4 - len(prefix))
    if not expected:
        with pytest.raises(UserError, match="sentence 1.*--max-new-tokens"):
            run(model, [source], [constraint], **config)
        return
    (found,) = run(model, [source], [constraint], **config)
    assert [(h.ids, h.finished) for h in found] == [(ids, finished) for _, ids, finished in expected[:5]]
    assert [h.score for h in found] == pytest.approx([s for s, _, _ in expected[:5]], abs=1e-5)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 99),
    beam=st.integers(1, 4),
    phrases=st.lists(phrase, min_size=1, max_size=4).map(tuple),
    spare=st.integers(0, 3),
    prefix=st.lists(words, max_size=3).map(tuple),
)
def test_whatever_fits_under_the_limit_is_written_at_any_width(seed, beam, phrases, spare, prefix):
    model, constraint = TableModel(seed, vocab=7), Constraints(prefix, phrases)
    automaton = Phrases(phrases)
    needed = automaton.cost(automaton.start(prefix))
    for processors in ((), (NoRepeatNgram(1), BannedWords(((3,), (4, 5))))):
        (found,) = run(
            model,
            [(3, 4)],
            [constraint],
            processors,
            beam_size=beam,
            n_best=beam,
            max_new_tokens=max(1, needed + spare),
        )
        assert found and all(holds(h.ids, constraint) for h in found)
        for h in found:
            assert list(h.token_logprobs) == pytest.approx(teacher_forced(model, (3, 4), h.ids, h.finished), abs=1e-5)


def test_the_default_limit_makes_room_for_the_phrases():
    long = tuple(3 + i % 4 for i in range(30))
    ((found,),) = run(TableModel(0, vocab=8), [(3,)], [Constraints(phrases=(long,))], beam_size=2)
    assert long == found.ids[: len(long)] or holds(found.ids, Constraints(phrases=(long,)))
    assert limits([1, 20], [Constraints(phrases=(long,))] * 2, None, None) == [31, 50], "and for </s>"


def test_a_constrained_beam_waits_for_a_good_place_rather_than_writing_the_phrase_at_once():
    for seed in range(30):
        model = TableModel(seed, vocab=7)
        ((wide,),) = run(model, [(3,)], [Constraints(phrases=((5, 6),))], beam_size=12, max_new_tokens=6)
        ((narrow,),) = run(model, [(3,)], [Constraints(phrases=((5, 6),))], beam_size=1, max_new_tokens=6)
        assert narrow.ids[:2] == (5, 6)
        assert wide.score >= narrow.score - 1e-9
        if wide.ids[:2] != (5, 6):
            return
    raise AssertionError("no seed put the phrase anywhere but first")


ragged = st.lists(
    st.tuples(
        st.lists(st.integers(3, 6), min_size=1, max_size=4).map(tuple),
        st.lists(words, max_size=4).map(tuple),
        st.lists(phrase, max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25)
@given(rows=ragged, seed=st.integers(0, 99), beam=st.integers(1, 4), groups=st.sampled_from([1, 2]))
def test_ragged_constraints_in_one_batch_equal_one_by_one_and_any_order(rows, seed, beam, groups):
    model = TableModel(seed, vocab=7)
    config = dict(beam_size=beam * groups, n_best=1, groups=groups)
    sources, constraints = [s for s, _, _ in rows], [Constraints(p, ph) for _, p, ph in rows]
    together = run(model, sources, constraints, **config)
    alone = [run(model, [s], [c], **config)[0] for s, c in zip(sources, constraints, strict=True)]
    for one, other, constraint in zip(together, alone, constraints, strict=True):
        assert [h.ids for h in one] == [h.ids for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-6)
        assert all(holds(h.ids, constraint) for h in one)
    backwards = run(model, sources[::-1], constraints[::-1], **config)
    assert [[h.ids for h in found] for found in backwards[::-1]] == [[h.ids for h in found] for found in together]


@settings(max_examples=15)
@given(seed=st.integers(0, 99), prefix=st.lists(words, max_size=4).map(tuple), temperature=st.sampled_from([0.0, 1.0]))
def test_a_prefix_counts_in_length_and_score_for_sampling_too(seed, prefix, temperature):
    model, source = TableModel(seed, vocab=7), (3, 4)
    ((found,),) = generate(
        model,
        *batch([source]),
        SamplingConfig(temperature=temperature, seed=seed, max_new_tokens=3, length_penalty=0.5),
        request(constraints=[Constraints(prefix)]),
    )
    teacher = teacher_forced(model, source, found.ids, found.finished)
    assert found.ids[: len(prefix)] == prefix and len(prefix) < len(teacher) <= len(prefix) + 3
    assert list(found.token_logprobs) == pytest.approx(teacher, abs=1e-5)
    assert found.score == pytest.approx(score(teacher, 0.5), abs=1e-5)
    if temperature == 0:
        ((searched,),) = run(model, [source], [Constraints(prefix)], max_new_tokens=3, length_penalty=0.5)
        assert searched.ids == found.ids and searched.score == pytest.approx(found.score, abs=1e-6)


def test_forced_text_wins_over_banned_ids_and_words():
    constraint = Constraints(prefix=(5, 6), phrases=((4,),))
    processors = (BannedWords(((5,), (4,), (6,))),)
    ((found,),) = search(
        TableModel(0, vocab=8),
        *batch([(3,)]),
        SearchConfig(3),
        request(banned_ids=(*BANNED, 4, 5), processors=processors, constraints=[constraint]),
    )
    assert holds(found.ids, constraint) and found.ids.count(5) == 1 and found.ids.count(6) == 1


def test_what_cannot_be_held_is_refused_with_the_limit_and_the_sentence():
    model, sources = TableModel(0, vocab=8), [(3,), (4,)]
    none = Constraints()
    refusals = [
        (Constraints(prefix=(3, 4, 5)), dict(max_length=3), "sentence 2.*prefix of 3 tokens.*limit of 3 tokens"),
        (Constraints(phrases=((3, 4, 5),)), dict(max_new_tokens=2), "sentence 2.*take 3 tokens.*--max-new-tokens 2"),
        (Constraints(prefix=(3, EOS)), {}, "sentence 2.*</s>"),
    ]
    for constraint, options, message in refusals:
        with pytest.raises(UserError, match=message) as error:
            run(model, sources, [none, constraint], **options)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="no tokens"):
        Constraints(phrases=((3,), ()))
    with pytest.raises(ValueError, match="1 constraints for 2"):
        run(model, sources, [none])
    with pytest.raises(UserError, match="--glossary.*--beam-size"):
        generate(
            model,
            torch.tensor([[3]]),
            None,
            SamplingConfig(),
            request(constraints=[Constraints(phrases=((3,),))]),
        )


def test_a_phrase_goes_into_the_sentence_rather_than_behind_its_end():
    script = {
        (): {3: 1.0},
        (3,): {4: 0.98, 5: 0.02},
        (3, 4): {EOS: 0.97, 5: 0.03},  # likelier in all, but here the model is done
        (3, 5): {EOS: 0.6, 6: 0.4},
    }
    model, constraints = ScriptModel(script, vocab=7), [Constraints(phrases=((5,),))]
    ((best,),) = run(model, [(3,)], constraints, beam_size=2, length_penalty=0.0, max_new_tokens=5)
    assert best.ids == (3, 5) and best.score == pytest.approx(math.log(0.02 * 0.6))
    # A beam with room for everything finds what is likeliest all the same.
    ((best,),) = run(model, [(3,)], constraints, beam_size=20, length_penalty=0.0, max_new_tokens=5)
    assert best.ids == (3, 4, 5)

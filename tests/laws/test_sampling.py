"""Laws of sampling: it draws from the stated distribution, and a sentence's draws are its own."""

import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import UserError
from glassformer.generate import NoRepeatNgram, RepetitionPenalty, SamplingConfig, SearchConfig, check_compatible
from glassformer.generate import generate as generate_
from glassformer.generate.sampling import Purpose, Randomness, draw
from tests.toys import BANNED, BOS, EOS, ScriptModel, TableModel, agrees, batch, request, score, teacher_forced

ragged = st.lists(st.lists(st.integers(3, 8), min_size=1, max_size=5).map(tuple), min_size=1, max_size=6)


def run(model, sources, processors=(), alpha=1.0, **config):
    return generate_(
        model,
        *batch(sources),
        SamplingConfig(length_penalty=alpha, **config),
        request(processors=processors),
    )


def softmax(logits, temperature):
    weights = [math.exp(x / temperature) for x in logits]
    return [w / sum(weights) for w in weights]


@pytest.mark.parametrize("temperature, top_k", [(1.0, None), (0.5, None), (2.0, 3)])
def test_drawn_targets_follow_the_models_distribution(temperature, top_k):
    model, draws, expected = TableModel(7, vocab=6), 0, {}
    words = [t for t in range(6) if t not in BANNED]

    def spread(ids, p):
        if ids and (ids[-1] == EOS or len(ids) == 2):
            expected[ids] = expected.get(ids, 0.0) + p
            return
        logits = model.row_logits((3, 4), (BOS, *ids))
        kept = sorted(words, key=lambda t: -logits[t])[:top_k]
        for token, q in zip(kept, softmax([logits[t] for t in kept], temperature), strict=True):
            spread((*ids, token), p * q)

    spread((), 1.0)
    counts: Counter = Counter()
    for seed in range(8):
        (found,) = run(model, [(3, 4)], samples=250, temperature=temperature, top_k=top_k, seed=seed, max_new_tokens=2)
        counts.update((*h.ids, *[EOS] * h.finished) for h in found)
        draws += len(found)
    assert agrees(counts, expected, draws)
    shifted = dict(zip(expected, [*list(expected.values())[1:], next(iter(expected.values()))], strict=True))
    assert not agrees(counts, shifted, draws), "the test could not have failed"


@settings(max_examples=25)
@given(sources=ragged, seed=st.integers(0, 99), samples=st.integers(1, 3), top_p=st.sampled_from([0.8, 1.0]))
def test_batch_mates_order_and_shrinking_change_no_draw(sources, seed, samples, top_p):
    model = TableModel(seed, vocab=9)
    config = {"seed": seed, "samples": samples, "top_p": top_p, "temperature": 1.3}
    together = run(model, sources, **config)
    alone = [run(model, [source], **config)[0] for source in sources]
    backwards = run(model, sources[::-1], **config)[::-1]
    assert [[h.ids for h in found] for found in together] == [[h.ids for h in found] for found in alone]
    assert [[h.ids for h in found] for found in together] == [[h.ids for h in found] for found in backwards]
    one_less = run(model, sources, **config | {"samples": 1})
    assert [found[0].ids for found in one_less] == [found[0].ids for found in together]


@settings(max_examples=15)
@given(sources=ragged, seed=st.integers(0, 99))
def test_temperature_0_is_the_greedy_loop_whatever_the_filters_say(sources, seed):
    model = TableModel(seed, vocab=9)
    processors = (RepetitionPenalty(1.5), NoRepeatNgram(2))
    found = run(model, sources, temperature=0.0, top_p=0.2, top_k=3)
    steered = run(model, sources, processors, temperature=0.0)
    for source, (target,), (other,) in zip(sources, found, steered, strict=True):
        ids: list[int] = []
        while len(ids) < 2 * len(source) + 10 and (not ids or ids[-1] != EOS):
            logprobs = model.logprobs(source, tuple(ids))
            ids.append(max((t for t in range(9) if t not in BANNED), key=logprobs.__getitem__))
        assert target.ids == tuple(t for t in ids if t != EOS) and target.finished == (ids[-1] == EOS)
        assert len(set(zip(other.ids, other.ids[1:], strict=False))) == max(len(other.ids) - 1, 0)


@settings(max_examples=20)
@given(seed=st.integers(0, 999), temperature=st.floats(0.3, 3.0), min_p=st.floats(0.0, 0.5))
def test_log_probabilities_are_the_models_own_whatever_the_filters_did(seed, temperature, min_p):
    model = TableModel(seed, vocab=7)
    (found,) = run(model, [(3, 4)], (), 0.6, temperature=temperature, min_p=min_p, samples=3, seed=seed)
    assert len(found) == 3
    for h in found:
        teacher = teacher_forced(model, (3, 4), h.ids, h.finished)
        assert list(h.token_logprobs) == pytest.approx(teacher, abs=1e-5)
        assert h.score == pytest.approx(score(teacher, 0.6), abs=1e-5)
        assert not set(h.ids) & {*BANNED, EOS}


def test_a_seed_repeats_and_another_or_none_differs():
    model = TableModel(1, vocab=30)
    config = {"samples": 4, "temperature": 2.0}
    first = run(model, [(3, 4, 5)], seed=5, **config)
    assert first == run(model, [(3, 4, 5)], seed=5, **config)
    assert first != run(model, [(3, 4, 5)], seed=6, **config)
    assert run(model, [(3, 4, 5)], **config) != run(model, [(3, 4, 5)], **config)
    assert len({h.ids for h in first[0]}) > 1


def test_random_numbers_are_uniform_and_those_of_two_sentences_unrelated():
    def numbers(seed, source, prefix, sample, purpose=Purpose.DRAW):
        stream = Randomness(seed, source, prefix, sample)
        return [stream.uniform(i, purpose) for i in range(2000)]

    base = numbers(1, [3, 4], [], 0)
    assert base == numbers(1, [3, 4], [], 0) and all(0 <= u < 1 for u in base)
    assert agrees(Counter(int(u * 10) for u in base), dict.fromkeys(range(10), 0.1), 2000)
    others = [
        (2, [3, 4], [], 0),
        (1, [34], [], 0),
        (1, [3], [4], 0),
        (1, [3, 4], [], 1),
        (1, [3, 4], [], 0, Purpose.ACCEPT),
    ]
    for other in others:
        values = numbers(*other)
        correlation = sum((a - 0.5) * (b - 0.5) for a, b in zip(base, values, strict=True)) / 2000 * 12
        assert abs(correlation) < 0.1


@settings(max_examples=40)
@given(seed=st.integers(0, 9999), size=st.integers(1, 40), zeros=st.floats(0, 1))
def test_a_draw_never_has_probability_zero(seed, size, zeros):
    rng = random.Random(seed)
    weights = [0.0 if rng.random() < zeros else rng.random() * 10 ** rng.randint(-300, 3) for _ in range(size)]
    weights[rng.randrange(size)] = 1e-5
    probs = torch.tensor([weights] * 4, dtype=torch.float64)
    for token in draw(probs, [0.0, rng.random(), 0.5, 1 - 2.0**-52]).tolist():
        assert weights[token] > 0


def test_targets_that_end_leave_the_batch():
    model = ScriptModel({(): {4: 1.0}, (4,): {4: 0.5, EOS: 0.5}})
    (found,) = run(model, [(3,)], samples=200, seed=0)
    ended = sum(len(h.ids) == 1 for h in found)
    assert 50 < ended < 150 and model.batch_sizes == [1, 200, 200 - ended]


@pytest.mark.parametrize(
    "values, parts",
    [
        ({"temperature": -0.1}, ["--temperature -0.1", "from 1e-6 to 1e6"]),
        ({"temperature": 1e-300}, ["--temperature 1e-300", "must be 0, which is greedy"]),
        ({"temperature": math.nan}, ["--temperature nan"]),
        ({"temperature": math.inf}, ["--temperature inf"]),
        ({"top_k": 0}, ["--top-k 0"]),
        ({"top_p": 0.0}, ["--top-p 0.0"]),
        ({"top_p": 1.5, "temperature": 0.0}, ["--top-p 1.5", "at most 1"]),
        ({"min_p": 1.5}, ["--min-p 1.5", "from 0 to 1"]),
        ({"typical_p": -1.0}, ["--typical-p -1.0"]),
        ({"samples": 0}, ["--samples 0", "512"]),
        ({"samples": 3, "temperature": 0.0}, ["--samples 3", "--temperature 0", "--beam-size 3"]),
        ({"max_new_tokens": 0}, ["--max-new-tokens 0"]),
    ],
)
def test_values_out_of_range_name_the_flag_the_value_and_the_limit(values, parts):
    with pytest.raises(UserError) as error:
        SamplingConfig(**values)
    assert all(part in str(error.value) for part in parts) and "\n" not in str(error.value)


def test_sampling_and_a_beam_exclude_each_other():
    check_compatible(SearchConfig(1), SamplingConfig(temperature=0.7))
    check_compatible(SearchConfig(4), SamplingConfig(temperature=0.0))
    with pytest.raises(UserError, match="--beam-size 4 .*--temperature 0.7"):
        check_compatible(SearchConfig(4), SamplingConfig(temperature=0.7))


def test_nan_logits_are_a_fault_not_a_target():
    model = TableModel(0, 6)
    model.step = lambda tokens, state, last_only=True: torch.full((len(state.rows), 6), math.nan)
    with pytest.raises(FloatingPointError, match="position 1"):
        run(model, [(3,)])

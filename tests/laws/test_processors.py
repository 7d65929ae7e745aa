"""Laws of processors: each against its definition in plain loops, on random logits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import UserError
from glassformer.generate import (
    Allowed,
    BannedWords,
    MinP,
    NoRepeatNgram,
    RepetitionPenalty,
    SamplingConfig,
    Temperature,
    TopK,
    TopP,
    Typical,
)
from glassformer.generate.sampling import distribution

NO = -math.inf
VOCAB = 9


def softmax(logits):
    most = max(logits)
    weights = [math.exp(x - most) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def keep(logits, kept):
    return [x if token in kept else NO for token, x in enumerate(logits)]


def reach(order, probs, p):
    kept, mass = [], 0.0
    for token in order:
        kept.append(token)
        mass += probs[token]
        if mass >= p:
            break
    return kept


def temperature(ids, logits, t):
    return [(x - max(logits)) / t for x in logits]


def top_k(ids, logits, k):
    return keep(logits, sorted(range(VOCAB), key=lambda t: -logits[t])[:k])


def top_p(ids, logits, p):
    probs = softmax(logits)
    return keep(logits, reach(sorted(range(VOCAB), key=lambda t: -probs[t]), probs, p))


def min_p(ids, logits, p):
    probs = softmax(logits)
    return keep(logits, [t for t in range(VOCAB) if probs[t] >= p * max(probs)])


def typical(ids, logits, p):
    probs = softmax(logits)
    entropy = -math.fsum(q * math.log(q) for q in probs if q > 0)
    strange = [abs(-math.log(q) - entropy) if q > 0 else math.inf for q in probs]
    return keep(logits, reach(sorted(range(VOCAB), key=lambda t: strange[t]), probs, p))


def repetition(ids, logits, penalty):
    return [(x / penalty if x > 0 else x * penalty) if t in ids else x for t, x in enumerate(logits)]


def no_repeat(ids, logits, n):
    written = {tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)}
    start = ids[len(ids) - n + 1 :] if n > 1 else []
    return [NO if len(start) == n - 1 and (*start, t) in written else x for t, x in enumerate(logits)]


def banned(ids, logits, words):
    return [NO if any(tuple([*ids, t][-len(w) :]) == w for w in words) else x for t, x in enumerate(logits)]


PAIRS = {
    "temperature": (Temperature, temperature, st.floats(0.05, 5.0)),
    "top-k": (TopK, top_k, st.integers(1, VOCAB + 3)),
    "top-p": (TopP, top_p, st.floats(0.01, 1.0)),
    "min-p": (MinP, min_p, st.floats(0.0, 0.999)),
    "typical": (Typical, typical, st.floats(0.01, 1.0)),
    "repetition": (RepetitionPenalty, repetition, st.floats(0.2, 5.0)),
    "no-repeat": (NoRepeatNgram, no_repeat, st.integers(1, 4)),
    "banned": (
        BannedWords,
        banned,
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=5).map(tuple),
    ),
}


def random_rows(seed, rows, length, blocked):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, VOCAB, generator=generator).double() * 2
    logits[torch.rand(rows, VOCAB, generator=generator) < blocked] = NO
    logits[:, 0] = torch.rand(rows, generator=generator).double()  # at least one token is possible
    return torch.randint(0, 4, (rows, length), generator=generator), logits


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=40)
@given(data=st.data(), seed=st.integers(0, 10**6), length=st.integers(0, 9), blocked=st.sampled_from([0.0, 0.4]))
def test_each_processor_is_its_definition_row_by_row(name, data, seed, length, blocked):
    kind, oracle, values = PAIRS[name]
    value = data.draw(values)
    ids, logits = random_rows(seed, 4, length, blocked)
    before = logits.clone()
    result = kind(value)(ids, logits)
    assert torch.equal(logits, before), "a processor leaves its input alone"
    expected = [oracle(i, x, value) for i, x in zip(ids.tolist(), logits.tolist(), strict=True)]
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64))
    for row in range(4):
        assert torch.equal(kind(value)(ids[row : row + 1], logits[row : row + 1])[0], result[row])


@settings(max_examples=60)
@given(st.floats(0.3, 3.0), st.integers(2, 8), *[st.floats(0.3, 0.95)] * 3, st.integers(0, 999))
def test_filters_apply_in_their_documented_order(tau, k, top, least, usual, seed):
    """Temperature, top-k, top-p, min-p, typical: each sees what the one before it left."""
    config = SamplingConfig(temperature=tau, top_k=k, top_p=top, min_p=least / 5, typical_p=usual)
    ids_NT, logits_NV = random_rows(seed, rows=3, length=2, blocked=0.1)
    found_NV = distribution(logits_NV, ids_NT, config.warpers)
    for ids, logits, found in zip(ids_NT.tolist(), logits_NV.tolist(), found_NV.tolist(), strict=True):
        for define, value in ((temperature, tau), (top_k, k), (top_p, top), (min_p, least / 5), (typical, usual)):
            logits = define(ids, logits, value)
        assert found == pytest.approx(softmax(logits), abs=1e-9)


@pytest.mark.parametrize("kind", [TopK, TopP, MinP, Typical])
@given(seed=st.integers(0, 999))
@settings(max_examples=10)
def test_filters_keep_at_least_one_token_and_change_no_logit_that_they_keep(kind, seed):
    ids, logits = random_rows(seed, 3, 2, 0.5)
    result = kind(1 if kind is TopK else 1e-9)(ids, logits)
    kept = result > NO
    assert kept.any(1).all()
    assert torch.equal(result[kept], logits[kept])


@pytest.mark.parametrize("kind", [Temperature, TopK, TopP, MinP, Typical, RepetitionPenalty])
def test_a_row_without_a_possible_token_stays_one(kind):
    nothing = torch.full((2, VOCAB), NO)
    result = kind(1 if kind is TopK else 0.5)(torch.zeros(2, 3).long(), nothing)
    assert torch.equal(result, nothing)


def test_neutral_values_change_nothing():
    ids, logits = random_rows(3, 4, 5, 0.3)
    for processor in (TopP(1.0), MinP(0.0), Typical(1.0), RepetitionPenalty(1.0), TopK(VOCAB), BannedWords(())):
        assert torch.equal(processor(ids, logits), logits)


def test_a_tiny_temperature_leaves_the_best_token_and_no_nan():
    logits = torch.tensor([[300.0, -200.0, 299.0]])
    assert torch.equal(Temperature(1e-30)(torch.zeros(1, 0).long(), logits).softmax(1), torch.tensor([[1.0, 0, 0]]))


def test_an_allowed_token_function_sees_each_target_and_leaves_only_what_it_names():
    seen = []

    def function(ids):
        seen.append(ids)
        return None if ids == (1, 2) else {0, 4}

    ids, logits = torch.tensor([[1, 2], [3, 3]]), torch.arange(2 * VOCAB).reshape(2, VOCAB).float()
    result = Allowed(function)(ids, logits)
    assert seen == [(1, 2), (3, 3)]
    assert torch.equal(result[0], logits[0])
    assert result[1].tolist() == keep(logits[1].tolist(), {0, 4})


@pytest.mark.parametrize(
    "kind, value, parts",
    [
        (Temperature, -1.0, ["--temperature -1.0", "above 0"]),
        (Temperature, math.nan, ["--temperature nan"]),
        (TopK, 0, ["--top-k 0", "1 or more"]),
        (TopP, 0.0, ["--top-p 0.0", "at most 1"]),
        (TopP, 1.01, ["--top-p 1.01", "at most 1"]),
        (TopP, math.nan, ["--top-p nan"]),
        (MinP, -0.1, ["--min-p -0.1", "from 0 to 1"]),
        (MinP, 1.1, ["--min-p 1.1", "from 0 to 1"]),
        (Typical, 0.0, ["--typical-p 0.0"]),
        (RepetitionPenalty, 0.0, ["--repetition-penalty 0.0"]),
        (RepetitionPenalty, math.inf, ["--repetition-penalty inf"]),
        (NoRepeatNgram, 0, ["--no-repeat-ngram 0"]),
        (BannedWords, ((1,), ()), ["--banned-words"]),
    ],
)
def test_values_out_of_range_name_the_flag_the_value_and_the_limit(kind, value, parts):
    with pytest.raises(UserError) as error:
        kind(value)
    assert all(part in str(error.value) for part in parts) and "\n" not in str(error.value)

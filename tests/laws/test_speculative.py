"""Laws of speculative decoding: whatever the draft, the tokens are distributed as the model's own."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import UserError
from glassformer.generate import (
    Constraints,
    DraftModel,
    NoRepeatNgram,
    PromptLookup,
    SamplingConfig,
    collect,
    generate,
    stream,
    stream_speculative,
)
from glassformer.generate.sampling import Randomness
from tests.randomised import random_model
from tests.toys import BANNED, BOS, EOS, TableModel, agrees, batch, request

ragged = st.lists(st.lists(st.integers(3, 8), min_size=1, max_size=5).map(tuple), min_size=1, max_size=4)


class Near(TableModel):
    """The target model, a little disturbed: a draft that is often right."""

    def row_logits(self, source, prefix):
        noise = TableModel(self.seed + 1, self.vocab).row_logits(source, prefix)
        return tuple(a + 0.5 * b for a, b in zip(super().row_logits(source, prefix), noise, strict=True))


class Cycle(TableModel):
    """Writes the source over and over: what prompt lookup hopes for."""

    def row_logits(self, source, prefix):
        wanted = source[(len(prefix) - 1) % len(source)]
        return tuple(4.0 * (token == wanted) + x for token, x in enumerate(super().row_logits(source, prefix)))


def drafts(seed, vocab):
    return [DraftModel(Near(seed, vocab)), DraftModel(TableModel(seed + 50, vocab)), PromptLookup(), PromptLookup(1)]


@settings(max_examples=25)
@given(
    sources=ragged,
    seed=st.integers(0, 99),
    lookahead=st.integers(1, 6),
    which=st.integers(0, 3),
    kind=st.sampled_from([TableModel, Cycle]),
    prefix=st.lists(st.integers(3, 8), max_size=4).map(tuple),
    new=st.sampled_from([None, 1, 3]),
)
def test_greedy_speculation_is_greedy_decoding_token_for_token(sources, seed, lookahead, which, kind, prefix, new):
    model, config = kind(seed, 9), SamplingConfig(temperature=0.0, max_new_tokens=new)
    asked = request(
        processors=(NoRepeatNgram(3),), constraints=[Constraints(prefix[: i + 1]) for i in range(len(sources))]
    )
    plain = generate(model, *batch(sources), config, asked)
    events = stream_speculative(
        model, *batch(sources), config, asked, draft=drafts(seed, 9)[which], lookahead=lookahead
    )
    found = collect(events)
    assert [[h.ids for h in f] for f in found] == [[h.ids for h in f] for f in plain]
    for one, other in zip(found, plain, strict=True):
        assert one[0].finished == other[0].finished
        assert list(one[0].token_logprobs) == pytest.approx(list(other[0].token_logprobs), abs=1e-5)


def test_a_sentences_events_are_those_of_the_stream():
    model, config = TableModel(3, 9), SamplingConfig(temperature=0.0)
    plain = list(stream(model, *batch([(3, 4)]), config, request()))
    fast = list(stream_speculative(model, *batch([(3, 4)]), config, request(), draft=PromptLookup()))
    assert [(type(e), getattr(e, "id", None), getattr(e, "reason", None)) for e in fast] == [
        (type(e), getattr(e, "id", None), getattr(e, "reason", None)) for e in plain
    ]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("top_k", [None, 3])
def test_sampled_speculation_follows_the_models_own_distribution(which, top_k):
    model, vocab, length = TableModel(5, 6), 6, 3
    expected: dict = {}

    def spread(ids, p):
        if ids and (ids[-1] == EOS or len(ids) == length):
            expected[ids] = p
            return
        logits = model.row_logits((3, 4, 3), (BOS, *ids))
        kept = sorted((t for t in range(vocab) if t not in BANNED), key=lambda t: -logits[t])[:top_k]
        weights = {t: 2.718281828459045 ** (logits[t] / 1.2) for t in kept}
        for token, weight in weights.items():
            spread((*ids, token), p * weight / sum(weights.values()))

    spread((), 1.0)
    draft = [DraftModel(Near(5, vocab)), DraftModel(TableModel(77, vocab)), PromptLookup(2)][which]
    config = SamplingConfig(temperature=1.2, top_k=top_k, samples=500, seed=11, max_new_tokens=length)
    (found,) = collect(stream_speculative(model, *batch([(3, 4, 3)]), config, request(), draft=draft, lookahead=2))
    assert agrees(Counter((*h.ids, *[EOS] * h.finished) for h in found), expected, len(found))


@settings(max_examples=10)
@given(sources=ragged, seed=st.integers(0, 99), which=st.integers(0, 3))
def test_sampled_speculation_knows_no_batch_mates(sources, seed, which):
    model, config = TableModel(seed, 9), SamplingConfig(seed=seed, samples=2)

    def run(some):
        events = stream_speculative(model, *batch(some), config, request(), draft=drafts(seed, 9)[which])
        return [[h.ids for h in found] for found in collect(events)]

    together = run(sources)
    assert together == [run([source])[0] for source in sources] == run(sources[::-1])[::-1]


def test_a_draft_forgets_what_was_refused():
    """Else its proposals would be those of another text: right in the end, but refused, and slow."""
    model, random = TableModel(4, vocab=8), Randomness(1, (3, 4), (), 0)

    def begin():
        return DraftModel(model).begin(torch.tensor([[3, 4]]), lambda ids, logits_V: logits_V.softmax(0), BOS, EOS)

    guesser = begin()
    for ids in ((), (5,), (5, 6, 3), (5, 7), (4,), (4, 4, 4, 4)):
        found, fresh = (one.propose(ids, 4, random) for one in (guesser, begin()))
        assert found.tokens == fresh.tokens and torch.equal(found.probs_TV, fresh.probs_TV)


def test_a_good_draft_saves_passes_and_a_hopeless_one_costs_no_more_of_them():
    sources, config = [(3, 4, 5, 6, 7)], SamplingConfig(temperature=0.0, max_new_tokens=20)

    def passes(model, draft):
        model.batch_sizes.clear()
        collect(stream_speculative(model, *batch(sources), config, request(), draft=draft, lookahead=4))
        return len(model.batch_sizes)

    model = TableModel(1, 9)
    model.row_logits = lambda source, prefix: tuple(float(t == 3 + len(prefix) % 5) for t in range(9))
    same = TableModel(1, 9)
    same.row_logits = model.row_logits
    assert passes(model, DraftModel(same)) == 4  # 5 tokens a pass
    assert passes(model, PromptLookup()) < 10
    wrong = TableModel(1, 9)
    wrong.row_logits = lambda source, prefix: tuple(float(t == 8) for t in range(9))
    assert passes(model, DraftModel(wrong)) == 20


@torch.no_grad()
def test_on_a_real_transformer_greedy_speculation_is_greedy_decoding():
    model, draft = random_model(seed=1, vocab_size=30), random_model(seed=2, vocab_size=30, decoder_layers=1)
    source = torch.randint(3, 30, (3, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]]).bool()
    config = SamplingConfig(temperature=0.0, max_new_tokens=25)
    plain = [[h.ids for h in f] for f in generate(model, source, mask, config, request())]
    assert max(len(ids) for (ids,) in plain) > 5
    for proposer in (DraftModel(draft), DraftModel(model), PromptLookup()):
        events = stream_speculative(model, source, mask, config, request(), draft=proposer)
        assert [[h.ids for h in f] for f in collect(events)] == plain


def test_impossible_settings_name_their_flags():
    with pytest.raises(UserError, match="--lookup-ngram 0"):
        PromptLookup(0)
    for lookahead in (0, 65):
        with pytest.raises(UserError, match=f"--lookahead {lookahead}: .*1 to 64"):
            list(
                stream_speculative(
                    TableModel(0, 6),
                    *batch([(3,)]),
                    SamplingConfig(),
                    request(),
                    draft=PromptLookup(),
                    lookahead=lookahead,
                )
            )

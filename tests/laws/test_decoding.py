"""Laws of every way of decoding together, on a real Transformer: no cache, batch mate, order or garbage is felt."""

import random

import pytest
import torch

from glassformer.generate import (
    BannedWords,
    Constraints,
    NoRepeatNgram,
    RepetitionPenalty,
    SamplingConfig,
    SearchConfig,
    generate,
    search,
)
from glassformer.nn import state as states
from tests.randomised import random_model
from tests.toys import batch, request

VOCAB = 24
PROCESSORS = (RepetitionPenalty(1.3), NoRepeatNgram(3), BannedWords(((5, 6), (7,))))


class Uncached:
    """The same model without a memory: each step reads every row's whole history anew."""

    def __init__(self, model) -> None:
        self.model = model

    def start(self, source_BS, source_mask_BS=None):
        return Histories(source_BS, source_mask_BS)

    def step(self, tokens_BT, state, *, last_only=True):
        state.target = torch.cat([state.target, tokens_BT], 1)
        state.length += tokens_BT.shape[1]
        logits = self.model(state.source, state.target, state.mask)
        return logits[:, -1] if last_only else logits[:, -tokens_BT.shape[1] :]


class Histories:
    def __init__(self, source, mask) -> None:
        self.source, self.mask = source, mask
        self.target, self.length = torch.zeros(len(source), 0).long(), 0

    def select(self, index):
        self.source, self.target = self.source[index], self.target[index]
        self.mask = None if self.mask is None else self.mask[index]


def lines(count: int) -> list[tuple[tuple[int, ...], Constraints]]:
    rng = random.Random(4)

    def some(most: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, VOCAB) for _ in range(rng.randint(0, most)))

    return [((*some(9), 3), Constraints(some(3), (some(1) or (9,),) * (i % 2))) for i in range(count)]


def ways():
    def searched(model, rows, **config):
        found = search(model, *batch([s for s, _ in rows]), SearchConfig(**config), common(rows, True))
        return [[(h.ids, h.score) for h in hypotheses] for hypotheses in found]

    def sampled(model, rows, **config):
        found = generate(model, *batch([s for s, _ in rows]), SamplingConfig(**config), common(rows, False))
        return [[(h.ids, h.score) for h in hypotheses] for hypotheses in found]

    def common(rows, phrases):
        constraints = [c if phrases else Constraints(c.prefix) for _, c in rows]
        return request(max_length=14, processors=PROCESSORS, constraints=constraints)

    return {
        "greedy": lambda model, rows: sampled(model, rows, temperature=0.0),
        "beam": lambda model, rows: searched(model, rows, beam_size=4, n_best=3),
        "diverse beam": lambda model, rows: searched(model, rows, beam_size=4, groups=2),
        "seeded sampling": lambda model, rows: sampled(model, rows, seed=3, samples=2, top_p=0.9),
    }


def same(one, other) -> None:
    assert [[ids for ids, _ in found] for found in one] == [[ids for ids, _ in found] for found in other]
    for found, again in zip(one, other, strict=True):
        assert [score for _, score in found] == pytest.approx([score for _, score in again], abs=1e-4)


@pytest.mark.parametrize("way", ways())
def test_fifty_ragged_lines_equal_one_by_one_equal_shuffled(way):
    model, rows, decode = (
        random_model(seed=1, vocab_size=VOCAB, order="pre", encoder_layers=1, decoder_layers=1),
        lines(50),
        ways()[way],
    )
    together = decode(model, rows)
    assert len({len(found[0][0]) for found in together}) > 5
    same(together, [decode(model, [row])[0] for row in rows])
    order = random.Random(1).sample(range(50), 50)
    shuffled = decode(model, [rows[i] for i in order])
    same([together[i] for i in order], shuffled)


@pytest.mark.parametrize("way", ways())
def test_cached_equals_uncached_and_garbage_in_unused_slots_is_never_read(way, monkeypatch):
    model, rows, decode = random_model(seed=6, vocab_size=VOCAB, order="pre"), lines(12), ways()[way]
    real = states._room
    monkeypatch.setattr(states, "_room", lambda like, slots: real(like, slots).fill_(float("nan")))
    same(decode(model, rows), decode(Uncached(model), rows))

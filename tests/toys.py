"""A toy model for the laws of decoding: every distribution depends on the source and the whole prefix."""

from __future__ import annotations

import functools
import math
import random
from collections import Counter

import torch

from glassformer.generate import Request

PAD, BOS, EOS = 0, 1, 2
BANNED = (PAD, BOS)
Ids = tuple[int, ...]


@functools.cache
def table_logits(seed: int, vocab: int, source: Ids, prefix: Ids) -> tuple[float, ...]:
    rng = random.Random(repr((seed, source, prefix)))
    return tuple(rng.gauss(0.0, 1.5) for _ in range(vocab))


class TableState:
    def __init__(self, sources: list[Ids]) -> None:
        self.rows: list[tuple[Ids, Ids]] = [(source, ()) for source in sources]
        self.length = 0

    def select(self, index_N: torch.Tensor) -> None:
        self.rows = [self.rows[i] for i in index_N.tolist()]

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length
        self.rows = [(source, prefix[:length]) for source, prefix in self.rows]
        self.length = length


class TableModel:
    """A `Decodable` that looks up every distribution by its source and prefix."""

    def __init__(self, seed: int, vocab: int) -> None:
        self.seed, self.vocab = seed, vocab
        self.batch_sizes: list[int] = []

    def start(self, source_BS, source_mask_BS=None):
        mask_BS = torch.ones_like(source_BS, dtype=torch.bool) if source_mask_BS is None else source_mask_BS
        return TableState([tuple(row[keep].tolist()) for row, keep in zip(source_BS, mask_BS, strict=True)])

    def row_logits(self, source: Ids, prefix: Ids) -> tuple[float, ...]:
        """Logits behind a prefix that begins with `<s>`."""
        return table_logits(self.seed, self.vocab, source, prefix)

    def step(self, tokens_BT, state, *, last_only=True):
        assert tokens_BT.shape[0] == len(state.rows)
        old = state.length
        state.rows = [(s, p + tuple(new)) for (s, p), new in zip(state.rows, tokens_BT.tolist(), strict=True)]
        state.length += tokens_BT.shape[1]
        self.batch_sizes.append(len(state.rows))
        ends = [state.length] if last_only else range(old + 1, state.length + 1)
        logits = torch.tensor([[self.row_logits(s, p[:end]) for end in ends] for s, p in state.rows])
        return logits[:, 0] if last_only else logits

    def logprobs(self, source: Ids, prefix: Ids) -> list[float]:
        """Natural log-probabilities behind a target's first tokens, `<s>` not among them."""
        logits = self.row_logits(source, (BOS, *prefix))
        normaliser = math.log(math.fsum(math.exp(x) for x in logits))
        return [x - normaliser for x in logits]


class ScriptModel(TableModel):
    """Gives each prefix the probabilities written down for it, and `</s>` everything elsewhere."""

    def __init__(self, script: dict[Ids, dict[int, float]], vocab: int = 6) -> None:
        super().__init__(0, vocab)
        self.script = script

    def row_logits(self, source, prefix):
        probs = self.script.get(prefix[1:], {EOS: 1.0})
        return tuple(math.log(probs[token]) if token in probs else -math.inf for token in range(self.vocab))


def batch(sources: list[Ids]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources as padded ids and their mask."""
    width = max(map(len, sources))
    ids = torch.tensor([s + (PAD,) * (width - len(s)) for s in sources])
    return ids, ids != PAD


def request(**options) -> Request:
    """What any decoding of these toys is asked for."""
    return Request(**{"bos_id": BOS, "eos_id": EOS, "banned_ids": BANNED, **options})


def score(logprobs: list[float], alpha: float) -> float:
    return sum(logprobs) / ((5 + len(logprobs)) / 6) ** alpha


def teacher_forced(model: TableModel, source: Ids, ids: Ids, finished: bool) -> list[float]:
    """Log-probability of each token of a target, by looking each one up."""
    return [model.logprobs(source, ids[:i])[token] for i, token in enumerate([*ids, *[EOS] * finished])]


def agrees(counts: Counter, probs: dict, draws: int) -> bool:
    """Pearson's chi-square against its 99.99 % quantile (Wilson & Hilferty 1931); rare outcomes are pooled."""
    assert set(counts) <= {outcome for outcome, p in probs.items() if p > 0}
    cells = [(counts[outcome], p * draws) for outcome, p in probs.items()]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5] + [(sum(c for c, _ in rare), sum(e for _, e in rare))] * bool(rare)
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells if expected > 0)
    k = max(len(cells) - 1, 1)
    return statistic < k * (1 - 2 / (9 * k) + 3.719 * math.sqrt(2 / (9 * k))) ** 3

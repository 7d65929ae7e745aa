"""Scores on the dev set while training."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from glassformer.data.batching import shard
from glassformer.data.collate import pad
from glassformer.data.corpus import Pair
from glassformer.errors import UserError
from glassformer.generate import Request, SearchConfig, search
from glassformer.header import Translation, unwritable_ids
from glassformer.models.seq2seq import Seq2Seq
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.distributed import World
from glassformer.train.evaluate import corpus_bleu
from glassformer.train.examples import Example, Examples, batch_of, plan
from glassformer.train.objectives import translation_loss

log = logging.getLogger(__name__)

SENTENCES = 64
"""Sentences translated at a time."""


class DevSet:
    """A dev set, shared out over the processes of a run.

    Args:
        lines: Pairs, from the first on, that are translated for BLEU; their sources are cut to ``max_len`` tokens.
        batch_tokens: Bound on a batch, as in training.
        max_len: The most tokens on a side; the loss leaves longer examples out, with a warning.

    Raises:
        UserError: When no example is short enough.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizer: Tokenizer,
        translation: Translation,
        world: World,
        *,
        lines: int,
        batch_tokens: int,
        max_len: int,
    ) -> None:
        self._tokenizer, self._translation, self._world = tokenizer, translation, world
        self._max_len = max_len
        self._examples = Examples(pairs, tokenizer, translation).plain()
        planned = plan(self._examples, batch_tokens=batch_tokens, seed=0, epoch=0, max_len=max_len)
        self._batches = planned.batches
        if planned.dropped:
            log.warning(
                "data.dev: the loss leaves out %d of %d examples longer than %d tokens a side",
                planned.dropped,
                len(self._examples),
                max_len,
            )
        if not self._batches:
            raise UserError(f"data.dev: no example fits data.max_len {max_len} and train.batch_tokens {batch_tokens}")
        self._pairs = list(pairs[:lines])
        self._scored = Examples(self._pairs, tokenizer, translation).plain() if lines else []

    @torch.no_grad()
    def loss(self, model: Seq2Seq, autocast: AbstractContextManager[object]) -> float:
        """Mean negative log-likelihood of a target token, in nats, without label smoothing."""
        device = next(model.parameters()).device
        pad_id = self._tokenizer.pad_id
        assert pad_id is not None
        total = torch.zeros(2, dtype=torch.float64)
        for index in range(self._world.rank, len(self._batches), self._world.size):
            batch = batch_of(self._examples, self._batches[index], self._tokenizer).to(device)
            with autocast:
                _, nll = translation_loss(model, batch, smoothing=0.0, pad_id=pad_id)
            total += torch.tensor([float(nll), batch.n_labels])
        self._world.sum_(total)
        return float(total[0] / total[1])

    def bleu(self, model: Seq2Seq, autocast: AbstractContextManager[object]) -> dict[str, float]:
        """BLEU of greedy translations of the first lines, ``{"bleu zh-en": …}`` for each direction."""
        if not self._scored:
            return {}
        mine = shard(list(range(len(self._scored))), self._world.rank, self._world.size)
        mine.sort(key=lambda row: len(self._scored[row].source))
        written: dict[int, str] = {}
        for start in range(0, len(mine), SENTENCES):
            rows = mine[start : start + SENTENCES]
            with autocast:
                written |= zip(rows, self._translate(model, [self._scored[row] for row in rows]), strict=True)
        everything = {row: text for part in self._world.gather(written) for row, text in part.items()}
        scores: dict[str, float] = {}
        for index, (origin, goal) in enumerate(self._translation.directions):
            references = [pair.target if goal == self._translation.target else pair.source for pair in self._pairs]
            first = index * len(self._pairs)
            hypotheses = [everything[first + row] for row in range(len(self._pairs))]
            scores[f"bleu {origin}-{goal}"] = corpus_bleu(hypotheses, references, goal)
        return scores

    def _translate(self, model: Seq2Seq, examples: list[Example]) -> list[str]:
        tokenizer, device = self._tokenizer, next(model.parameters()).device
        assert tokenizer.pad_id is not None and tokenizer.bos_id is not None and tokenizer.eos_id is not None
        # Cutting keeps the </s> at the end, as translation does.
        sources = [[*e.source[:-1][: self._max_len - 1], e.source[-1]] for e in examples]
        source_BS, source_mask_BS = pad(sources, tokenizer.pad_id)
        found = search(
            model,
            source_BS.to(device),
            None if source_mask_BS is None else source_mask_BS.to(device),
            SearchConfig(),
            Request(
                bos_id=tokenizer.bos_id,
                eos_id=tokenizer.eos_id,
                banned_ids=unwritable_ids(tokenizer, model.config.target_vocab_size),
                max_length=self._max_len,
            ),
        )
        return [tokenizer.decode(hypotheses[0].ids) for hypotheses in found]

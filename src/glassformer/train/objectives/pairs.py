"""Pairs: a source text and the target text to write for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from glassformer.config import HeadConfig, ModelConfig
from glassformer.data.batching import shard
from glassformer.data.collate import Batch, collate, pad
from glassformer.errors import UserError
from glassformer.generate import Request, SearchConfig, search
from glassformer.header import Translation, unwritable_ids
from glassformer.models.model import Model
from glassformer.store import Loaded
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.config import Seq2SeqObjective
from glassformer.train.distributed import World
from glassformer.train.evaluate import corpus_bleu
from glassformer.train.examples import Example, Examples, check_tokenizer, make_tokenizer, read_corpus, thin_reverse
from glassformer.train.objectives.objective import Objective, needs, with_head
from glassformer.train.setup import masking_of

SENTENCES = 64
"""Sentences translated at a time."""


class WritingObjective(Objective):
    """An encoder–decoder that writes targets."""

    def fitted(self, config: ModelConfig) -> ModelConfig:
        assert self.config.objective is not None
        needs(config, ["encoder-decoder"], self.config.objective.type)
        return config if isinstance(config.head, HeadConfig) else with_head(config, HeadConfig())

    def lengths(self, example: Example) -> tuple[int, int]:
        return len(example.source), len(example.target) + len(self.framing.forced) + 1

    def batch(self, examples: Sequence[Example], rows: Sequence[int]) -> Batch:
        framing = self.framing
        assert self.pad_id is not None and framing.start is not None
        return collate(
            [examples[row].source for row in rows],
            [[*framing.forced, *examples[row].target] for row in rows],
            pad_id=self.pad_id,
            bos_id=framing.start,
            eos_id=framing.ends[0],
        )


class PairObjective(WritingObjective):
    """Teacher forcing on a parallel text, scored by BLEU or by how many targets are written exactly."""

    chosen_by = ""
    smoothing = 0.1

    def read(self) -> None:
        data = self.config.data
        train, dev = read_corpus(data.train, data), read_corpus(data.dev, data) if data.dev else []
        self._pairs, self._dev_pairs = data.split(train, dev)
        self.told.append(f"{len(self._pairs):,} sentence pairs to train on, {len(self._dev_pairs):,} for dev")
        self.translation = Translation(source=data.source, target=data.target, both_directions=data.both_directions)

    def new_tokenizer(self) -> Tokenizer:
        assert self.translation is not None
        return make_tokenizer(self.config.tokenizer, self._pairs, self.translation)

    def check(self, start: Loaded) -> None:
        assert self.translation is not None
        if start.translation not in (None, self.translation):
            raise UserError(
                f"{start.path}: was trained for {start.translation}, but data says {self.translation}; "
                "set data.source, data.target and data.both_directions to the former"
            )
        check_tokenizer(start.tokenizer, self.translation, start.path, start.framing)

    def prepare(self) -> None:
        data, settings = self.config.data, self.config.train
        assert self.tokenizer is not None and self.translation is not None
        around = (self.framing.before, self.framing.after)
        masking = masking_of(data, self._pairs)
        if masking:
            self.told.append(
                f"{masking.count:,} pairs can be masked, and {data.masked_share:.0%} of them are in each epoch"
            )
        self._examples = Examples(
            self._pairs, self.tokenizer, self.translation, settings.bpe_dropout, masking, around=around
        )
        self._dev = Examples(self._dev_pairs, self.tokenizer, self.translation, around=around).plain()
        self._scored_pairs = self._dev_pairs[: settings.eval_lines]
        self._scored = Examples(self._scored_pairs, self.tokenizer, self.translation, around=around).plain()

    def sampled(self, seed: int, epoch: int, *, dropout: bool = True) -> list[Example]:
        examples = self._examples.sampled(seed, epoch, dropout=dropout)
        return thin_reverse(examples, len(self._pairs), self.config.data.reverse_share, seed, epoch)

    @property
    def dev(self) -> list[Example]:
        return self._dev

    def scores(
        self, model: Model, loss: float, world: World, autocast: AbstractContextManager[object]
    ) -> dict[str, float]:
        """BLEU, or the share written exactly, of greedy translations of the first dev lines, for each direction."""
        assert self.translation is not None and isinstance(self.config.objective, Seq2SeqObjective)
        if not self._scored:
            return {}
        mine = shard(list(range(len(self._scored))), world.rank, world.size)
        mine.sort(key=lambda row: len(self._scored[row].source))
        written: dict[int, str] = {}
        for start in range(0, len(mine), SENTENCES):
            rows = mine[start : start + SENTENCES]
            with autocast:
                written |= zip(rows, self._translate(model, [self._scored[row] for row in rows]), strict=True)
        everything = {row: text for part in world.gather(written) for row, text in part.items()}
        metric = self.config.objective.metric
        scores: dict[str, float] = {}
        for index, (origin, goal) in enumerate(self.translation.directions):
            pairs = self._scored_pairs
            references = [pair.target if goal == self.translation.target else pair.source for pair in pairs]
            first = index * len(pairs)
            hypotheses = [everything[first + row] for row in range(len(pairs))]
            right = sum(map(str.__eq__, hypotheses, references))
            score = corpus_bleu(hypotheses, references, goal) if metric == "bleu" else 100 * right / len(pairs)
            scores[f"{metric} {origin}-{goal}"] = score
        return scores

    def _translate(self, model: Any, examples: list[Example]) -> list[str]:
        tokenizer, device, framing = self.tokenizer, next(model.parameters()).device, self.framing
        assert tokenizer is not None and tokenizer.pad_id is not None
        # Cutting keeps the </s> at the end, as translation does.
        sources = [[*e.source[:-1][: self.max_len - 1], e.source[-1]] for e in examples]
        source_BS, source_mask_BS = pad(sources, tokenizer.pad_id)
        found = search(
            model,
            source_BS.to(device),
            None if source_mask_BS is None else source_mask_BS.to(device),
            SearchConfig(),
            Request(
                bos_id=framing.start,
                eos_id=framing.ends[0],
                banned_ids=unwritable_ids(tokenizer, model.config.target_vocab_size, framing.banned),
                max_length=self.max_len,
            ),
        )
        return [tokenizer.decode(hypotheses[0].ids) for hypotheses in found]

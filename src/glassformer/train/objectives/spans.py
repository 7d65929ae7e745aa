"""Answers in passages: a model learns to point to where they begin and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.config import ModelConfig, SpanConfig
from glassformer.data.collate import Labelled, pad, with_questions
from glassformer.data.questions import Question, read_questions
from glassformer.errors import UserError
from glassformer.models.model import Model
from glassformer.text.spans import best_span, encode_question
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.distributed import World
from glassformer.train.objectives.documents import text_tokenizer
from glassformer.train.objectives.labels import LabelledIds, Texts
from glassformer.train.objectives.loss import SmoothedCrossEntropy
from glassformer.train.objectives.objective import needs, with_head


class SpanObjective(Texts):
    """One answer for a question and a passage."""

    _what = "questions"
    _lost = 0
    chosen_by = "exact"

    def _file(self) -> Callable[[str], list[Question]]:
        if self.config.train.label_smoothing:
            raise UserError("train.label_smoothing: extractive-qa has none, since its labels are places; leave it out")
        return read_questions

    def new_tokenizer(self) -> Tokenizer:
        texts = dict.fromkeys(text for row in self._train for text in (row.question, row.passage))
        return text_tokenizer(self.config.tokenizer, list(texts))

    def fitted(self, config: ModelConfig) -> ModelConfig:
        needs(config, ["encoder"], "extractive-qa")
        return config if isinstance(config.head, SpanConfig) else with_head(config, SpanConfig())

    def prepare(self) -> None:
        super().prepare()
        if self._lost:
            self.told.append(f"dropped {self._lost:,} questions whose answers lie behind {self.max_len} tokens")
        if not self._examples:
            raise UserError(f"data.train: no answer lies within {self.max_len} tokens; raise data.max_len")

    def _example(self, row: Question, where: str) -> LabelledIds | None:
        """The label is the places of the answer's first and last piece, both 0 where the passage holds none."""
        assert self.tokenizer is not None
        read = encode_question(self.tokenizer, row.question, row.passage, self.max_len)
        label = read.find(row.start, row.start + len(row.answer)) if row.answer else (0, 0)
        self._lost += label is None
        return label and LabelledIds(read.ids, label, read.types, read.places, read.asked)

    def batch(self, examples: Sequence[LabelledIds], rows: Sequence[int]) -> Labelled:
        chosen = [examples[row] for row in rows]
        ids_BT, mask_BT = pad([example.ids for example in chosen], self.pad_id or 0)
        asked = [example.asked for example in chosen]
        inputs = with_questions(self.model.config, self.segments(chosen), ids_BT, asked)
        labels_B2 = torch.tensor([example.label for example in chosen])
        return Labelled((ids_BT, mask_BT, *inputs), labels_B2, 2 * len(rows))

    def loss(self, model: Any, batch: Any, smoothing: float) -> tuple[Tensor, Tensor]:
        logits_BT2, mask_BT = model(*batch.inputs), batch.inputs[1]
        if mask_BT is not None:
            logits_BT2 = logits_BT2.masked_fill(~mask_BT[..., None], -torch.inf)
        loss, nll = SmoothedCrossEntropy.apply(
            logits_BT2.transpose(1, 2).flatten(0, 1), batch.labels.flatten(), 0.0, None
        )
        return loss, nll

    @torch.no_grad()
    def scores(
        self, model: Model, loss: float, world: World, autocast: AbstractContextManager[object]
    ) -> dict[str, float]:
        """From 0 to 100: the share of answers found to the token, and the mean F1 of their tokens."""
        if not self.config.train.eval_lines:
            return {}
        device = next(model.parameters()).device
        sums_3 = torch.zeros(3, dtype=torch.float64)
        batches = self.plan(self.dev, 0, 0).batches
        for index in range(world.rank, len(batches), world.size):
            batch = self.batch(self.dev, batches[index]).to(device)
            with autocast:
                logits_BT2 = model(*batch.inputs).float().cpu().numpy()
            for row, logits_T2 in zip(batches[index], logits_BT2, strict=True):
                sums_3 += torch.tensor([*_scored(self.dev[row], logits_T2), 1.0])
        world.sum_(sums_3)
        exact, f1, count = sums_3.tolist()
        return {"exact": 100 * exact / max(count, 1), "f1": 100 * f1 / max(count, 1)}


def _scored(example: LabelledIds, logits_T2: np.ndarray) -> tuple[float, float]:
    """Whether a guess is the answer, and the F1 of its tokens' places."""
    assert example.places is not None
    span, (first, last) = best_span(logits_T2, example.places), example.label
    both = max(0, min(last, span.last) - max(first, span.first) + 1)
    f1 = 2 * both / (last - first + span.last - span.first + 2)
    return float((span.first, span.last) == (first, last)), f1

"""Labels: of whole texts, and of their words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.config import (
    ClassifierConfig,
    ModelConfig,
    PatchEmbedConfig,
    TokenClassifierConfig,
)
from glassformer.data.collate import IGNORE, Labelled, pad
from glassformer.data.labelled import LabelledText, TaggedText, read_labelled, read_tagged
from glassformer.errors import UserError
from glassformer.models.model import Model
from glassformer.store import Loaded
from glassformer.text.pairs import encode_pair
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.words import encode_words
from glassformer.train.config import ClassificationObjective, Corpus
from glassformer.train.distributed import World
from glassformer.train.objectives.documents import check_reads_text, text_tokenizer
from glassformer.train.objectives.loss import label_loss
from glassformer.train.objectives.objective import Objective, needs, with_head


class LabelledIds(NamedTuple):
    """A text as ids, and its label's number, or that of each id.

    Of a pair of texts also the segment of each id; of a question and a passage also where the passage stands,
    and how many ids there are up to the question's last.
    """

    ids: list[int]
    label: Any
    types: list[int] | None = None
    places: range | None = None
    asked: int = 0


class Labelling(Objective):
    """What all objectives with labels share: their names, and accuracy and macro-F1 on the dev set."""

    chosen_by = "accuracy"
    names: tuple[str, ...]

    def name_labels(self, found: Iterable[str], config: ModelConfig) -> tuple[str, ...]:
        """The labels of the data, sorted; or those of the model where it has them all, in its order."""
        names = tuple(sorted(set(found), key=lambda name: (len(name), name) if name.isdigit() else (0, name)))
        own = getattr(config.head, "labels", ())
        return own if set(names) <= set(own) else names

    def number(self, label: str, where: str) -> int:
        """The number of a label.

        Raises:
            UserError: The label is unknown.
        """
        try:
            return self.names.index(label)
        except ValueError:
            shown = ", ".join(self.names[:8]) + (" …" if len(self.names) > 8 else "")
            raise UserError(f"{where}: label {label!r} is not in data.train, whose labels are {shown}") from None

    @torch.no_grad()
    def scores(
        self, model: Model, loss: float, world: World, autocast: AbstractContextManager[object]
    ) -> dict[str, float]:
        """Accuracy and macro-F1, from 0 to 100."""
        if not self.config.train.eval_lines:
            return {}
        device, count = next(model.parameters()).device, len(self.names)
        confusion_LL = torch.zeros(count, count, dtype=torch.float64)
        batches = self.plan(self.dev, 0, 0).batches
        for index in range(world.rank, len(batches), world.size):
            batch = self.batch(self.dev, batches[index]).to(device)
            with autocast:
                guessed_N = model(*batch.inputs).argmax(-1).flatten()
            labels_N = batch.labels.flatten()
            real = labels_N != IGNORE
            confusion_LL.view(-1).index_add_(
                0, (labels_N[real] * count + guessed_N[real]).cpu(), torch.ones(int(real.sum()), dtype=torch.float64)
            )
        world.sum_(confusion_LL)
        return figures(confusion_LL)


def figures(confusion_LL: Tensor) -> dict[str, float]:
    """Accuracy and macro-F1 in percent of a table of counts, true label by guessed one.

    F1 is the harmonic mean of precision and recall, ``2 tp / (true + guessed)``; the macro mean is over labels that
    occur or were guessed.
    """
    right_L, seen_L = confusion_LL.diag(), confusion_LL.sum(0) + confusion_LL.sum(1)
    f1_L = 2 * right_L[seen_L > 0] / seen_L[seen_L > 0]
    total = float(confusion_LL.sum())
    return {"accuracy": 100 * float(right_L.sum()) / max(total, 1.0), "macro-f1": 100 * float(f1_L.mean())}


class Texts(Labelling):
    """Texts that come with labels."""

    _what: str

    def read(self) -> None:
        data = self.config.data
        train, dev = self._read(data.train), self._read(data.dev) if data.dev else []
        self._train, self._dev_rows = data.split(train, dev)
        self.told.append(f"{len(self._train):,} {self._what} to train on, {len(self._dev_rows):,} for dev")

    @abstractmethod
    def _file(self) -> Callable[[str], list[Any]]: ...

    def _read(self, entries: Corpus) -> list[Any]:
        files = [entries] if isinstance(entries, str) else entries
        for file in files:
            if not isinstance(file, str):
                raise UserError(f"{file[0]}: {self._what} stand in one file, not in two")
        return [row for file in files for row in self._file()(str(file))]

    def check(self, start: Loaded) -> None:
        check_reads_text(start)

    @property
    def dev(self) -> list[LabelledIds]:
        return self._dev

    def sampled(self, seed: int, epoch: int, *, dropout: bool = True) -> list[LabelledIds]:
        return self._examples

    def lengths(self, example: LabelledIds) -> tuple[int, int]:
        return len(example.ids), 0

    def prepare(self) -> None:
        self._cut = 0
        self._examples = self._made(self._train, "data.train")
        if self._cut:
            self.told.append(f"cut {self._cut:,} of {len(self._train):,} {self._what} to {self.max_len} tokens")
        self._dev = self._made(self._dev_rows, "data.dev")

    def _made(self, rows: Sequence[Any], where: str) -> list[LabelledIds]:
        return [example for row in rows if (example := self._example(row, where)) is not None]

    @abstractmethod
    def _example(self, row: Any, where: str) -> LabelledIds | None: ...

    def segments(self, examples: Sequence[LabelledIds]) -> tuple[Tensor, ...]:
        """The segments (B, T) of a batch's ids, where the model tells segments apart and the rows are of two texts."""
        known = getattr(self.model.config.embed, "token_types", 0)
        types = [example.types for example in examples if example.types is not None]
        return (pad(types, 0)[0].clamp(max=known - 1),) if known and types else ()

    def _framed(self, ids: list[int], before: Any, after: Any) -> list[int]:
        room = self.max_len - len(before) - len(after)
        self._cut += len(ids) > room
        return [*before, *ids[:room], *after]


class LabelObjective(Texts):
    """One label for a text."""

    _what = "labelled texts"

    def _file(self) -> Callable[[str], list[LabelledText]]:
        data = self.config.data
        return lambda file: read_labelled(file, data.text, data.label)

    def new_tokenizer(self) -> Tokenizer:
        texts = [text for row in self._train for text in ([row.text] if isinstance(row.text, str) else row.text)]
        return text_tokenizer(self.config.tokenizer, texts)

    def fitted(self, config: ModelConfig) -> ModelConfig:
        needs(config, ["encoder", "decoder"], "classification")
        self.names = self.name_labels((row.label for row in self._train), config)
        return with_classifier(config, self.config.objective, self.names)

    def _example(self, row: LabelledText, where: str) -> LabelledIds:
        assert self.tokenizer is not None
        label = self.number(row.label, where)
        if not isinstance(row.text, str):
            pair = encode_pair(self.tokenizer, *row.text, self.max_len)
            self._cut += pair.cut
            return LabelledIds(pair.ids, label, pair.types)
        return LabelledIds(
            self._framed(self.tokenizer.encode(row.text), self.framing.before, self.framing.after), label
        )

    def batch(self, examples: Sequence[LabelledIds], rows: Sequence[int]) -> Labelled:
        chosen = [examples[row] for row in rows]
        ids_BT, mask_BT = pad([example.ids for example in chosen], self.pad_id or 0)
        labels_B = torch.tensor([example.label for example in chosen])
        return Labelled((ids_BT, mask_BT, *self.segments(chosen)), labels_B, len(rows))

    def loss(self, model: Model, batch: Any, smoothing: float) -> tuple[Tensor, Tensor]:
        return label_loss(model, batch, smoothing=smoothing)


class TagObjective(Texts):
    """One label for each word, at its first token."""

    _what = "labelled sentences"
    pad_id = None

    def _file(self) -> Callable[[str], list[TaggedText]]:
        return read_tagged

    def new_tokenizer(self) -> Tokenizer:
        return text_tokenizer(self.config.tokenizer, [word for row in self._train for word in row.words])

    def fitted(self, config: ModelConfig) -> ModelConfig:
        needs(config, ["encoder"], "token-classification")
        self.names = self.name_labels((label for row in self._train for label in row.labels), config)
        if isinstance(config.head, TokenClassifierConfig) and config.head.labels == self.names:
            return config
        return with_head(config, TokenClassifierConfig(labels=self.names))

    def _example(self, row: TaggedText, where: str) -> LabelledIds:
        assert self.tokenizer is not None
        ids: list[int] = []
        labels: list[int] = []
        for pieces, label in zip(encode_words(self.tokenizer, row.words), row.labels, strict=True):
            ids += pieces
            labels += [self.number(label, where), *[IGNORE] * (len(pieces) - 1)][: len(pieces)]
        before, after = self.framing.before, self.framing.after
        framed = self._framed(ids, before, after)
        kept = labels[: len(framed) - len(before) - len(after)]
        return LabelledIds(framed, [*[IGNORE] * len(before), *kept, *[IGNORE] * len(after)])

    def batch(self, examples: Sequence[LabelledIds], rows: Sequence[int]) -> Labelled:
        assert self.tokenizer is not None
        ids_BT, mask_BT = pad([examples[row].ids for row in rows], self.tokenizer.pad_id or 0)
        labels_BT, _ = pad([examples[row].label for row in rows], IGNORE)
        return Labelled((ids_BT, mask_BT), labels_BT, int((labels_BT != IGNORE).sum()))


def with_classifier(config: ModelConfig, objective: Any, names: tuple[str, ...]) -> ModelConfig:
    """The configuration with a classifier of these labels, its other settings the objective's or the model's own."""
    assert isinstance(objective, ClassificationObjective)
    own = config.head if isinstance(config.head, ClassifierConfig) else None
    tokenless = isinstance(config.embed, PatchEmbedConfig) and not config.embed.class_token
    plain: Any = "last" if config.kind == "decoder" else "mean" if tokenless else "first"
    head = (own or ClassifierConfig(labels=names, pool=plain)).model_copy(
        update={"labels": names, **{key: value for key in ("pool", "hidden") if (value := getattr(objective, key))}}
    )
    return config if head == own else with_head(config, head)

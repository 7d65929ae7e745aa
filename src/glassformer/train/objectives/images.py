"""Images and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.config import ModelConfig, PatchEmbedConfig
from glassformer.data.collate import Labelled
from glassformer.data.images import normalise
from glassformer.data.labelled import read_images
from glassformer.errors import UserError
from glassformer.models.model import Model
from glassformer.store import Loaded
from glassformer.train.config import ClassificationObjective, Corpus
from glassformer.train.objectives.labels import Labelling, with_classifier
from glassformer.train.objectives.loss import label_loss


@dataclass(frozen=True)
class Image:
    """An image's number, its label's number, and by how many pixels it is shifted down and to the right."""

    index: int
    label: int
    shift: tuple[int, int] = (0, 0)


class ImageObjective(Labelling):
    """One label for an image, which may be shifted a little, anew every epoch."""

    def read(self) -> None:
        data, embed = self.config.data, self.config.shape().embed
        assert isinstance(embed, PatchEmbedConfig)
        parts = [self._read(entries, embed) if entries else [] for entries in (data.train, data.dev)]
        train, dev = data.split(*parts)
        self._pixels_NCHW = np.stack([pixels for pixels, _ in [*train, *dev]])
        self._train = [label for _, label in train]
        self._dev_labels = [label for _, label in dev]
        self.told.append(f"{len(train):,} images to train on, {len(dev):,} for dev")

    def _read(self, entries: Corpus, embed: PatchEmbedConfig) -> list[tuple[Any, str]]:
        found: list[tuple[Any, str]] = []
        for entry in [entries] if isinstance(entries, str) else entries:
            path, labels = (entry, None) if isinstance(entry, str) else entry
            images = read_images(path, labels, embed.channels, embed.image_size, self.config.data.white)
            found += zip(images.pixels_NCHW, images.labels, strict=True)
        return found

    def check(self, start: Loaded) -> None:
        if self.config.tokenizer.source:
            raise UserError("tokenizer.from: the model reads images; leave it out")

    def fitted(self, config: ModelConfig) -> ModelConfig:
        self.names = self.name_labels(self._train, config)
        return with_classifier(config, self.config.objective, self.names)

    def prepare(self) -> None:
        embed = self.model.config.embed
        half = (0.5,) * embed.channels
        self._normalise = lambda pixels_BCHW: normalise(pixels_BCHW, embed.mean or half, embed.deviation or half)
        rows, columns = embed.grid
        self._patches = rows * columns + embed.class_token
        self.max_len = self._patches
        first = len(self._train)
        self._examples = [Image(row, self.number(label, "data.train")) for row, label in enumerate(self._train)]
        self._dev = [Image(row, self.number(label, "data.dev")) for row, label in enumerate(self._dev_labels, first)]

    def sampled(self, seed: int, epoch: int, *, dropout: bool = True) -> list[Image]:
        assert isinstance(self.config.objective, ClassificationObjective)
        most = self.config.objective.shift
        if not most:
            return self._examples
        rng = Random(f"shift/{seed}/{epoch}")

        def draw() -> int:
            return int(rng.random() * (2 * most + 1)) - most

        return [replace(image, shift=(draw(), draw())) for image in self._examples]

    @property
    def dev(self) -> list[Image]:
        return self._dev

    def lengths(self, example: Image) -> tuple[int, int]:
        return self._patches, 0

    def batch(self, examples: Sequence[Image], rows: Sequence[int]) -> Labelled:
        chosen = [examples[row] for row in rows]
        pixels_BCHW = np.stack([shifted(self._pixels_NCHW[image.index], *image.shift) for image in chosen])
        labels_B = torch.tensor([image.label for image in chosen])
        return Labelled((torch.from_numpy(self._normalise(pixels_BCHW)),), labels_B, len(rows))

    def loss(self, model: Model, batch: Any, smoothing: float) -> tuple[Tensor, Tensor]:
        return label_loss(model, batch, smoothing=smoothing)


def shifted(pixels_CHW: np.ndarray, down: int, right: int) -> np.ndarray:
    """An image moved by whole pixels, black where nothing was."""
    if not (down or right):
        return pixels_CHW
    height, width = pixels_CHW.shape[1:]
    moved = np.zeros_like(pixels_CHW)
    moved[:, max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)] = pixels_CHW[
        :, max(-down, 0) : height - max(down, 0), max(-right, 0) : width - max(right, 0)
    ]
    return moved

"""Texts or images to labels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from glassformer.engines.engine import Engine
from glassformer.errors import UserError
from glassformer.header import Framing
from glassformer.reader import BATCH, Failure, Reader, Row, check_batch_size, softmax
from glassformer.sentences import checked

if TYPE_CHECKING:
    import numpy as np

    from glassformer.text.tokenizer import Tokenizer

Text = str | tuple[str, str]
"""A text, or two that are read as one row."""
Input = Text | os.PathLike[str]


class Label(TypedDict):
    """What an input is taken for: the likeliest label, every label's probability, likeliest first; of a text, whether
    the model read only its beginning."""

    label: str
    probability: float
    probabilities: dict[str, float]
    truncated: NotRequired[bool]


class Classifier(Reader):
    """A model with a classifier's head: of texts, or of images.

    Attributes:
        labels: their names, in the order of the logits.
    """

    single = (str, tuple, os.PathLike)

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None = None, framing: Framing | None = None) -> None:
        super().__init__(engine, tokenizer, framing)
        config = engine.module.config
        self.labels: tuple[str, ...] = getattr(config.head, "labels", ())
        self.reads_images = config.embed.type == "patches"

    def classify(self, inputs: Input | Sequence[Input], *, batch_size: int = BATCH) -> Any:
        """Labels texts, pairs of texts, or image files.

        Args:
            inputs: Several, or one. A pair of texts is a tuple of two; an image is a path, resized to the model's size.
            batch_size: Most inputs that are read together; neither it nor an input's neighbours change its label.

        Returns:
            A `Label` for each, or one for a single input. A model of one label gives its sigmoid as probability.

        Raises:
            UserError: An input is no text or no image; `records` goes on behind one.
        """
        return self._all(inputs, batch_size)

    def records(self, inputs: Iterable[Any], *, batch_size: int = BATCH) -> Iterator[Any]:
        """`classify` of any number of inputs, told one by one; an image that cannot be read is a `Failure`."""
        if not self.reads_images:
            yield from super().records(inputs, batch_size=batch_size)
            return
        check_batch_size(batch_size)
        inputs = iter(inputs)
        while chunk := list(islice(inputs, batch_size)):
            yield from self._images(chunk)

    def _row(self, given: Any, number: int) -> Row:
        tokenizer = self._reads_text()
        if isinstance(given, tuple) and len(given) == 2:
            from glassformer.text.pairs import encode_pair

            pair = encode_pair(tokenizer, checked(given[0], number), checked(given[1], number), self.limit)
            return Row(pair.ids, pair.types, pair.cut)
        return self._framed(tokenizer.encode(checked(given, number)), number)

    def _told(self, given: Any, row: Row, logits: np.ndarray) -> Label:
        return Label(**self._label(_probabilities(logits)), truncated=row.cut)

    def _images(self, paths: Sequence[Any]) -> list[Label | Failure]:
        import numpy as np
        import torch

        from glassformer.data.images import normalise, read_image

        embed = self.model.config.embed
        half = (0.5,) * embed.channels
        images: list[Any] = []
        for path in paths:
            try:
                images.append(read_image(_path(path), embed.channels, embed.image_size))
            except UserError as error:
                images.append(Failure(error=str(error)))
        good = [image for image in images if not isinstance(image, dict)]
        if not good:
            return images
        pixels_BCHW = normalise(np.stack(good), embed.mean or half, embed.deviation or half)
        found = (self._label(_probabilities(logits)) for logits in self._logits(torch.from_numpy(pixels_BCHW)))
        labelled: list[Any] = [image if isinstance(image, dict) else next(found) for image in images]
        return labelled

    def _label(self, probabilities_L: np.ndarray) -> Label:
        order = (-probabilities_L).argsort(kind="stable")
        told = {self.labels[index]: float(probabilities_L[index]) for index in order}
        best = self.labels[order[0]]
        return Label(label=best, probability=told[best], probabilities=told)


def _probabilities(logits_L: np.ndarray) -> np.ndarray:
    """Softmax; of a model of one label its sigmoid."""
    import numpy as np

    if len(logits_L) == 1:
        return 0.5 * (1 + np.tanh(logits_L.astype(np.float64) / 2))
    return softmax(logits_L)


def _path(path: Any) -> str | os.PathLike[str]:
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"expected the path of an image, got {type(path).__name__}")
    return path

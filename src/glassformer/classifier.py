"""Texts or images to labels."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from glassformer.engines.engine import Engine
from glassformer.errors import UserError
from glassformer.header import Framing
from glassformer.sentences import checked

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from glassformer.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Text = str | tuple[str, str]
"""A text, or two that are read as one row."""
Input = Text | os.PathLike[str]
BATCH = 32
READ_AHEAD = 512


class Label(TypedDict):
    """What an input is taken for: the likeliest label, every label's probability, likeliest first; of a text, whether
    the model read only its beginning."""

    label: str
    probability: float
    probabilities: dict[str, float]
    truncated: NotRequired[bool]


class Failure(TypedDict):
    """Why an input has no label."""

    error: str


class Classifier:
    """A model with a classifier's head: of texts, or of images.

    Attributes:
        engine: what computes.
        tokenizer: text to ids; None where the model reads images, or the source has none.
        framing: what stands around texts.
        labels: their names, in the order of the logits.
        reads_images: whether an input is the path of an image, not a text.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None = None, framing: Framing | None = None) -> None:
        config = engine.module.config
        self.engine, self.tokenizer, self.framing = engine, tokenizer, framing or Framing()
        self.labels: tuple[str, ...] = getattr(config.head, "labels", ())
        self.reads_images = config.embed.type == "patches"
        self.limit = engine.target_limit if engine.source_limit is None else engine.source_limit

    @property
    def model(self) -> Any:
        """The torch module, in eval mode, float32."""
        return self.engine.module

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
        single = isinstance(inputs, str | tuple | os.PathLike)
        records = list(self.records([inputs] if single else inputs, batch_size=batch_size))  # type: ignore[list-item,arg-type]
        if failure := next((each for each in records if "error" in each), None):
            raise UserError(str(dict(failure)["error"]))
        return records[0] if single else records

    def records(self, inputs: Iterable[Input], *, batch_size: int = BATCH) -> Iterator[Label | Failure]:
        """`classify` of any number of inputs, told one by one; one that cannot be read is a `Failure`."""
        if batch_size < 1:
            raise UserError(f"--batch-size {batch_size}: must be 1 or more")
        inputs, read = iter(inputs), 0
        size = batch_size if self.reads_images else max(batch_size, READ_AHEAD)
        while chunk := list(islice(inputs, size)):
            yield from (self._images(chunk) if self.reads_images else self._texts(chunk, read + 1, batch_size))
            read += len(chunk)

    def _texts(self, texts: Sequence[Any], first: int, batch_size: int) -> list[Label | Failure]:
        rows = [self._row(text, number) for number, text in enumerate(texts, first)]
        if cut := [number for number, (_, _, cut) in enumerate(rows, first) if cut]:
            more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
            log.warning("text %d%s: cut to the model's limit of %d tokens", cut[0], more, self.limit)
        found: list[Any] = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index][0]))
        for at in range(0, len(order), batch_size):
            batch = order[at : at + batch_size]
            probabilities = self._read([rows[i][0] for i in batch], [rows[i][1] for i in batch])
            for index, each in zip(batch, probabilities, strict=True):
                found[index] = Label(**self._label(each), truncated=rows[index][2])
        return found

    def _row(self, text: Any, number: int) -> tuple[list[int], list[int], bool]:
        """The ids of a text or a pair, their segments, and whether it was cut."""
        if self.tokenizer is None:
            raise UserError("this model has no tokenizer, so it reads no text; put its tokenizer.json beside it")
        if isinstance(text, tuple) and len(text) == 2:
            from glassformer.text.pairs import encode_pair

            row = encode_pair(self.tokenizer, checked(text[0], number), checked(text[1], number), self.limit)
            return row.ids, row.types, row.cut
        before, after = self.framing.before, self.framing.after
        ids = self.tokenizer.encode(checked(text, number))
        room = len(ids) if self.limit is None else max(0, self.limit - len(before) - len(after))
        framed = [*before, *ids[:room], *after]
        if not framed:
            raise UserError(f"text {number}: an empty text, and the model has no token that begins one; give it a word")
        return framed, [0] * len(framed), len(ids) > room

    def _read(self, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]]) -> np.ndarray:
        """The probabilities of rows of ids that are read together, shape (B, labels)."""
        from glassformer.data.collate import pad

        (ids_BT, mask_BT), (types_BT, _) = pad(rows, 0), pad(types, 0)
        segments = getattr(self.model.config.embed, "token_types", 0)
        known = (types_BT.clamp(max=segments - 1),) if segments else ()
        return self._probabilities(ids_BT, mask_BT, *known)

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
        found = map(self._label, self._probabilities(torch.from_numpy(pixels_BCHW)))
        labelled: list[Any] = [image if isinstance(image, dict) else next(found) for image in images]
        return labelled

    def _probabilities(self, *inputs: Tensor | None) -> np.ndarray:
        import torch

        device = next(self.model.parameters()).device
        precision = torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.engine.precision == "bf16")
        with torch.inference_mode(), precision:
            logits_BL = self.model(*(each if each is None else each.to(device) for each in inputs)).float()
        return (logits_BL.sigmoid() if len(self.labels) == 1 else logits_BL.softmax(-1)).cpu().numpy()

    def _label(self, probabilities_L: np.ndarray) -> Label:
        order = (-probabilities_L).argsort(kind="stable")
        told = {self.labels[index]: float(probabilities_L[index]) for index in order}
        best = self.labels[order[0]]
        return Label(label=best, probability=told[best], probabilities=told)


def _path(path: Any) -> str | os.PathLike[str]:
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"expected the path of an image, got {type(path).__name__}")
    return path

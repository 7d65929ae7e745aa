"""Labelled examples in: texts, words, and images."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glassformer.data.corpus import read_pairs
from glassformer.data.images import read_csv, read_idx, read_image
from glassformer.data.lines import read_lines
from glassformer.errors import UserError


class LabelledText(NamedTuple):
    """A text and its label."""

    text: str
    label: str


class TaggedText(NamedTuple):
    """The words of a sentence, and a label for each."""

    words: tuple[str, ...]
    labels: tuple[str, ...]


class LabelledImages(NamedTuple):
    """Images as numbers in 0 … 1, float32 (N, C, H, W), and a label for each."""

    pixels_NCHW: np.ndarray
    labels: list[str]


def read_labelled(path: str, text: str = "text", label: str = "label") -> list[LabelledText]:
    """Reads labelled texts.

    A ``.csv`` file is read as RFC 4180 says; anything else as `read_pairs` does. Where the first line names the
    columns, they are found by name, else the text is column one and the label column two.

    Raises:
        UserError: The file is missing, empty or malformed, with the line.
    """
    if Path(path).suffix.lower() != ".csv":
        pairs = read_pairs(path, source=text, target=label)
        return [LabelledText(pair.source, pair.target.strip()) for pair in pairs]
    reader = csv.reader(io.StringIO("\n".join(read_lines(path))))
    found: list[LabelledText] = []
    at_text, at_label = 0, 1
    for row in reader:
        if reader.line_num == 1 and text in row and label in row:
            at_text, at_label = row.index(text), row.index(label)
        elif row:
            if len(row) <= max(at_text, at_label) or not row[at_text].strip() or not row[at_label].strip():
                raise UserError(
                    f"{path}:{reader.line_num}: expected a text and a label; fill them in, or delete the line"
                )
            found.append(LabelledText(row[at_text], row[at_label].strip()))
    if not found:
        raise UserError(f"{path}: no labelled texts in it; expected at least one")
    return found


def read_tagged(path: str) -> list[TaggedText]:
    """Reads labelled words, ``word<TAB>label`` a line, with a blank line between sentences.

    Raises:
        UserError: The file is missing or empty, or a line holds no word and label.
    """
    found: list[TaggedText] = []
    rows: list[list[str]] = []
    for number, line in enumerate([*read_lines(path), ""], 1):
        cells = line.split("\t")
        if not line.strip():
            if rows:
                found.append(TaggedText(tuple(row[0] for row in rows), tuple(row[-1].strip() for row in rows)))
            rows = []
        elif len(cells) < 2 or not cells[0].strip() or not cells[-1].strip():
            raise UserError(f"{path}:{number}: expected a word, a tab and its label; blank lines part sentences")
        else:
            rows.append(cells)
    if not found:
        raise UserError(f"{path}: no labelled words in it; expected at least one")
    return found


def read_images(path: str, labels: str | None, channels: int, size: tuple[int, int], white: float) -> LabelledImages:
    """Reads labelled images.

    Args:
        path: MNIST's idx file of images; a ``.npz`` with ``images`` and ``labels``; a ``.csv`` as
            `read_csv` reads it; or a TSV of paths of images, which are resized, and labels.
        labels: The idx file of labels that belongs to that of images.
        channels: Of the model.
        size: Height and width that the model reads.
        white: The value of a white pixel, except in image files.

    Raises:
        UserError: The file is missing or malformed, or its images are of another size.
    """
    if labels is None and Path(path).suffix.lower() not in (".csv", ".npz"):
        rows = read_pairs(path, source="image", target="label")
        folder = Path(path).parent
        images = [read_image(folder / row.source, channels, size) for row in rows]
        return LabelledImages(np.stack(images), [row.target.strip() for row in rows])
    try:
        pixels, names = _arrays(path, labels)
    except OSError as error:
        raise UserError(f"{error.filename or path}: cannot read it: {error.strerror or error}") from None
    if len(pixels) != len(names) or not len(names):
        raise UserError(f"{path}: {len(pixels)} images but {len(names)} labels; give one label for each image")
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    if pixels.shape[1:] != (channels, *size):
        found, wanted = (" × ".join(map(str, shape)) for shape in (pixels.shape[1:], (channels, *size)))
        raise UserError(f"{path}: images of {found}, but the model reads {wanted}; set model.image_size and channels")
    return LabelledImages(pixels.astype(np.float32) / np.float32(white), [str(name) for name in names])


def _arrays(path: str, labels: str | None) -> tuple[np.ndarray, np.ndarray]:
    if labels is not None:
        return read_idx(path), read_idx(labels)
    if Path(path).suffix.lower() == ".npz":
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return arrays["images"], arrays["labels"]
        except (KeyError, ValueError, AttributeError):
            raise UserError(f"{path}: expected a .npz file with the arrays images and labels") from None
    pixels, names = read_csv(path)
    return pixels, np.array(names)

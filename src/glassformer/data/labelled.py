"""Labelled examples in: texts, words, and images."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glassformer.data.corpus import read_pairs, stream_pairs
from glassformer.data.images import read_csv, read_idx, read_image
from glassformer.data.lines import read_lines
from glassformer.errors import UserError


class LabelledText(NamedTuple):
    """A text, or two that are read as one row, and the label."""

    text: str | tuple[str, str]
    label: str


class TaggedText(NamedTuple):
    """The words of a sentence, and a label for each."""

    words: tuple[str, ...]
    labels: tuple[str, ...]


class LabelledImages(NamedTuple):
    """Images as numbers in 0 … 1, float32 (N, C, H, W), and a label for each."""

    pixels_NCHW: np.ndarray
    labels: list[str]


def read_labelled(path: str, text: str | tuple[str, str] = "text", label: str = "label") -> list[LabelledText]:
    """Reads labelled texts, or labelled pairs of texts.

    A ``.csv`` file is read as RFC 4180 says; anything else as `read_pairs` does. Where the first line names the
    columns, they are found by name, else the texts come first and the label behind them.

    Args:
        text: The name of the text's column or key, or those of two texts'.
        label: That of the label.

    Raises:
        UserError: The file is missing, empty or malformed, with the line.
    """
    if Path(path).suffix.lower() == ".csv":
        return _csv_rows(path, (text,) if isinstance(text, str) else text, label)
    if not isinstance(text, str):
        return _labelled_pairs(path, *text, label)
    pairs = read_pairs(path, source=text, target=label)
    return [LabelledText(pair.source, pair.target.strip()) for pair in pairs]


def _csv_rows(path: str, texts: tuple[str, ...], label: str) -> list[LabelledText]:
    reader = csv.reader(io.StringIO("\n".join(read_lines(path))))
    found: list[LabelledText] = []
    at = list(range(len(texts) + 1))
    for row in reader:
        if reader.line_num == 1 and {*texts, label} <= set(row):
            at = [row.index(name) for name in (*texts, label)]
        elif row:
            if len(row) <= max(at) or not all(row[place].strip() for place in at):
                what = "a text" if len(texts) == 1 else "two texts"
                raise UserError(
                    f"{path}:{reader.line_num}: expected {what} and a label; fill them in, or delete the line"
                )
            *read, told = (row[place] for place in at)
            found.append(LabelledText(read[0] if len(read) == 1 else (read[0], read[1]), told.strip()))
    if not found:
        raise UserError(f"{path}: no labelled texts in it; expected at least one")
    return found


def _labelled_pairs(path: str, first: str, second: str, label: str) -> list[LabelledText]:
    found: list[LabelledText] = []
    for pair, at, _, extra in stream_pairs(path, source=first, target=second):
        told = extra.get(label, extra.get("3"))  # without names it is the third column
        texts = (pair.source, pair.target)
        if not any(text.strip() for text in texts) and told is None:
            continue
        if not all(text.strip() for text in texts) or not isinstance(told, str | int) or not str(told).strip():
            raise UserError(
                f"{at}: expected {first}, {second} and {label}; fill them in, or name other columns by data.text, such "
                "as [premise, hypothesis], and data.label"
            )
        found.append(LabelledText(texts, str(told).strip()))
    if not found:
        raise UserError(f"{path}: no labelled pairs of texts in it; expected at least one")
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

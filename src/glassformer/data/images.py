"""Images in: files of any format that Pillow reads, and the arrays of MNIST's idx files."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.errors import UserError

_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def read_image(path: str | os.PathLike[str], channels: int, size: tuple[int, int] | None = None) -> np.ndarray:
    """Reads an image file.

    Args:
        path: A file of any format that Pillow knows (PNG, JPEG, …).
        channels: 1 for grey, 3 for colours, 4 for colours with transparency.
        size: Height and width to resize to (bilinear); ``None`` keeps the file's.

    Returns:
        Numbers in 0 … 1, float32, shape (C, H, W).

    Raises:
        UserError: There is no such file, it is no image, or Pillow is not installed.
    """
    image = _open(path)
    try:
        if channels not in _MODES:
            raise UserError(f"a model of {channels} channels reads no image file: give 1, 3 or 4")
        image = image.convert(_MODES[channels])
        if size is not None and image.size != size[::-1]:
            image = image.resize(size[::-1], 2)  # Pillow's number for bilinear
    except (OSError, ValueError, SyntaxError, struct.error, zlib.error) as error:
        raise UserError(f"{path}: a damaged image ({_brief(error)}); copy it again") from None
    pixels_HWC = np.asarray(image, dtype=np.float32).reshape(image.size[1], image.size[0], channels) / 255
    return np.ascontiguousarray(pixels_HWC.transpose(2, 0, 1))


def _open(path: str | os.PathLike[str]) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise UserError("reading images needs Pillow: pip install pillow") from None
    try:
        return Image.open(path)
    except UnidentifiedImageError:
        raise UserError(f"{path}: not an image that Pillow can read; give a PNG or a JPEG") from None
    except Image.DecompressionBombError as error:
        raise UserError(f"{path}: too large an image ({_brief(error)}); make it smaller") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or _brief(error)}") from None
    except (ValueError, SyntaxError, struct.error) as error:
        raise UserError(f"{path}: a damaged image ({_brief(error)}); copy it again") from None


def _brief(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def normalise(pixels_BCHW: np.ndarray, mean: Sequence[float], deviation: Sequence[float]) -> np.ndarray:
    """Takes each channel's mean away and divides by its deviation."""
    shape = (-1, 1, 1)
    centred = pixels_BCHW - np.asarray(mean, np.float32).reshape(shape)
    return np.asarray(centred / np.asarray(deviation, np.float32).reshape(shape), np.float32)


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """Reads an array of an idx file, as MNIST comes in, perhaps gzipped.

    Raises:
        UserError: The file is no idx file, or not whole.
    """
    data = Path(path).read_bytes()
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        zero, kind, dims = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{dims}I", data, 4)
        if zero or kind not in _IDX_TYPES:
            raise UserError(f"{path}: not an idx file: it begins with {data[:4].hex()}")
        array = np.frombuffer(data, _IDX_TYPES[kind], offset=4 + 4 * dims)
        return array.astype(array.dtype.newbyteorder("=")).reshape(shape)
    except (ValueError, EOFError, OSError, struct.error, zlib.error) as error:
        raise UserError(f"{path}: not a whole idx file ({_brief(error)})") from None


def read_csv(path: str | os.PathLike[str]) -> tuple[np.ndarray, list[str]]:
    """Reads square grey images from a CSV of one image a row, perhaps gzipped, such as scikit-learn's digits.

    Returns:
        Pixels as they stand there, float32, shape (n, H, W), and each row's label: that of the column that a first row
        calls ``label``, else of the last one.

    Raises:
        UserError: A row has another number of columns, a pixel is no number, or the pixels make no square.
    """
    data = Path(path).read_bytes()
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a whole CSV file ({_brief(error)})") from None
    rows = [line.split(",") for line in text.splitlines()]
    header = [name.strip().lower() for name in rows[0]] if rows else []
    named = "label" in header
    at = header.index("label") if named else len(header) - 1
    labels, pixels = [], []
    for number, row in enumerate(rows[named:], 1 + named):
        if len(row) != len(header):
            raise UserError(f"{path}:{number}: {len(row)} columns, but the first row has {len(header)}")
        labels.append(row.pop(at).strip())
        try:
            pixels.append(np.array(row, np.float32))
        except ValueError as error:
            raise UserError(f"{path}:{number}: {_brief(error)}; each column but the label is a pixel") from None
    side = math.isqrt(max(len(header) - 1, 0))
    if not pixels or side * side != len(header) - 1:
        raise UserError(f"{path}: {max(len(header) - 1, 0)} pixels a row make no square image")
    return np.stack(pixels).reshape(-1, side, side), labels

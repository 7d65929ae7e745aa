"""Tensors as bytes: what remains of one after fixing some of its axes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from glassformer.explore.problem import Problem, TooLong

MOST = 4_000_000
"""Numbers told at once."""


def part_of(tensor: Tensor, axes: str, fixed: Mapping[str, str], name: str) -> Tensor:
    """Fixes axes of a tensor by their letters, in either case; B is always 0.

    Raises:
        Problem: There is no such axis, or no such place on it.
        TooLong: More numbers remain than are told at once.
    """
    letters = axes.split()
    wanted = {"B": 0} if "B" in letters else {}
    for letter, text in fixed.items():
        axis = letter.upper()
        if axis not in letters:
            raise Problem(f"{name}: no axis {letter!r}; its axes are {axes}")
        size = tensor.shape[letters.index(axis)]
        if not text.isdecimal() or len(text) > 18 or int(text) >= size:
            raise Problem(f"{name}: {letter}={text[:40]}: must be a whole number from 0 to {size - 1}")
        wanted[axis] = int(text)
    for place in reversed(range(len(letters))):
        if letters[place] in wanted:
            tensor = tensor.select(place, wanted[letters[place]])
    if tensor.numel() > MOST:
        left = [letter for letter in letters if letter not in wanted]
        raise TooLong(
            f"{name}: {tensor.numel():,} numbers, and at most {MOST:,} are told at once; choose a {_axis(left[0])} "
            f"({left[0].lower()}=0)"
        )
    return tensor


def to_bytes(tensor: Tensor) -> bytes:
    """Little-endian float32, row by row."""
    return bytes(tensor.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4", copy=False).tobytes())


def _axis(letter: str) -> str:
    return {"H": "head", "G": "head of keys", "T": "position", "S": "position of keys"}.get(
        letter, f"place on {letter}"
    )

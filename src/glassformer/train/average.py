"""Averages checkpoints: the mean of the last few is often better than the last (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from glassformer.errors import UserError
from glassformer.models.build import build_model
from glassformer.store import model_directory, read_header, read_tokenizer, read_weights, write_files


def average(checkpoints: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> None:
    """Writes the mean of MODEL directories as a MODEL.

    Sums are float64, so that the mean of equal checkpoints is each of them, bit for bit. Tied matrices stay tied, and
    every tensor keeps the dtype it is stored in.

    Args:
        checkpoints: One or more, of one shape and one tokenizer.
        output: Where; a MODEL that is there is replaced.

    Raises:
        UserError: When they do not belong together, or one is no MODEL.
    """
    paths = [Path(checkpoint) for checkpoint in checkpoints]
    if not paths:
        raise UserError("nothing to average: name one or more checkpoints")
    header = read_header(paths[0])
    for path in paths[1:]:
        other = read_header(path)
        for what in ("model", "tokenizer_sha256", "translation"):
            if getattr(other, what) != getattr(header, what):
                name = {"model": "config", "tokenizer_sha256": "tokenizer"}.get(what, what)
                raise UserError(f"{paths[0]} and {path} differ in their {name}; average checkpoints of one run")
    tokenizer = read_tokenizer(paths[0], header.tokenizer_sha256) if header.tokenizer_sha256 else None
    expected = build_model(header.model, device="meta", initialise=False).state_dict()
    dtypes: dict[str, torch.dtype] = {}
    sums: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in read_weights(path, expected).items():
            if dtypes.setdefault(name, tensor.dtype) != tensor.dtype:
                raise UserError(
                    f"{paths[0]} and {path} store {name} as {dtypes[name]} and {tensor.dtype}; save both alike"
                )
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
    means = {name: (total / len(paths)).to(dtypes[name]) for name, total in sums.items()}
    with model_directory(Path(output)) as scratch:
        write_files(scratch, header, means, tokenizer)

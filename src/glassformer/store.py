"""A MODEL directory on disk: ``config.json``, ``model.safetensors``, ``tokenizer.json``."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from glassformer.config import Config, ModelConfig
from glassformer.errors import UserError
from glassformer.header import CONFIG, FORMAT_VERSION, WEIGHTS, Framing, Translation, read_config, read_tokenizer
from glassformer.models.build import build_model, model_of
from glassformer.models.model import Model
from glassformer.text.tokenizer import Tokenizer

FILES = {
    *(CONFIG, WEIGHTS, "tokenizer.json", "tokenizer.model", "target_tokenizer.json", "target_tokenizer.model"),
    *("source.spm", "target.spm", "vocab.json", "target_vocab.json"),
}


@dataclass(frozen=True)
class Loaded:
    """A model as it came from disk.

    Attributes:
        path: Where it was read.
        model: A torch module in eval mode, float32; its weights may be memory-mapped.
        tokenizer: Text to ids and back; None where the source has none.
        translation: What it was trained for, if it translates.
        framing: What stands around its texts; None where neither the source nor a tokenizer says.
    """

    path: Path
    model: Any
    tokenizer: Any
    translation: Translation | None = None
    framing: Framing | None = None


class FileHeader(Config):
    """The content of ``config.json``."""

    format_version: int
    model: ModelConfig
    translation: Translation | None = None
    framing: Framing | None = None
    tokenizer_sha256: str | None = None


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Gives a scratch directory that becomes ``path`` when the block ends well, and vanishes when it does not.

    A reader sees the old content or the new one, never half of it; what a kill leaves, ``recover_directories`` mends.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    retired = path.with_name(f".{path.name}.{os.getpid()}.old")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
        for file in scratch.rglob("*"):
            _flush(file)
        _flush(scratch)
        _swap(scratch, path, retired)
        _flush(path.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(retired, ignore_errors=True)


def _swap(scratch: Path, path: Path, retired: Path) -> None:
    if not path.exists():
        os.replace(scratch, path)
        return
    os.replace(path, retired)
    try:
        os.replace(scratch, path)
    except OSError:
        os.replace(retired, path)
        raise


def recover_directories(parent: Path) -> None:
    """Clears away what killed ``atomic_directory`` blocks left, and puts back what was lost between two renames.

    Only for the one process that writes to ``parent``.
    """
    for retired in parent.glob(".*.old"):
        path = parent / retired.name[1:].rsplit(".", 2)[0]
        if path.exists():
            shutil.rmtree(retired)
        else:
            os.replace(retired, path)
    for scratch in parent.glob(".*.tmp"):
        shutil.rmtree(scratch)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file.

    Raises:
        OSError: With the system's number, such as that of a full disk, which safetensors hides in a type of its own.
    """
    try:
        save_file(dict(tensors), file, metadata)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error


def write_model(
    directory: Path,
    model: Model,
    tokenizer: Tokenizer | None,
    translation: Translation | None,
    dtype: torch.dtype = torch.float32,
    framing: Framing | None = None,
) -> None:
    """Writes a MODEL's files into an existing directory; ``save_model`` does it atomically."""
    header = FileHeader(
        format_version=FORMAT_VERSION,
        model=model.config,
        translation=translation,
        framing=framing,
        tokenizer_sha256=tokenizer.hash if tokenizer else None,
    )
    weights = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.state_dict().items()}
    write_files(directory, header, weights, tokenizer)


def write_files(
    directory: Path, header: FileHeader, weights: Mapping[str, Tensor], tokenizer: Tokenizer | None
) -> None:
    """Writes a MODEL's files from their contents."""
    (directory / CONFIG).write_text(json.dumps(header.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    save_tensors(weights, directory / WEIGHTS)
    if tokenizer is not None:
        tokenizer.save(directory)


@contextmanager
def model_directory(path: Path) -> Iterator[Path]:
    """``atomic_directory`` for a MODEL, which replaces nothing but another MODEL.

    Raises:
        UserError: When there is a file, or a directory that holds anything else, such as a whole run.
    """
    if path.is_dir():
        foreign = sorted({entry.name for entry in path.iterdir()} - FILES)
        if foreign:
            raise UserError(f"{path}: holds {foreign[0]}, which saving a model here would delete; name a new directory")
    elif path.exists():
        raise UserError(f"{path}: a file, but a model is saved as a directory; name a new one")
    with atomic_directory(path) as scratch:
        yield scratch


def save_model(
    directory: str | os.PathLike[str],
    model: Model,
    tokenizer: Tokenizer | None,
    translation: Translation | None = None,
    dtype: torch.dtype = torch.float32,
    framing: Framing | None = None,
) -> None:
    """Saves a model so that ``load_model`` finds it whole, or finds what was there before.

    Args:
        directory: Where; a MODEL that is there is replaced.
        model: A tied matrix is stored once.
        tokenizer: Its hash goes into the config, so that another vocabulary of the same size is caught; None for a
            model that reads images, or ids alone.
        translation: What the model was trained for, if it translates.
        dtype: How weights are stored; they come back as float32.
        framing: What stands around its texts; None is `Framing.of` the tokenizer.

    Raises:
        UserError: When the directory holds anything but a MODEL.
    """
    with model_directory(Path(directory)) as scratch:
        write_model(scratch, model, tokenizer, translation, dtype, framing)


def load_model(directory: str | os.PathLike[str]) -> Loaded:
    """Loads a MODEL directory.

    Raises:
        UserError: When a file is missing or damaged, the format is of another version, the weights do not fit the
            config, or the tokenizer is not the one that the model was trained with.
    """
    path = Path(directory)
    header = read_header(path)
    tokenizer = None if header.tokenizer_sha256 is None else read_tokenizer(path, header.tokenizer_sha256)
    expected = build_model(header.model, "meta", initialise=False).state_dict()
    framing = header.framing or (Framing.of(tokenizer, header.model.kind) if tokenizer else None)
    model = float_model(header.model, read_weights(path, expected))
    return Loaded(path, model, tokenizer, header.translation, framing)


def float_model(config: ModelConfig, weights: Mapping[str, Tensor]) -> Any:
    """A model in eval mode around weights, which are used as they are where they are float32."""
    floats = {name: tensor.float() for name, tensor in weights.items()}
    return model_of(config, floats).eval().requires_grad_(False)


def read_header(path: Path) -> FileHeader:
    """Reads and checks ``config.json`` alone."""
    return FileHeader.from_dict(read_config(path), str(path / CONFIG))


def read_weights(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reads the weights of a directory as they are stored, strictly: nothing missing, left over, or of another shape.

    Args:
        expected: A model's ``state_dict``, also one on the meta device.
    """
    file = path / WEIGHTS
    try:
        weights = load_file(file)
    except FileNotFoundError:
        raise UserError(f"{path}: not a model directory: it has no {WEIGHTS}") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file}: damaged or not readable ({error}); copy or train it again") from None
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing or extra:
        raise UserError(f"{file}: does not fit {CONFIG}: it lacks {_named(missing)} and has {_named(extra)} left over")
    for name, tensor in expected.items():
        if tensor.shape != weights[name].shape:
            raise UserError(
                f"{file}: {name} has shape {list(weights[name].shape)}, but {CONFIG} says {list(tensor.shape)}"
            )
    return weights


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:3]) or "nothing"
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown

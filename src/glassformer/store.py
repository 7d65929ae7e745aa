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
from glassformer.models.build import build_model
from glassformer.models.seq2seq import Seq2Seq
from glassformer.text.tokenizer import Tokenizer

FORMAT_VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
FILES = {CONFIG, WEIGHTS, "tokenizer.json", "tokenizer.model"}


class Translation(Config):
    """What a translation model was trained for.

    Attributes:
        source: Code of the source language, such as ``zh``.
        target: Code of the target language, such as ``en``.
        both_directions: Whether the model translates back as well; its sources then begin with a target-language token.
    """

    source: str
    target: str
    both_directions: bool = False

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Every (from, to) that the model was trained for."""
        forward = (self.source, self.target)
        return [forward, forward[::-1]] if self.both_directions else [forward]

    def tag(self, goal: str, tokenizer: Tokenizer) -> list[int]:
        """The ids that a source begins with: the goal's language token where the model has several goals, else none."""
        return [tokenizer.language_ids[goal]] if self.both_directions else []


def unwritable_ids(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """The ids that a translation never holds: padding, ``<s>``, ``<unk>``, language tokens, and rows without a piece.

    Args:
        vocab_size: The model's number of logits, which may exceed the tokenizer's pieces.
    """
    special = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.unk_id, *tokenizer.language_ids.values()]
    return [index for index in special if index is not None] + list(range(tokenizer.vocab_size, vocab_size))


@dataclass(frozen=True)
class Loaded:
    """A model as it came from disk: in eval mode, float32."""

    path: Path
    model: Seq2Seq
    tokenizer: Tokenizer
    translation: Translation | None


class FileHeader(Config):
    """The content of ``config.json``."""

    format_version: int
    model: ModelConfig
    translation: Translation | None = None
    tokenizer_sha256: str


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


def save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Writes a safetensors file.

    Raises:
        OSError: With the system's number, such as that of a full disk, which safetensors hides in a type of its own.
    """
    try:
        save_file(dict(tensors), file)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error


def write_model(
    directory: Path,
    model: Seq2Seq,
    tokenizer: Tokenizer,
    translation: Translation | None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Writes a MODEL's files into an existing directory; ``save_model`` does it atomically."""
    header = FileHeader(
        format_version=FORMAT_VERSION,
        model=model.config,
        translation=translation,
        tokenizer_sha256=tokenizer.hash,
    )
    weights = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.state_dict().items()}
    write_files(directory, header, weights, tokenizer)


def write_files(directory: Path, header: FileHeader, weights: Mapping[str, Tensor], tokenizer: Tokenizer) -> None:
    """Writes a MODEL's files from their contents."""
    (directory / CONFIG).write_text(json.dumps(header.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    save_tensors(weights, directory / WEIGHTS)
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
    model: Seq2Seq,
    tokenizer: Tokenizer,
    translation: Translation | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Saves a model so that ``load_model`` finds it whole, or finds what was there before.

    Args:
        directory: Where; a MODEL that is there is replaced.
        model: A tied matrix is stored once.
        tokenizer: Its hash goes into the config, so that another vocabulary of the same size is caught.
        translation: What the model was trained for, if it translates.
        dtype: How weights are stored; they come back as float32.

    Raises:
        UserError: When the directory holds anything but a MODEL.
    """
    with model_directory(Path(directory)) as scratch:
        write_model(scratch, model, tokenizer, translation, dtype)


def load_model(directory: str | os.PathLike[str]) -> Loaded:
    """Loads a MODEL directory.

    Raises:
        UserError: When a file is missing or damaged, the format is of another version, the weights do not fit the
            config, or the tokenizer is not the one that the model was trained with.
    """
    path = Path(directory)
    header = read_header(path)
    tokenizer = read_tokenizer(path, header)
    model = build_model(header.model, initialise=False)
    expected = model.state_dict()
    weights = read_weights(path, expected)
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(weights[name])
    return Loaded(path, model.eval().requires_grad_(False), tokenizer, header.translation)


def read_header(path: Path) -> FileHeader:
    """Reads and checks ``config.json`` alone."""
    file = path / CONFIG
    if not file.is_file():
        raise UserError(f"{path}: not a model directory: it has no {CONFIG}")
    try:
        data: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file}: not valid JSON ({error})") from None
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        what = f"format version {version}" if version is not None else "no format_version"
        raise UserError(
            f"{file}: {what}, but this glassformer reads version {FORMAT_VERSION}; "
            "use the glassformer that wrote it, or train again"
        )
    return FileHeader.from_dict(data, str(file))


def read_tokenizer(path: Path, header: FileHeader) -> Tokenizer:
    """Reads the tokenizer of a directory, and checks that it is the one its header names."""
    tokenizer = Tokenizer.load(path)
    if tokenizer.hash != header.tokenizer_sha256:
        raise UserError(
            f"{path}: its tokenizer is not the one this model was trained with "
            f"(sha256 {tokenizer.hash[:12]}…, expected {header.tokenizer_sha256[:12]}…); restore the original file"
        )
    return tokenizer


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

"""A MODEL directory on disk: ``config.json``, ``model.safetensors``, ``tokenizer.json``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from glassformer.config import Config, ModelConfig
from glassformer.errors import UserError
from glassformer.models.build import build_model
from glassformer.models.seq2seq import Seq2Seq
from glassformer.text.tokenizer import Tokenizer

FORMAT_VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


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

    A reader, or whoever finds the disk after a kill, sees the old content or the new one, never half of it.
    """
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
        if path.exists():
            os.replace(path, retired)
        os.replace(scratch, path)
        _flush(path.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    (directory / CONFIG).write_text(json.dumps(header.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    weights = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.state_dict().items()}
    try:
        save_file(weights, directory / WEIGHTS)
    except SafetensorError as error:
        # safetensors wraps the system's error; the command line tells a full disk from a fault by its type.
        raise OSError(f"{directory / WEIGHTS}: {error}") from error
    tokenizer.save(directory)


def save_model(
    directory: str | os.PathLike[str],
    model: Seq2Seq,
    tokenizer: Tokenizer,
    translation: Translation | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Saves a model so that ``load_model`` finds it whole, or finds what was there before.

    Args:
        directory: Where; replaced if it exists.
        model: A tied matrix is stored once.
        tokenizer: Its hash goes into the config, so that another vocabulary of the same size is caught.
        translation: What the model was trained for, if it translates.
        dtype: How weights are stored; they come back as float32.
    """
    with atomic_directory(Path(directory)) as scratch:
        write_model(scratch, model, tokenizer, translation, dtype)


def load_model(directory: str | os.PathLike[str]) -> Loaded:
    """Loads a MODEL directory.

    Raises:
        UserError: When a file is missing or damaged, the format is of another version, the weights do not fit the
            config, or the tokenizer is not the one that the model was trained with.
    """
    path = Path(directory)
    header = read_header(path)
    tokenizer = Tokenizer.load(path)
    if tokenizer.hash != header.tokenizer_sha256:
        raise UserError(
            f"{path}: tokenizer.json is not the one this model was trained with "
            f"(sha256 {tokenizer.hash[:12]}…, expected {header.tokenizer_sha256[:12]}…); restore the original file"
        )
    model = build_model(header.model, initialise=False)
    load_weights(model, path)
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


def load_weights(model: Seq2Seq, path: Path) -> None:
    """Fills a model with the weights of a directory, strictly: nothing missing, nothing left over."""
    file = path / WEIGHTS
    try:
        weights = load_file(file)
    except FileNotFoundError:
        raise UserError(f"{path}: not a model directory: it has no {WEIGHTS}") from None
    except SafetensorError as error:
        raise UserError(f"{file}: damaged ({error}); copy or train it again") from None
    expected = model.state_dict()
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing or extra:
        raise UserError(
            f"{file}: does not fit config.json; missing {missing or 'nothing'}, left over {extra or 'nothing'}"
        )
    for name, tensor in expected.items():
        if tensor.shape != weights[name].shape:
            raise UserError(
                f"{file}: {name} has shape {list(weights[name].shape)}, but config.json says {list(tensor.shape)}"
            )
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(weights[name])

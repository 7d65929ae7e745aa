"""Finds the packed file of a MODEL. What packs one loads numpy and pydantic, and is loaded only where there is none."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from glassformer.errors import UserError
from glassformer.runtime import format as packed_format
from glassformer.runtime.library import EngineUnavailable


def packed(model: Path, precision: str, pack: Callable[[Path, str], None] | None = None) -> Path:
    """The packed file of a model: packed now, or found where an earlier call left it.

    Args:
        model: a MODEL directory, or where `pack` is given, any file or directory that a model is read from.
        pack: packs it, given the file to write and what stands for this state of the model.

    It lies in `$GLASSFORMER_CACHE`, or `$XDG_CACHE_HOME/glassformer`, or `~/.cache/glassformer`, or where none of them
    can be written, in the directory for temporary files.
    """
    name = f"{hashlib.sha256(os.fsencode(model.resolve())).hexdigest()[:16]}-{precision}.packed"
    expected = origin(model)
    places = [place for place in _places() if _usable(place)]
    for place in places:
        if (place / name).exists():
            try:
                if packed_format.read(place / name)[0]["origin"] == expected:
                    return place / name
            except EngineUnavailable:
                pass  # of another version, or damaged: packed anew
    if not places:
        raise EngineUnavailable("no directory to pack the model into can be written; set GLASSFORMER_CACHE to one")
    file = places[0] / name
    if pack is None:
        from glassformer.runtime.pack import pack as pack_directory

        pack_directory(model, precision, file)
    else:
        pack(file, expected)
    return file


def origin(model: Path) -> str:
    """What tells one state of a model from another, without reading its weights."""
    try:
        config = b"" if model.is_file() else (model / "config.json").read_bytes()
        files = [model] if model.is_file() else sorted(model.glob("*.safetensors"))
        stats = [file.stat() for file in files]
    except OSError as error:
        raise UserError(f"{model}: not a model directory ({error.strerror})") from None
    if not stats:
        raise UserError(f"{model}: not a model directory: it has no model.safetensors")
    weights = "-".join(f"{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ctime_ns}-{stat.st_ino}" for stat in stats)
    return f"{hashlib.sha256(config).hexdigest()[:16]}-{hashlib.sha256(weights.encode()).hexdigest()[:16]}"


def _places() -> list[Path]:
    if chosen := os.environ.get("GLASSFORMER_CACHE"):
        return [Path(chosen)]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [Path(cache) / "glassformer", Path(tempfile.gettempdir()) / f"glassformer-{os.getuid()}"]


def _usable(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return False
    return os.access(place, os.W_OK) and place.stat().st_uid == os.getuid()

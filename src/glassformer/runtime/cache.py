"""Finds the packed file of a MODEL. What packs one loads numpy and pydantic, and is loaded only where there is none."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from glassformer.errors import UserError
from glassformer.runtime import format as packed_format
from glassformer.runtime.library import EngineUnavailable


def packed(directory: Path, precision: str) -> Path:
    """The packed file of a MODEL: packed now, or found where an earlier call left it.

    It lies in `$GLASSFORMER_CACHE`, or `$XDG_CACHE_HOME/glassformer`, or `~/.cache/glassformer`, or where none of them
    can be written, in the directory for temporary files.
    """
    name = f"{hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]}-{precision}.packed"
    expected = origin(directory)
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
    from glassformer.runtime.pack import pack

    pack(directory, precision, places[0] / name)
    return places[0] / name


def origin(directory: Path) -> str:
    """What tells one state of a MODEL from another, without reading its weights."""
    try:
        config = (directory / "config.json").read_bytes()
        weights = (directory / "model.safetensors").stat()
    except OSError as error:
        raise UserError(f"{directory}: not a model directory ({error.strerror})") from None
    return f"{hashlib.sha256(config).hexdigest()[:16]}-{weights.st_size}-{weights.st_mtime_ns}"


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

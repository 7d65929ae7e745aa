"""Finds the packed file of a MODEL. What packs one loads numpy and pydantic, and is loaded only where there is none."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from glassformer.errors import UserError
from glassformer.runtime import format as packed_format
from glassformer.runtime.library import EngineUnavailable


def packed(model: Path, precision: str, pack: Callable[[Path, str], None] | None = None) -> Path:
    """The packed file of a model: packed now, or found where an earlier call left it.

    Args:
        model: a MODEL directory, or where `pack` is given, any file or directory that a model is read from.
        pack: packs it, given the file to write and what stands for this state of the model.

    It lies in `$GLASSFORMER_CACHE`, or `$XDG_CACHE_HOME/glassformer`, or `~/.cache/glassformer`, or where that cannot
    be written, which a warning tells, in the directory for temporary files.

    Raises:
        EngineUnavailable: the model cannot be packed, or nowhere.
        UserError: it is no model, or damaged.
    """
    name = f"{hashlib.sha256(os.fsencode(model.resolve())).hexdigest()[:16]}-{precision}.packed"
    expected = origin(model)
    troubles: list[tuple[Path, str]] = []
    for place in _places():
        file = place / name
        if _is_readable(file):
            try:
                if packed_format.read(file)[0]["origin"] == expected:
                    _tell(troubles, f"the model is packed in {place} instead")
                    return file
            except EngineUnavailable:
                pass  # of another version, or damaged: packed anew
        try:
            _make_writable(place, file)
            _clear_leftovers(place)
            if pack is None:
                from glassformer.runtime.pack import pack as pack_directory

                pack_directory(model, precision, file)
            else:
                pack(file, expected)
        except OSError as error:
            troubles.append((place, error.strerror or str(error)))
        except packed_format.NoRoom as error:
            troubles.append((place, str(error)))
        else:
            _tell(troubles, f"the model is packed in {place} instead")
            return file
    _tell(troubles, "set GLASSFORMER_CACHE to a directory that can be written, else PyTorch decodes", always=True)
    raise EngineUnavailable("no directory to pack the model into can be written; set GLASSFORMER_CACHE to one")


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


def _places() -> Iterator[Path]:
    if chosen := os.environ.get("GLASSFORMER_CACHE"):
        yield Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    yield Path(cache) / "glassformer"
    import tempfile

    yield Path(tempfile.gettempdir()) / f"glassformer-{os.getuid()}"


def _is_readable(file: Path) -> bool:
    """Whether a packed file is there, and ours, or where the user has named the place, anyone's."""
    try:
        owner = file.stat().st_uid
    except OSError:
        return False
    return owner == os.getuid() or str(file.parent) == os.environ.get("GLASSFORMER_CACHE")


def _make_writable(place: Path, file: Path) -> None:
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    if place.stat().st_uid != os.getuid():
        raise OSError(errno.EPERM, "it belongs to another user")
    if not os.access(place, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    if file.is_dir():
        raise OSError(errno.EISDIR, f"{file.name} in it is a directory")


def _clear_leftovers(place: Path) -> None:
    """Removes what processes left that died while they packed."""
    for entry in place.iterdir():
        packer = packed_format.packer_of(entry)
        if packer is None:
            continue
        try:
            os.kill(packer, 0)
        except ProcessLookupError:
            import shutil

            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        except OSError:
            pass  # it lives, and is another user's


def _tell(troubles: Sequence[tuple[Path, str]], outcome: str, always: bool = False) -> None:
    """A warning of one line, where the user has named a place, or `always`."""
    named = os.environ.get("GLASSFORMER_CACHE")
    if troubles and (named or always):
        import logging

        what = "; ".join(f"{place}: {trouble}" for place, trouble in troubles)
        logging.getLogger(__name__).warning("%s%s; %s", "GLASSFORMER_CACHE " if named else "", what, outcome)

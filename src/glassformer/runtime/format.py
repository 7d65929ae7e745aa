"""The packed file: a header in JSON, then arrays, each at a multiple of 64 bytes.

It is made for mapping into memory: nothing is copied or converted when it is opened. The layout of its arrays
(native/abi.h) is the same for every instruction set.

    8 bytes   b"GLASSPK" and the format's version
    8 bytes   length of the header and its CRC-32, little-endian
    header    {"size": of the arrays, "precision", "origin", "model": nested plain data, arrays as {"at", "bytes"}}
    arrays
    4 bytes   CRC-32 of a sample of the arrays
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from glassformer.runtime.library import EngineUnavailable

VERSION = 4
MAGIC = b"GLASSPK"
ALIGNMENT = 64


_HOST = os.uname().nodename if hasattr(os, "uname") else "here"


class NoRoom(EngineUnavailable):
    """A packed file cannot be written where it is to lie; the message says why."""


def scratch_name(name: str) -> str:
    """What is called so is there only while this process packs, which `packer_of` tells."""
    return f"{name}.{_HOST}-{os.getpid()}-{threading.get_ident()}.tmp"


def packer_of(path: Path) -> int | None:
    """The process of this machine that a file or folder of a `scratch_name` is of; None for any other."""
    name, _, rest = path.name.rpartition(f".{_HOST}-")
    process = rest.partition("-")[0]
    return int(process) if name and rest.endswith(".tmp") and process.isdecimal() else None


def write(file: Path, header: dict[str, Any], blobs: Iterable[tuple[int, Any]], size: int) -> None:
    """Writes a packed file so that a reader sees all of it or none.

    Args:
        blobs: byte offsets from the end of the header's last line, and what stands there.
        size: bytes that the blobs take.

    Raises:
        NoRoom: there is no room, or no permission.
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    start = _aligned(16 + len(text))
    scratch = file.with_name(scratch_name(file.name))
    try:
        with open(scratch, "w+b") as out:
            out.write(MAGIC + bytes([VERSION]) + len(text).to_bytes(4, "little"))
            out.write(zlib.crc32(text).to_bytes(4, "little") + text)
            for at, blob in blobs:
                out.seek(start + at)
                out.write(blob)
            out.truncate(start + size + 4)
            out.flush()
            os.fsync(out.fileno())  # else a crash may leave a file of the right size, full of zeros
            with mmap.mmap(out.fileno(), 0, access=mmap.ACCESS_READ) as data:
                sample = _sample(data, start, size)
            out.seek(start + size)
            out.write(sample.to_bytes(4, "little"))
        os.replace(scratch, file)
    except OSError as error:
        raise NoRoom(f"{file.name} cannot be written ({error.strerror})") from None
    finally:
        scratch.unlink(missing_ok=True)


def read(file: Path) -> tuple[dict[str, Any], mmap.mmap, int]:
    """Maps a packed file.

    Returns:
        The header, the whole file, and where in it the arrays begin.

    Raises:
        EngineUnavailable: it is of another version, truncated, or no packed file.
    """
    try:
        with open(file, "rb") as handle:
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise EngineUnavailable(f"{file}: cannot be mapped ({error})") from None
    if data[:7] != MAGIC or len(data) < 16:
        raise EngineUnavailable(f"{file}: not a packed model")
    if data[7] != VERSION:
        raise EngineUnavailable(f"{file}: packed in version {data[7]}, and this glassformer reads {VERSION}; delete it")
    length, sum_ = (int.from_bytes(data[at : at + 4], "little") for at in (8, 12))
    text, start = data[16 : 16 + length], _aligned(16 + length)
    header = json.loads(text) if text and zlib.crc32(text) == sum_ else {}
    size = len(data) - start - 4
    if header.get("size") != size or _sample(data, start, size) != int.from_bytes(data[-4:], "little"):
        raise EngineUnavailable(f"{file}: truncated or damaged; delete it, and it is packed again")
    return header, data, start


def _sample(data: mmap.mmap, start: int, size: int) -> int:
    """A checksum of 64 bytes in every 16 KiB: it sees pages that were lost, and reads hardly any."""
    sum_ = 0
    for at in range(start, start + size, 1 << 14):
        sum_ = zlib.crc32(data[at : min(at + 64, start + size)], sum_)
    return sum_


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

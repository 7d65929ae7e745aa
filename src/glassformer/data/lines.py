"""What a line is, and what a pair is, for every format."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO, NamedTuple

from glassformer.errors import UserError

BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")

TextPath = str | os.PathLike[str]
TextFile = TextPath | BinaryIO
"""A path, or an open binary stream such as `sys.stdin.buffer`, which is left open: whoever opened it knows how far it
has been read."""


class Pair(NamedTuple):
    """One sentence and its translation, verbatim."""

    source: str
    target: str


class Located(NamedTuple):
    """A pair, where each side stands, for messages, and what else its record holds: other columns, keys, props."""

    pair: Pair
    source_at: str
    target_at: str
    extra: Mapping[str, Any] = {}


def read_lines(file: TextFile, errors: str = "strict") -> Iterator[str]:
    r"""Yield the lines of a UTF-8 text, one at a time.

    Only `\n` ends a line: U+2028, U+2029, U+0085 and a lone carriage return belong to its text, because whoever splits
    on them shifts every later line against its translation. The `\r` of a CRLF and a leading byte-order mark go.

    Args:
        file: a path, or an open binary stream.
        errors: `"strict"`, or `"replace"` to read each bad byte as U+FFFD.

    Raises:
        UserError: on the first `next`, if the file cannot be opened; at a byte that is not UTF-8, with its line and
            its offset in the file.
    """
    if errors not in ("strict", "replace"):
        raise UserError(f"--errors {errors}: expected strict or replace")
    name, offset = name_of(file), 0
    with opened(file) as stream:
        for number, raw in enumerate(stream, 1):
            start, offset = offset, offset + len(raw)
            if number == 1 and raw.startswith(BOM):
                raw, start = raw.removeprefix(BOM), len(BOM)
                if not raw:
                    return
            raw = raw[:-2] if raw.endswith(b"\r\n") else raw.removesuffix(b"\n")
            try:
                text = raw.decode("utf-8", errors)
            except UnicodeDecodeError as error:
                looks = " (it looks like UTF-16)" if number == 1 and raw.startswith(UTF16_BOMS) else ""
                byte, at = raw[error.start], start + error.start
                raise UserError(
                    f"{name}:{number}: byte 0x{byte:02x} at offset {at} is not UTF-8{looks}; "
                    "save the file as UTF-8, or pass --errors replace"
                ) from None
            yield text


def name_of(file: TextFile) -> str:
    """What messages call a file."""
    return os.fspath(file) if isinstance(file, (str, os.PathLike)) else str(getattr(file, "name", "<input>"))


def opened(file: TextFile) -> AbstractContextManager[BinaryIO]:
    """A file open for reading; a stream stays open behind it."""
    return open_binary(os.fspath(file)) if isinstance(file, (str, os.PathLike)) else nullcontext(file)


def open_binary(name: str) -> BinaryIO:
    """Opens a file for reading, or says in one line why it cannot be."""
    try:
        return open(name, "rb")
    except OSError as error:
        raise UserError(f"{name}: cannot read it: {error.strerror}; give the path of a text file") from None
    except ValueError as error:
        raise UserError(f"{name!r}: not a path: {error}") from None

"""Parallel text to disk, in every format that is read, whole or not at all."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TextIO

from glassformer.data.corpus import format_of
from glassformer.data.lines import Located, TextPath
from glassformer.data.po import PoWriter
from glassformer.data.tmx import TmxWriter
from glassformer.errors import UserError

UNNAMED = ("source", "target")


class Writer(Protocol):
    """Takes pairs one at a time, and is closed after the last."""

    def write(self, located: Located) -> None: ...

    def close(self) -> None: ...


@contextmanager
def open_writer(
    path: TextPath | None,
    target_path: TextPath | None = None,
    *,
    languages: tuple[str, str] | None = None,
    format: str | None = None,
) -> Iterator[Writer]:
    """Write a corpus; on success it takes its name, and after an error whatever had that name is still there.

    Args:
        path: the file, or its source side; None for standard output.
        target_path: the target side, for plain text.
        languages: names of the source's and the target's column, key, or language. A TSV gets a line of names if they
            are given, or if it has other named columns.
        format: one of `FORMATS`, where the suffix does not tell.

    Raises:
        UserError: the file cannot be written; or, from `write`, a text that the format cannot hold, with its place.
    """
    chosen = format_of("" if path is None else path, target_path, format)
    source, target = names = languages or UNNAMED
    with ExitStack() as stack:
        stream = sys.stdout if path is None else stack.enter_context(_replacing(path))
        writer: Writer
        match chosen:
            case "plain":
                assert target_path is not None
                writer = _PlainWriter(stream, stack.enter_context(_replacing(target_path)))
            case "jsonl":
                writer = _JsonlWriter(stream, names)
            case "tmx":
                writer = TmxWriter(stream, source, target)
            case "po":
                writer = PoWriter(stream, target)
            case _:
                writer = _TsvWriter(stream, names)
        yield writer
        writer.close()


@contextmanager
def _replacing(path: TextPath) -> Iterator[TextIO]:
    final = Path(path)
    # A device or a pipe cannot be replaced.
    whole = not final.exists() or final.is_file()
    written = final.with_name(f".{final.name}.part{os.getpid()}") if whole else final
    try:
        stream = open(  # noqa: SIM115 (closed below)
            written, "w", encoding="utf-8", newline="\n"
        )
    except OSError as error:
        raise UserError(f"{final}: cannot write it: {error.strerror}") from None
    try:
        with stream:
            yield stream
        if whole:
            os.replace(written, final)
    except BaseException:
        if whole:
            written.unlink(missing_ok=True)
        raise


class _Lines:
    """Lines as `read_lines` gives them back, whatever they hold but a line feed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._first = stream, True

    def write(self, line: str) -> None:
        # A reader takes one mark from the start of the file, and one carriage return from the end of a line.
        mark = "\ufeff" if self._first and line.startswith("\ufeff") else ""
        self._stream.write(f"{mark}{line}\r\n" if line.endswith("\r") else f"{mark}{line}\n")
        self._first = False


def _refuse(char: str, at: str, format: str) -> UserError:
    return UserError(
        f"{at}: U+{ord(char):04X} in the text cannot stand in {format}; write jsonl, or let "
        "`glassformer data clean` remove it"
    )


class _TsvWriter:
    def __init__(self, stream: TextIO, names: tuple[str, str]) -> None:
        self._lines, self._names = _Lines(stream), names
        self._columns: list[str] | None = None

    def write(self, located: Located) -> None:
        """The first pair's extras are the file's other columns."""
        if self._columns is None:
            self._columns = list(located.extra)
            named = self._names != UNNAMED or not all(map(str.isdigit, self._columns))
            # A pair that reads like a line of names must not stand first.
            if named or set(UNNAMED) <= {cell.strip() for cell in located.pair}:
                self._line([*self._names, *self._columns], "the line of names")
        self._line([*located.pair, *(_text(located.extra.get(name, "")) for name in self._columns)], located.source_at)

    def _line(self, cells: list[str], at: str) -> None:
        line = "\t".join(cells)
        if "\n" in line or line.count("\t") >= len(cells):
            raise _refuse("\n" if "\n" in line else "\t", at, "a tsv")
        self._lines.write(line)

    def close(self) -> None:
        """Name the columns of a file without pairs."""
        if self._columns is None and self._names != UNNAMED:
            self._line(list(self._names), "the line of names")


class _JsonlWriter:
    def __init__(self, stream: TextIO, names: tuple[str, str]) -> None:
        self._stream, self._names = stream, names

    def write(self, located: Located) -> None:
        pair = dict(zip(self._names, located.pair, strict=True))
        self._stream.write(json.dumps({**pair, **located.extra, **pair}, ensure_ascii=False) + "\n")

    def close(self) -> None:
        pass


class _PlainWriter:
    """Extras have no place in plain text."""

    def __init__(self, source: TextIO, target: TextIO) -> None:
        self._files = _Lines(source), _Lines(target)

    def write(self, located: Located) -> None:
        places = located.source_at, located.target_at
        for lines, text, at in zip(self._files, located.pair, places, strict=True):
            if "\n" in text:
                raise _refuse("\n", at, "plain lines")
            lines.write(text)

    def close(self) -> None:
        pass


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

"""Streams, files and models that several commands share. Loads no Typer."""

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.api import Translator


def open_translator(
    model: str, engine: str, precision: str, threads: int | None, shortlist: Path | None = None
) -> "Translator":
    """Loads a model; what it loads for it, such as PyTorch, is the engine's business."""
    from glassformer.api import Translator, load

    opened = load(model, engine=engine, precision=precision, threads=threads, shortlist=shortlist)
    if not isinstance(opened, Translator):
        raise UserError(f"-m {model}: no translator; glassformer generate, embed and classify are for other models")
    return opened


def input_lines(text: list[str] | None, path: Path | None, errors: str, what: str) -> Iterator[str]:
    """The lines of arguments, of a file, or of standard input, whichever is given.

    Args:
        what: Somebody at a terminal is to type.
    """
    from glassformer.data.lines import read_lines

    if text and path is not None:
        raise UserError(f"both TEXT and --input {path}: give one of them")
    if text:
        return (line for argument in text for line in argument.split("\n"))
    if path is None and sys.stdin.isatty():
        print(f"type {what}; end with Ctrl-D", file=sys.stderr)
    return read_lines(sys.stdin.buffer if path is None else path, errors=errors)


def read_limited_pairs(path: Path, source: str, target: str, limit: int | None) -> list[tuple[str, str]]:
    """The first `limit` pairs of a file."""
    from glassformer.data.corpus import read_pairs

    if limit is not None and limit < 1:
        raise UserError(f"--limit {limit}: must be 1 or more")
    return [(pair.source, pair.target) for pair in read_pairs(path, source=source, target=target)[:limit]]


def spare(output: Path | None, inputs: dict[str, Path | None], flag: str = "--output") -> None:
    """Refuses an output that is one of the inputs, or whose unfinished form would be."""
    for name, path in inputs.items():
        if output is None or path is None or not path.exists():
            continue
        for written in (output, partial_file(Path(os.path.realpath(output)))):
            if written.exists() and written.samefile(path):
                what = "the input" if name == "--input" else f"{name} {path}"
                raise UserError(f"{flag} {output}: is {what}, which it would overwrite; name another file")


@contextmanager
def output_stream(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file to be written in UTF-8 with `\\n` at each line's end.

    The file is `PATH.partial` until the block ends well. If it does not, PATH stays what it was, and what was written
    before is in `PATH.partial`, which standard error tells; without a line in it, it goes.
    """
    if path is None:
        yield sys.stdout
        return
    final = Path(os.path.realpath(path))
    # A pipe or a device cannot be replaced, nor can a file in a folder where only the file may be written.
    if final.exists() and not (final.is_file() and os.access(final.parent, os.W_OK)):
        with open(path, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
        return
    partial = partial_file(final)
    try:
        stream = open(partial, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (entered below)
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if final.exists():
            os.chmod(partial, final.stat().st_mode & 0o7777)
        os.replace(partial, final)
    except BaseException as error:
        if (
            isinstance(error, OSError)
            and error.filename is None
            and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        ):
            error.filename = str(path)
        _keep(partial)
        raise


def _keep(partial: Path) -> None:
    """Says what a file holds that did not become whole, and clears it away if that is nothing."""
    with open(partial, "rb") as stream:
        lines = sum(line.endswith(b"\n") for line in stream)
    if lines:
        print(f"what was done before is kept: {partial} holds the first {lines} lines", file=sys.stderr)
    else:
        partial.unlink()


def partial_file(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(f"{path.name}.partial")


class Progress:
    """A count on standard error: one line that is rewritten on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self.what, self.total, self.done = what, total, 0
        self.started = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._shown = self.started
        self._open_line = False

    @property
    def seconds(self) -> float:
        """Time since the start, never 0."""
        return max(time.monotonic() - self.started, 1e-9)

    def add(self, count: int) -> None:
        """Counts, and shows the count when it is time to."""
        self.done += count
        now = time.monotonic()
        if now - self._shown < (0.2 if self._terminal else 10):
            return
        self._shown = now
        of = f" of {self.total}" if self.total is not None else ""
        line = f"{self.done}{of} {self.what}, {self.done / self.seconds:.1f}/s"
        self._open_line = self._terminal
        print(
            f"\r{line}\x1b[K" if self._terminal else line,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        """Leaves the rewritten line, so that what follows starts on one of its own."""
        if self._open_line:
            print(file=sys.stderr)
            self._open_line = False

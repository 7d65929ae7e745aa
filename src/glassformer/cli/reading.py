"""How far a pass over large files is, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import BinaryIO, TypeVar

Row = TypeVar("Row")
Show = Callable[[int], None]

LOOK = 256
"""Rows between two looks at the clock."""
LINE_SECONDS = 10.0


@contextmanager
def shown(rows: Iterable[Row], files: Sequence[BinaryIO], name: str, unit: str = "pairs") -> Iterator[Iterator[Row]]:
    """Yield the same rows, whose progress is the share of their files' bytes that are read.

    Nothing is shown where standard output is the same terminal: what appears there says it already.

    Args:
        rows: what is read, lazily, from `files`.
        files: open; for a pipe only rows are counted, since it does not tell its size.
        name: of the files, for the bar.
        unit: what a row is.
    """
    sizes = [os.fstat(file.fileno()) for file in files]
    total = sum(size.st_size for size in sizes) if all(stat.S_ISREG(size.st_mode) for size in sizes) else None

    def done() -> int:
        return sum(file.tell() for file in files) if total else 0

    display: AbstractContextManager[Show]
    if not sys.stderr.isatty():
        display = nullcontext(_lines(done, total, name, unit))
    elif sys.stdout.isatty():
        display = nullcontext(lambda number: None)
    else:
        display = _bar(done, total, name, unit)

    def counted(show: Show) -> Iterator[Row]:
        number = 0
        for number, row in enumerate(rows, 1):
            if number % LOOK == 0:
                show(number)
            yield row
        show(number)

    with display as show:
        yield counted(show)


def _lines(done: Callable[[], int], total: int | None, name: str, unit: str) -> Show:
    started = last = time.monotonic()

    def show(number: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LINE_SECONDS:
            return
        last, share = now, done() / total if total else 0.0
        line = f"{name}: {number:,} {unit}, {number / (now - started):,.0f}/s"
        if share:
            left = timedelta(seconds=round((now - started) * (1 - share) / share))
            line += f", {share:.0%} of {total:,} bytes, {left} left"
        print(line, file=sys.stderr, flush=True)

    return show


@contextmanager
def _bar(done: Callable[[], int], total: int | None, name: str, unit: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    started = time.monotonic()
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[number]:,} {task.fields[unit]}, {task.fields[rate]:,.0f}/s", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        redirect_stdout=False,
    ) as progress:
        task = progress.add_task(name, total=total, number=0, unit=unit, rate=0.0)

        def show(number: int) -> None:
            rate = number / max(time.monotonic() - started, 1e-9)
            progress.update(task, completed=done(), number=number, rate=rate)

        yield show

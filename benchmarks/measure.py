"""How anything is timed here: every system in processes of its own, warmed up, rounds interleaved, medians."""

from __future__ import annotations

import importlib
import importlib.metadata
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

PAUSE = 0.25
"""Seconds between two turns, in which the threads of the system that just ran fall asleep."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Noted:
    """A call, and what its table row says of it, such as the settings that were found to be the best."""

    call: Call
    note: str

    def __call__(self) -> object:
        return self.call()


@dataclass(frozen=True)
class Options:
    """What a run is asked besides its setting.

    Attributes:
        threads: Of a system that uses all it may.
        pairs: Sentences and their translations, for the questions that need real ones.
        lines: How many of them.
        model: A MODEL, likewise.
    """

    threads: int
    pairs: Path
    lines: int
    model: str


@dataclass(frozen=True)
class System:
    """One way to do the work of a question.

    Attributes:
        name: As printed and as selected.
        prepare: Given a setting, returns the function that does the work once. It runs in the system's own process and
            must be importable there: a module's function, or a ``functools.partial`` of one. With several processes it
            runs in each, with ``torch.distributed`` set up.
        threads: Threads of each process.
        processes: Processes that share the work.
        peer: Whether it is someone else's.
        packages: What it stands on, whose versions are stated.
        slow: Whether it is left out unless it is named or everything is asked for.
    """

    name: str
    prepare: Callable[[str], Call]
    threads: int = 1
    processes: int = 1
    peer: bool = False
    packages: tuple[str, ...] = ()
    slow: bool = False


@dataclass(frozen=True)
class Question:
    """What a benchmark asks.

    Attributes:
        settings: The sizes it can be asked for.
        default: Those that are asked for when none is named.
        systems: Given a setting, everything that answers.
        rates: Given a setting, unit → amount of one call: an amount over the median time is a rate in ``unit/s``.
        make: Writes the files that all systems of a setting need, in a process of its own: its memory counts for none.
        check: Given what one call of each system returned, by name, column → row of text for each; raises `Failed`
            where they did not do the same work. It is asked before anything is timed.
    """

    settings: tuple[str, ...]
    default: tuple[str, ...]
    systems: Callable[[str, Options], list[System]]
    rates: Callable[[str, Options], Mapping[str, float]]
    make: Callable[[str, Options], None] | None = None
    check: Callable[[str, Options, Mapping[str, Any]], Mapping[str, Mapping[str, str]]] | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one system, one figure a round, and the most memory it held, in MiB over its processes.

    Attributes:
        note: What the system says of itself.
        figures: Column → text, as the question's check found them.
    """

    system: System
    seconds: tuple[float, ...]
    versions: Mapping[str, str]
    memory: float
    note: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The figure to quote."""
        return median(self.seconds)


class Failed(Exception):
    """A system cannot be measured; the message says why."""


class Running:
    """A system that has been started and warmed up in its own processes.

    Attributes:
        outcome: What a call returned, where that is to be checked.
    """

    def __init__(self, system: System, setting: str, checked: bool) -> None:
        self.system = system
        self._scratch = tempfile.TemporaryDirectory(prefix="benchmark-")
        context = multiprocessing.get_context("spawn")
        # Read when a library loads, so it has to be there before the process is.
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = str(system.threads)
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        try:
            for rank in range(system.processes):
                ours, theirs = context.Pipe()
                rendezvous = Path(self._scratch.name, "rendezvous")
                process = context.Process(target=_serve, args=(system, setting, checked, rank, rendezvous, theirs))
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)
        finally:
            if before is None:
                del os.environ["OMP_NUM_THREADS"]
            else:
                os.environ["OMP_NUM_THREADS"] = before
        self.memory = 0.0
        try:
            self.versions: dict[str, str]
            self.versions, self.note, self.outcome = self._answers()[0]
        except BaseException:
            self.close()
            raise

    def seconds(self, calls: int) -> float:
        """Does the work ``calls`` times; the time is that of the slowest process."""
        for pipe in self._pipes:
            pipe.send(calls)
        answers = self._answers()
        self.memory = sum(memory for _, memory in answers)
        return float(max(seconds for seconds, _ in answers))

    def _answers(self) -> list[Any]:
        """One answer of each process, in the order of ranks. The first that fails speaks for all."""
        answers: dict[Any, Any] = {}
        while len(answers) < len(self._pipes):
            for pipe in wait([pipe for pipe in self._pipes if pipe not in answers]):
                assert isinstance(pipe, Connection)
                try:
                    answers[pipe] = pipe.recv()
                except EOFError:
                    answers[pipe] = Failed("its process died")
                if isinstance(answers[pipe], Failed):
                    raise answers[pipe]
        return [answers[pipe] for pipe in self._pipes]

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _serve(system: System, setting: str, checked: bool, rank: int, rendezvous: Path, pipe: Connection) -> None:
    try:
        if system.processes > 1:
            _join(system, rank, rendezvous)
        call = system.prepare(setting)
        call()
        outcome = call()
        versions = {package: _version(package) for package in system.packages}
        pipe.send((versions, getattr(call, "note", ""), outcome if checked else None))
        del outcome
        while True:
            calls = pipe.recv()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            pipe.send((time.perf_counter() - start, _peak_memory()))
    except EOFError:
        return
    except ModuleNotFoundError as error:
        pipe.send(Failed(f"the package {error.name} is not installed"))
    except Exception as error:
        first = str(error).partition("\n")[0]  # PyTorch's messages go on for pages
        pipe.send(Failed(f"{type(error).__name__}: {first}"))


def _join(system: System, rank: int, rendezvous: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(system.threads)
    dist.init_process_group("gloo", init_method=rendezvous.as_uri(), rank=rank, world_size=system.processes)


def _version(package: str) -> str:
    # Importing a package that only another process uses would count as this one's memory.
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(importlib.import_module(package).__version__)


def _peak_memory() -> float:
    """The most memory that this process held, or one that it started and waited for, in MiB."""
    # Not getrusage for the process itself: it starts from what the parent held.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def measure(
    question: Question,
    systems: Sequence[System],
    setting: str,
    options: Options,
    *,
    rounds: int,
    round_seconds: float,
    say: Callable[[str], object],
) -> list[Timing]:
    """Times the systems against each other, turn by turn: A B C, A B C, …

    Slow drifts of a machine (heat, neighbours) then touch all of them alike. A turn is as many calls as fill
    ``round_seconds``, at least one, and the same number in every round.

    Args:
        say: Told, in one line each, which systems could not be measured.

    Raises:
        Failed: The systems did not do the same work.
    """
    if question.make:
        _elsewhere(question.make, setting, options)
    with ExitStack() as stack:
        started: dict[System, Running] = {}
        calls: dict[System, int] = {}
        for system in systems:
            try:
                running = stack.enter_context(Running(system, setting, question.check is not None))
                calls[system] = max(1, round(round_seconds / running.seconds(1)))
                started[system] = running
            except Failed as error:
                say(f"{system.name}: left out, {error}")
        outcomes = {system.name: running.outcome for system, running in started.items()}
        figures = question.check(setting, options, outcomes) if question.check else {}
        seconds: dict[System, list[float]] = {system: [] for system in started}
        for _ in range(rounds):
            for system, running in list(started.items()):
                time.sleep(PAUSE)
                try:
                    seconds[system].append(running.seconds(calls[system]) / calls[system])
                except Failed as error:
                    say(f"{system.name}: left out, {error}")
                    del started[system]
        return [
            Timing(
                system,
                tuple(seconds[system]),
                running.versions,
                running.memory,
                running.note,
                figures.get(system.name, {}),
            )
            for system, running in started.items()
        ]


def _elsewhere(make: Callable[[str, Options], None], setting: str, options: Options) -> None:
    process = multiprocessing.get_context("spawn").Process(target=make, args=(setting, options))
    process.start()
    process.join()
    if process.exitcode:
        raise Failed(f"{setting}: what it needs could not be made, as told above")

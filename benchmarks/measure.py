"""How anything is timed here: every system in processes of its own, warmed up, rounds interleaved, medians."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

PAUSE = 0.25
"""Seconds between two turns, in which the threads of the system that just ran fall asleep."""

Call = Callable[[], object]


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
    """

    name: str
    prepare: Callable[[str], Call]
    threads: int = 1
    processes: int = 1
    peer: bool = False
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """What a benchmark asks.

    Attributes:
        settings: The sizes it can be asked for.
        default: Those that are asked for when none is named.
        systems: Given a number of threads, everything that answers.
        rates: Given a setting, unit → amount of one call: an amount over the median time is a rate in ``unit/s``.
    """

    settings: tuple[str, ...]
    default: tuple[str, ...]
    systems: Callable[[int], list[System]]
    rates: Callable[[str], Mapping[str, float]]


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one system, one figure a round, and the most memory it held, in MiB over its processes."""

    system: System
    seconds: tuple[float, ...]
    versions: Mapping[str, str]
    memory: float

    @property
    def median(self) -> float:
        """The figure to quote."""
        return median(self.seconds)


class Failed(Exception):
    """A system cannot be measured; the message says why."""


class Running:
    """A system that has been started and warmed up in its own processes."""

    def __init__(self, system: System, setting: str) -> None:
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
                process = context.Process(target=_serve, args=(system, setting, rank, rendezvous, theirs))
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
            self.versions: dict[str, str] = self._answers()[0]
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


def _serve(system: System, setting: str, rank: int, rendezvous: Path, pipe: Connection) -> None:
    try:
        if system.processes > 1:
            _join(system, rank, rendezvous)
        call = system.prepare(setting)
        for _ in range(2):
            call()
        pipe.send({package: _version(package) for package in system.packages})
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
    return str(importlib.import_module(package).__version__)


def _peak_memory() -> float:
    """The most memory that this process held, or one that it started and waited for, in MiB."""
    # Not getrusage for the process itself: it starts from what the parent held.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def measure(
    systems: Sequence[System], setting: str, *, rounds: int, round_seconds: float, say: Callable[[str], object]
) -> list[Timing]:
    """Times the systems against each other, turn by turn: A B C, A B C, …

    Slow drifts of a machine (heat, neighbours) then touch all of them alike. A turn is as many calls as fill
    ``round_seconds``, at least one, and the same number in every round.

    Args:
        say: Told, in one line each, which systems could not be measured.
    """
    with ExitStack() as stack:
        started: dict[System, Running] = {}
        calls: dict[System, int] = {}
        for system in systems:
            try:
                running = stack.enter_context(Running(system, setting))
                calls[system] = max(1, round(round_seconds / running.seconds(1)))
                started[system] = running
            except Failed as error:
                say(f"{system.name}: left out, {error}")
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
            Timing(system, tuple(seconds[system]), running.versions, running.memory)
            for system, running in started.items()
        ]

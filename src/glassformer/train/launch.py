"""Starts the processes of a run: local workers on a CPU, this process alone, or one rank of torchrun's."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from glassformer.errors import UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TOKENS_A_WORKER = 1000
"""Batch tokens that keep a worker busy: with fewer, processes wait for each other more than they compute."""

Work = Callable[[Any, "Stop"], Any]


class Stop:
    """Set by the first Ctrl-C or SIGTERM: training then ends after its step, all saved. A second one interrupts.

    So does the first before training has begun, when there is nothing to save yet.
    """

    def __init__(self) -> None:
        # Shared bytes rather than an Event, whose lock a signal handler could meet held by its own thread.
        context = multiprocessing.get_context("spawn")
        self._number, self._begun = context.RawValue("b", 0), context.RawValue("b", 0)

    def is_set(self) -> bool:
        """Whether to stop."""
        return bool(self._number.value)

    @property
    def number(self) -> int:
        """That of the signal that set it, or 0."""
        return int(self._number.value)

    def begin(self) -> None:
        """Says that training has begun."""
        self._begun.value = 1

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Makes the signals of this process set it meanwhile."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = [(number, signal.signal(number, self._on_signal)) for number in SIGNALS]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: Any) -> None:
        # torchrun passes on a Ctrl-C that its ranks had from the terminal already, so there none interrupts.
        if (self._number.value or not self._begun.value) and not under_torchrun():
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            os.write(2, b"glassformer: terminated\n")
            raise SystemExit(128 + number)
        if not self._number.value:
            self._number.value = number
            if os.environ.get("RANK", "0") == "0":
                os.write(2, b"\nstopping after this step; once more stops at once and loses what is not saved\n")


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def automatic_workers(batch_tokens: int) -> int:
    """One worker for each core that this process may use, as far as the batch has work for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, max(1, batch_tokens // TOKENS_A_WORKER))


def launch(work: Work, argument: Any, workers: int) -> Any:
    """Runs ``work(argument, stop)`` in every process of the run, and returns what rank 0 returned.

    On a CPU, N processes of one thread train a little faster than one process of N threads (docs/performance.md).

    Raises:
        UserError: What a worker raised; an OSError comes through as well.
        RuntimeError: When a worker failed otherwise, or died.
    """
    stop = Stop()
    with stop.listening():
        if under_torchrun():
            return _join_torchrun(work, argument, stop)
        if workers == 1 or torch.cuda.is_available():
            return work(argument, stop)
        return _launch_local(work, argument, stop, workers)


def _join_torchrun(work: Work, argument: Any, stop: Stop) -> Any:
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    try:
        if dist.get_rank():
            logging.disable(logging.WARNING)  # rank 0 says the same
        return work(argument, stop)
    finally:
        dist.destroy_process_group()


def _launch_local(work: Work, argument: Any, stop: Stop, count: int) -> Any:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    channels = [context.Pipe(duplex=False) for _ in range(count)]
    processes = [
        context.Process(target=_worker, args=(rank, count, port, work, argument, stop, sender), daemon=True)
        for rank, (_, sender) in enumerate(channels)
    ]
    waiting: dict[Any, int] = {receiver: rank for rank, (receiver, _) in enumerate(channels)}
    answers: dict[int, Any] = {}
    failures: list[tuple[int, Exception]] = []
    try:
        with _private_start():
            for process, (_, sender) in zip(processes, channels, strict=True):
                process.start()
                sender.close()  # so that a worker's death ends its channel
        while waiting and not failures:
            for receiver in wait(list(waiting)):
                rank = waiting.pop(receiver)
                answers[rank] = answer = _receive(receiver, processes[rank], rank)
                if isinstance(answer, Exception):
                    failures.append((_precedence(answer), answer))
        if not failures:
            for process in processes:
                process.join()
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]
    return answers[0]


class _WorkerDied(RuntimeError):
    pass


_HINTS = {
    signal.SIGKILL: "; out of memory? lower train.batch_tokens or train.workers",
    signal.SIGBUS: "; is /dev/shm full? give it more room, or set train.workers to 1",
}


def _receive(receiver: Any, process: Any, rank: int) -> Any:
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        hint = _HINTS.get(-process.exitcode, "")
        return _WorkerDied(f"training worker {rank} died with exit code {process.exitcode}{hint}")


def _precedence(error: Exception) -> int:
    """A cause goes before its echo: the other workers fail for missing the one that failed first."""
    return 0 if isinstance(error, UserError | OSError) else 1 if isinstance(error, _WorkerDied) else 2


@contextmanager
def _private_start() -> Iterator[None]:
    """Starts workers that signals do not reach, and that do not import the caller's script.

    The parent alone decides when to stop, but a terminal's Ctrl-C goes to every process of its group: a mask is
    inherited from the first instruction on. A script that trains at its top level would train again in each worker.
    """
    script = sys.modules["__main__"]
    # It lifts the mask when it starts, which would be before the first worker.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _worker(rank: int, size: int, port: int, work: Work, argument: Any, stop: Stop, channel: Any) -> None:
    for number in SIGNALS:  # a library may lift the mask that this process started with
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    if rank:
        logging.disable(logging.WARNING)  # rank 0 says the same
    try:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
        result = work(argument, stop)
    except (UserError, OSError) as error:
        _give_up(channel, error)
    except Exception as error:
        if os.environ.get("GLASSFORMER_DEBUG"):
            traceback.print_exc()
        _give_up(channel, RuntimeError(f"training worker {rank}: {type(error).__name__}: {error}"))
    channel.send(result if rank == 0 else None)
    dist.destroy_process_group()


def _give_up(channel: Any, error: Exception) -> None:
    channel.send(error)
    os._exit(1)  # a regular exit would wait for the other ranks, which wait for this one


def orphaned() -> bool:
    """Whether this is a worker whose parent is gone: it must not go on writing to a run that may be resumed."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()

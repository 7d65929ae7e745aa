"""Several processes that train one model: local workers on a CPU, or the ranks of torchrun."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from glassformer.errors import UserError


class World:
    """The processes of this run, and which of them this one is. A world of one needs no process group."""

    def __init__(self) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.size = dist.get_world_size() if dist.is_initialized() else 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Replaces the tensor by its sum over all processes; the same bits everywhere."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.size > 1:
            dist.barrier()


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


class GradientBuffer:
    """A flat vector that the processes of a run sum, in place.

    Workers on one machine sum through shared memory, each its own slice for all: four times faster than a process
    group's ring over the loopback network (docs/log.md). Elsewhere it is an all-reduce. Either way every process gets
    the same bits.
    """

    def __init__(self, numel: int, world: World, device: torch.device) -> None:
        self._world = world
        self._slots: list[Tensor] = []
        if world.size > 1 and device.type == "cpu" and not under_torchrun():
            self._slots = self._shared(numel)
            self.flat = self._slots[world.rank]
        else:
            self.flat = torch.zeros(numel, device=device)

    def _shared(self, numel: int) -> list[Tensor]:
        world, nbytes = self._world, 4 * numel
        owned = SharedMemory(create=True, size=nbytes * world.size) if world.leads else None
        name = world.gather(owned.name if owned else None)[0]
        self._memory = owned or SharedMemory(name)
        whole = torch.frombuffer(self._memory.buf, dtype=torch.float32, count=numel * world.size)
        world.barrier()
        if owned:
            owned.unlink()  # it lives until the last process lets go, also when they are killed
        return list(whole.view(world.size, numel).unbind(0))

    def sum_(self) -> None:
        """Replaces the vector by its sum over all processes."""
        if not self._slots:
            self._world.sum_(self.flat)
            return
        self._world.barrier()
        share = -(-self.flat.numel() // self._world.size)
        mine = slice(self._world.rank * share, (self._world.rank + 1) * share)
        total = self._slots[0][mine].clone()
        for slot in self._slots[1:]:
            total += slot[mine]
        for slot in self._slots:
            slot[mine] = total
        self._world.barrier()


class Stop:
    """Set by the first Ctrl-C or SIGTERM: training then ends after its step, all saved. A second one kills."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def is_set(self) -> bool:
        """Whether to stop."""
        return bool(self._event.is_set())

    def listen(self) -> None:
        """Makes this process's signals set it."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: Any) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self._event.set()


Work = Callable[[Any, Stop], Any]


def launch(work: Work, argument: Any, workers: int | Literal["auto"]) -> Any:
    """Runs ``work(argument, stop)`` in every process of the world, and returns what rank 0 returned.

    On a CPU, N processes of one thread train faster than one process of N threads (docs/log.md).

    Raises:
        UserError: What a worker raised.
        RuntimeError: When a worker died.
    """
    context = mp.get_context("spawn")
    stop = Stop(context.Event())
    count = len(os.sched_getaffinity(0)) if workers == "auto" else workers
    if torch.cuda.is_available():
        count = 1
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    stop.listen()
    try:
        if under_torchrun():
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
            try:
                return work(argument, stop)
            finally:
                dist.destroy_process_group()
        if count == 1:
            return work(argument, stop)
        return _launch_local(work, argument, stop, count)
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _launch_local(work: Work, argument: Any, stop: Stop, count: int) -> Any:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = mp.get_context("spawn").SimpleQueue()
    arguments = (count, port, work, argument, stop, results)
    try:
        processes = mp.start_processes(_worker, args=arguments, nprocs=count, start_method="spawn", join=False)
        while not processes.join(grace_period=1.0):
            pass
    except mp.ProcessExitedException as error:
        if results.empty():
            raise RuntimeError(f"training worker {error.error_index} died ({error})") from None
    except mp.ProcessRaisedException as error:
        raise RuntimeError(f"training worker {error.error_index} failed: {error}") from None
    result = results.get()
    if isinstance(result, UserError | OSError):
        raise result
    return result


def _worker(rank: int, size: int, port: int, work: Work, argument: Any, stop: Stop, results: Any) -> None:
    # The parent decides when to stop; a terminal's Ctrl-C reaches every process of the group.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    try:
        result = work(argument, stop)
    except (UserError, OSError) as error:
        results.put(error)
        os._exit(1)  # the others wait for this rank; launch() ends them
    if rank == 0:
        results.put(result)
    dist.destroy_process_group()


def orphaned() -> bool:
    """Whether this is a worker whose parent is gone: it must not go on writing to a run that may be resumed."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory instead of returning it to the system after every step; elsewhere does nothing.

    Training allocates the same large tensors every step, and page faults took 15 % of the time (docs/log.md).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    m_trim_threshold, m_mmap_max = -1, -4  # glibc's malloc.h
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 1 << 30)


def best_precision(device: torch.device) -> torch.dtype:
    """bfloat16 where the hardware multiplies it natively, float32 elsewhere."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    # Private in torch, so its absence only means the plain path.
    native = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return torch.bfloat16 if native is not None and native() else torch.float32

"""What the processes of a run do together, and what each does to its machine."""

from __future__ import annotations

import ctypes
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from glassformer.train.launch import under_torchrun


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

    def shares_memory(self, device: torch.device) -> bool:
        """Whether the processes are several and hold their tensors in one machine's memory."""
        return self.size > 1 and device.type == "cpu" and not under_torchrun()

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.size > 1:
            dist.barrier()


class SharedZeros:
    """A flat vector of zeros in memory that local workers share: what one writes, all read after a barrier.

    Attributes:
        flat: The vector, float32; it lives as long as this object.
    """

    def __init__(self, numel: int, world: World) -> None:
        owned = SharedMemory(create=True, size=4 * numel) if world.leads else None
        name = world.gather(owned.name if owned else None)[0]
        self._memory = owned or SharedMemory(name)
        self.flat = torch.frombuffer(self._memory.buf, dtype=torch.float32, count=numel)
        world.barrier()
        if owned:
            owned.unlink()  # it lives until the last process lets go, also when they are killed


class GradientBuffer:
    """A flat vector that the processes of a run sum, in place.

    Workers on one machine sum through shared memory, each its own slice for all, which spares them the process
    group's ring over the loopback network (docs/log.md). Elsewhere it is an all-reduce. Either way every process gets
    the same bits.
    """

    def __init__(self, numel: int, world: World, device: torch.device) -> None:
        self._world = world
        self._slots: list[Tensor] = []
        if world.shares_memory(device):
            self._memory = SharedZeros(world.size * numel, world)
            self._slots = list(self._memory.flat.view(world.size, numel).unbind(0))
            self.flat = self._slots[world.rank]
        else:
            self.flat = torch.zeros(numel, device=device)

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


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory instead of returning it to the system after every step; elsewhere does nothing.

    Training allocates the same large tensors every step; given back, each would be faulted in again page by page.
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

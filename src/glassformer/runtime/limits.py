"""What this machine can do at best, measured: how fast it reads weights, and how fast the kernels multiply.

Decoding reads every weight once a step and multiplies it with the rows of a batch, so nothing that runs a model step by
step takes less than the longer of the two. Imports neither PyTorch nor numpy.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from glassformer.runtime import library as native

WIDTH = {"fp32": 4, "bf16": 2, "int8": 1}
"""Bytes of a weight."""

_TYPES = {"fp32": 0, "bf16": 1, "int8": 2}
_ROWS, _K, _N, _PANEL = 64, 1024, 512, 16
_SECONDS, _TRIES = 0.05, 5

# The beginning of `Kernels` in native/kernels.h, as far as it is needed.
_PRODUCT = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(native.Linear),
    native.Pointer,
    native.Pointer,
    *[ctypes.c_int] * 3,
    native.Pointer,
    ctypes.c_int,
    ctypes.c_int32,
)


class _Kernels(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("prepare", native.Pointer), ("product", _PRODUCT)]


def read_rate(size: int, threads: int) -> float:
    """Bytes a second at which the threads read `size` bytes, each its part over and over.

    What fits into a cache is read from there, as a model of that size is. The C library's `memchr` looks for a byte
    that is not there, about the fastest reader there is.
    """
    part = max(size // threads, 4096)
    library = ctypes.CDLL(None)
    library.memchr.argtypes, library.memchr.restype = [native.Pointer, ctypes.c_int, ctypes.c_size_t], native.Pointer
    parts = [_aligned(part) for _ in range(threads)]
    for address, _ in parts:
        ctypes.memset(address, 1, part)  # untouched pages would all be the same one

    def read(thread: int) -> None:
        library.memchr(parts[thread][0], 2, part)

    return part * threads * _calls_a_second(read, threads)


def product_rate(precision: str, threads: int, kernels: str) -> float:
    """Operations a second (a multiplication and an addition are two) of large products, all within the caches.

    Args:
        kernels: the instruction set, one of `library.kernel_sets`.
    """
    table = ctypes.cast(native.library().gf_kernels(kernels.encode()), ctypes.POINTER(_Kernels)).contents
    held = []

    def zeros(size: int) -> int:
        held.append(_aligned(size))
        return held[-1][0]

    works = []
    for _ in range(threads):
        weight, inputs, y = zeros(_N * _K * WIDTH[precision]), zeros(_ROWS * _K * 4), zeros(_ROWS * _N * 4)
        scale, bias, sums, scales = zeros(_N * 4), zeros(_N * 4), zeros(_N * 4), zeros(_ROWS * 4)
        linear = native.Linear(weight=weight, scale=scale, bias=bias, row_sums=sums, n=_N, k=_K, type=_TYPES[precision])
        works.append((linear, inputs, scales, y))

    def multiply(thread: int) -> None:
        linear, inputs, scales, y = works[thread]
        table.product(linear, inputs, scales, _ROWS, 0, _N // _PANEL, y, _N, 0)

    return 2 * _ROWS * _K * _N * threads * _calls_a_second(multiply, threads)


def _aligned(size: int) -> tuple[int, ctypes.Array[ctypes.c_char]]:
    """The address of so many zeros, at a multiple of 64, and what keeps them."""
    buffer = ctypes.create_string_buffer(size + 64)
    return -(-ctypes.addressof(buffer) // 64) * 64, buffer


def _calls_a_second(work: Callable[[int], None], threads: int) -> float:
    """How often all threads do their work in a second, in the best of a few tries: a limit is what is possible."""
    calls = 1

    def run(thread: int) -> None:
        for _ in range(calls):
            work(thread)

    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        tries = 0
        while tries < _TRIES:
            start = time.perf_counter()
            list(pool.map(run, range(threads)))
            taken = time.perf_counter() - start
            if taken < _SECONDS:
                calls *= 2
                continue
            best, tries = max(best, calls / taken), tries + 1
    return best

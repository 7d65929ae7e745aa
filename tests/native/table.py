"""The table of native/kernels.h as numpy functions, and matrices in the layout of native/abi.h."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_void_p

import numpy as np

from glassformer.runtime import library
from glassformer.runtime.arrays import PANEL
from glassformer.runtime.pack import GROUP, TYPES

INPUTS = {"fp32": np.float32, "bf16": np.uint16, "int8": np.uint8}


class Candidate(ctypes.Structure):
    _fields_ = [("logit", c_float), ("id", c_int32)]


def _function(*arguments: type) -> type:
    return ctypes.CFUNCTYPE(None, *arguments)


class _Table(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("prepare", _function(c_int32, c_void_p, c_int32, c_int32, c_int32, c_void_p, c_void_p)),
        (
            "product",
            _function(
                POINTER(library.Linear), c_void_p, c_void_p, c_int32, c_int32, c_int32, c_void_p, c_int32, c_int32
            ),
        ),
        ("layer_norm", _function(c_void_p, c_int32, c_int32, POINTER(library.Norm), c_void_p)),
        ("add", _function(c_void_p, c_void_p, c_int32)),
        ("embed", _function(POINTER(library.Linear), c_int32, c_float, c_void_p)),
        ("transpose_keys", _function(c_void_p, c_int32, c_int32, c_int32, c_void_p)),
        (
            "attend",
            _function(
                *(c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_int32),
                *(c_int32, c_int32, c_void_p, c_int32, c_void_p),
            ),
        ),
        ("attend_scattered", _function(*(c_void_p, c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p, c_void_p))),
        ("exponential_sum", _function(c_void_p, c_int32, c_void_p, c_void_p)),
        ("top", _function(c_void_p, c_int32, c_int32, POINTER(Candidate), c_int32)),
        ("turn", _function(c_void_p, c_void_p, c_void_p, c_int32)),
        ("gate", _function(c_void_p, c_int32, c_int32)),
        ("balance", _function(c_void_p, c_int32, c_void_p, c_void_p, c_int32, c_void_p)),
    ]


class Matrix:
    """A matrix [n, k] of whole panels, as the product of one type takes it; int8 is given by q and its scales."""

    def __init__(self, kind: str, weight: np.ndarray, bias: np.ndarray, scale: np.ndarray | None = None) -> None:
        n, k = weight.shape
        group = GROUP[kind]
        panels = weight.reshape(n // PANEL, PANEL, k // group, group).transpose(0, 2, 1, 3)
        self.kind, self.n, self.k = kind, n, k
        self.kept = [aligned(panels), aligned(bias)]
        self.linear = library.Linear(
            weight=self.kept[0].ctypes.data, bias=self.kept[1].ctypes.data, n=n, k=k, type=TYPES[kind]
        )
        if kind == "int8":
            self.kept += [aligned(scale), aligned(weight.sum(1, dtype=np.int32))]
            self.linear.scale, self.linear.row_sums = self.kept[2].ctypes.data, self.kept[3].ctypes.data


class KernelSet:
    """One instruction set's kernels; whatever an output does not write stays the NaN it was."""

    def __init__(self, name: str) -> None:
        pointer = library.library().gf_kernels(name.encode())
        assert pointer, name
        self.table = _Table.from_address(pointer)
        assert self.table.name == name.encode()

    def prepare(self, kind: str, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Of x (rows, stride), the first k columns: inputs (rows, k) and scales (rows,)."""
        rows, stride = x.shape
        inputs, scales = filled((rows, k), INPUTS[kind]), filled(rows)
        self.table.prepare(TYPES[kind], at(x), rows, stride, k, at(inputs), at(scales))
        return inputs, scales

    def product(
        self, matrix: Matrix, prepared: tuple[np.ndarray, np.ndarray], panels=None, activation: int = 0, slack: int = 0
    ) -> np.ndarray:
        inputs, scales = prepared
        first, last = panels or (0, matrix.n // PANEL)
        y = filled((len(inputs), matrix.n + slack))
        self.table.product(
            matrix.linear, at(inputs), at(scales), len(inputs), first, last, at(y), y.shape[1], activation
        )
        return y

    def layer_norm(
        self, x: np.ndarray, d: int, gain: np.ndarray, bias: np.ndarray, eps: float, rms: bool = False
    ) -> np.ndarray:
        out = filled(x.shape)
        norm = library.Norm(gain=at(gain), bias=at(bias), eps=eps, rms=rms)
        self.table.layer_norm(at(x), d, len(x), norm, at(out))
        return out

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        self.table.add(at(x), at(y), len(y))

    def turn(self, x: np.ndarray, angles: np.ndarray) -> np.ndarray:
        out = aligned(x)
        cosines, sines = aligned(np.cos(angles).astype(np.float32)), aligned(np.sin(angles).astype(np.float32))
        self.table.turn(at(out), at(cosines), at(sines), len(angles))
        return out

    def gate(self, x: np.ndarray, activation: int) -> np.ndarray:
        out = aligned(x)
        self.table.gate(at(out), len(x) // 2, activation)
        return out

    def embed(self, matrix: Matrix, id_: int, factor: float) -> np.ndarray:
        out = filled(matrix.k)
        self.table.embed(matrix.linear, id_, factor, at(out))
        return out

    def transpose_keys(self, keys: np.ndarray, head_size: int) -> np.ndarray:
        out = filled((-(-len(keys) // PANEL), head_size, PANEL))
        self.table.transpose_keys(at(keys), len(keys), keys.shape[1], head_size, at(out))
        return out

    def attend(self, q: np.ndarray, keys: np.ndarray, values: np.ndarray, head_size: int, slack: int = 0) -> np.ndarray:
        """q (n, stride), keys and values (s, stride), of which the head is the first `head_size` columns."""
        transposed = self.transpose_keys(keys, head_size)
        out, scratch = filled((len(q), head_size + slack)), filled(4 * PANEL * len(transposed))
        self.table.attend(
            *(at(q), len(q), q.shape[1], at(transposed), at(values), values.shape[1]),
            *(len(keys), head_size, at(out), out.shape[1], at(scratch)),
        )
        return out

    def attend_scattered(self, q: np.ndarray, past: list[np.ndarray], key_offset: int, value_offset: int) -> np.ndarray:
        out, scratch = filled(len(q)), filled(-(-len(past) // PANEL) * PANEL)
        pointers = (c_void_p * len(past))(*map(at, past))
        self.table.attend_scattered(
            *(at(q), pointers, len(past), key_offset, value_offset, len(q), at(out), at(scratch))
        )
        return out

    def exponential_sum(self, logits: np.ndarray) -> tuple[float, float]:
        largest, total = c_float(np.nan), c_float(np.nan)
        self.table.exponential_sum(at(logits), len(logits), ctypes.byref(largest), ctypes.byref(total))
        return largest.value, total.value

    def top(self, chunks: list[np.ndarray], count: int) -> list[tuple[float, int]]:
        """The best of chunks that lie one behind the other, merged as search does."""
        best = (Candidate * count)(*[Candidate(-np.inf, -1)] * count)
        base = 0
        for logits in chunks:
            self.table.top(at(logits), len(logits), base, best, count)
            base += len(logits)
        return [(each.logit, each.id) for each in best if each.id >= 0]


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy at a multiple of 64 bytes, as in a packed file."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def filled(shape, dtype: type = np.float32) -> np.ndarray:
    """What no kernel may read, and what shows where none has written."""
    return aligned(np.full(shape, np.nan if dtype is np.float32 else 0xA5, dtype))


def at(array: np.ndarray) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data

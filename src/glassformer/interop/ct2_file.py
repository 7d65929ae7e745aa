"""CTranslate2's ``model.bin``: named arrays and scalars, perhaps quantised, and aliases of them.

Little-endian. Strings are a 16-bit length, then that many bytes, the last one 0::

    u32 version; from 2 on: string spec, u32 revision; u32 count of variables, and for each
        string name, u8 rank, u32 sizes; from 4 on: u8 type, u32 bytes; before: u8 bytes of an item, u32 items; data
    from 3 on: u32 count of aliases, and for each two strings: the alias and what it stands for
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from glassformer.errors import UserError

NEWEST = 6
_TYPES = ("<f4", "i1", "<i2", "<i4", "<f2", "bf16")
"""By number, from version 4 on; before, the size of an item tells."""
_BY_SIZE = {1: "i1", 2: "<i2", 4: "<f4"}


class Variables(Mapping[str, Tensor]):
    """The arrays of a ``model.bin``, each read and dequantised to float32 when it is asked for.

    Attributes:
        spec: Name of the kind of model.
        scalars: The variables without dimensions.
    """

    def __init__(self, file: Path) -> None:
        """Reads names and places.

        Raises:
            UserError: The file is missing, truncated, of a newer version, or something else.
        """
        try:
            with open(file, "rb") as handle:
                self._data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise UserError(f"{file.parent}: has no {file.name}, which holds the weights") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{file}: cannot be read ({error})") from None
        self._arrays: dict[str, tuple[str, tuple[int, ...], int]] = {}
        self.scalars: dict[str, int | float] = {}
        self._at = 0
        try:
            self._read(file)
        except (struct.error, UnicodeDecodeError, IndexError, KeyError, ValueError):
            raise UserError(f"{file}: truncated, or no CTranslate2 model") from None

    def _read(self, file: Path) -> None:
        version = self._number("I")
        if not 1 <= version <= NEWEST:
            raise UserError(f"{file}: CTranslate2's format {version}, and known are 1 to {NEWEST}")
        self.spec = self._string() if version >= 2 else "TransformerBase"
        self.revision = self._number("I") if version >= 2 else 1
        for _ in range(self._number("I")):
            name = self._string()
            shape = tuple(self._number("I") for _ in range(self._number("B")))
            if version >= 4:
                kind, size = _TYPES[self._number("B")], self._number("I")
            else:
                width = self._number("B")
                kind, size = _BY_SIZE[width], width * self._number("I")
            if self._at + size > len(self._data):
                raise ValueError
            if shape:
                self._arrays[name] = kind, shape, self._at
            else:
                self.scalars[name] = self._values(kind, (), self._at).item()
            self._at += size
        for _ in range(self._number("I") if version >= 3 else 0):
            alias, name = self._string(), self._string()
            for suffix in ("", "_scale"):  # an alias of a quantised array is one of its scale, too
                for held in (self._arrays, self.scalars):
                    if name + suffix in held:
                        held[alias + suffix] = held[name + suffix]  # type: ignore[assignment]

    def _number(self, code: str) -> int:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += struct.calcsize(code)
        return int(value)

    def _string(self) -> str:
        length = self._number("H")
        self._at += length
        return self._data[self._at - length : self._at].rstrip(b"\0").decode()

    def _values(self, kind: str, shape: tuple[int, ...], at: int) -> np.ndarray:
        count = int(np.prod(shape, dtype=np.int64))
        if kind == "bf16":
            halves = np.frombuffer(self._data, "<u2", count, at)
            return (halves.astype(np.uint32) << 16).view(np.float32).reshape(shape)
        return np.frombuffer(self._data, kind, count, at).reshape(shape)

    def __getitem__(self, name: str) -> Tensor:
        values = self._values(*self._arrays[name]).astype(np.float32)
        scale = f"{name}_scale"
        if scale in self._arrays:  # one a row
            values /= self._values(*self._arrays[scale]).astype(np.float32)[:, None]
        elif scale in self.scalars:
            values /= np.float32(self.scalars[scale])
        return torch.from_numpy(values)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, without reading it."""
        return self._arrays[name][1]

    def exact(self, name: str) -> bool:
        """Whether an array is stored in float32."""
        return self._arrays[name][0] == "<f4"

    def same(self, one: str, other: str) -> bool:
        """Whether two names stand for the same array, or for equal ones."""
        a, b = self._arrays[one], self._arrays[other]
        return a == b or (a[1] == b[1] and torch.equal(self[one], self[other]))

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._arrays if not name.endswith("_scale"))

    def __len__(self) -> int:
        return sum(1 for _ in self)

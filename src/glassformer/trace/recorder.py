"""Records every named internal of one call."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from glassformer.nn.tap import Tap, _recorder

if TYPE_CHECKING:
    from glassformer.nn.tap import Recorder


class Trace(Mapping[str, Tensor]):
    """Name → tensor, for every tap that the call passed; ``axes(name)`` tells what the dimensions are.

    A tap passed several times, as in decoding step by step, keeps its values in ``steps(name)``; ``trace[name]`` is the
    last of them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names = {id(module): name for name, module in model.named_modules() if isinstance(module, Tap)}
        self._axes: dict[str, str] = {}
        self._values: dict[str, list[Tensor]] = {}

    def see(self, tap: Tap, value: Tensor) -> Tensor:
        name = self._names.get(id(tap))
        if name is not None:  # another model may run inside the same block
            self._axes[name] = tap.axes
            self._values.setdefault(name, []).append(value.detach())
        return value

    def __getitem__(self, name: str) -> Tensor:
        return self._values[name][-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def axes(self, name: str) -> str:
        """What the dimensions of ``trace[name]`` are, such as ``"B H T S"``."""
        return self._axes[name]

    def steps(self, name: str) -> list[Tensor]:
        """Every value that passed this tap, in order."""
        return self._values[name]

    def manifest(self) -> dict[str, dict[str, Any]]:
        """Of each tensor its axes, shape, the part that it is recorded in, and the names of what it is computed from.

        Parts and parents are told of whole models, which run once more over two tokens to find out.
        """
        told = {name: {"axes": self.axes(name), "shape": list(self[name].shape)} for name in self}
        if hasattr(self._model, "config") and hasattr(self._model, "taps"):
            from glassformer.trace.manifest import manifest

            for name, tensor in manifest(self._model).tensors.items():
                if name in told:
                    told[name] |= {"axes": tensor.axes, "part": tensor.part, "parents": list(tensor.parents)}
        return told

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes every tensor into a safetensors file, whose metadata holds the manifest as JSON, as ``manifest``."""
        from glassformer.store import save_tensors

        tensors = {name: value.to("cpu", copy=True).contiguous() for name, value in self.items()}
        save_tensors(tensors, Path(path), {"manifest": json.dumps(self.manifest(), ensure_ascii=False)})

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from glassformer.trace.notebook import to_html

        return to_html(self)


@contextmanager
def record(model: nn.Module) -> Iterator[Trace]:
    """Captures the named internals of what runs inside the block, in this thread only.

    Attention takes its explicit path meanwhile, since fused kernels never hold the scores.

    Args:
        model: Its ``taps()`` list what can be seen.
    """
    trace = Trace(model)
    recorder: Recorder = trace
    token = _recorder.set(recorder)
    try:
        yield trace
    finally:
        _recorder.reset(token)

"""Named internals: a ``Tap`` marks a tensor so that it can be recorded by name, at no cost when nobody looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor, nn


class Recorder(Protocol):
    """Whoever wants to see tapped tensors."""

    def see(self, tap: Tap, value: Tensor) -> Tensor: ...


# A ContextVar rather than a global: two threads can each record their own call.
_recorder: ContextVar[Recorder | None] = ContextVar("glassformer_recorder", default=None)


def recording() -> bool:
    """Whether a recorder looks at the current call."""
    return _recorder.get() is not None


_backwards: ContextVar[bool] = ContextVar("glassformer_backwards", default=False)


def reading_backwards() -> bool:
    """Whether the current call reads the last token first."""
    return _backwards.get()


@contextmanager
def backwards() -> Iterator[None]:
    """What is inside reads the last token first; a recorder sees it in the order of the text all the same."""
    token = _backwards.set(not _backwards.get())
    try:
        yield
    finally:
        _backwards.reset(token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Nothing inside is seen by a recorder, such as what is only computed anew."""
    token = _recorder.set(None)
    try:
        yield
    finally:
        _recorder.reset(token)


class Tap(nn.Module):
    """The identity, with a name (its place in the module tree) and axes.

    Args:
        axes: One letter for each dimension, such as ``"B H T S"``; see the legend of ``glassformer.nn``.
    """

    def __init__(self, axes: str) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, value: Tensor) -> Tensor:
        recorder = _recorder.get()
        if recorder is None:
            return value
        if _backwards.get():
            recorder.see(self, value.flip([at for at, axis in enumerate(self.axes.split()) if axis in "TS"]))
            return value
        return recorder.see(self, value)

    def extra_repr(self) -> str:
        return repr(self.axes)


def taps(model: nn.Module) -> dict[str, str]:
    """Lists the tapped internals of a model, name → axes, in the order of the module tree."""
    return {name: module.axes for name, module in model.named_modules() if isinstance(module, Tap)}

"""One text or image through one model, with everything recorded."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from glassformer.decoding import BEAM_SIZE, LENGTH_PENALTY
from glassformer.explore.models import Models, Opened
from glassformer.explore.problem import Busy, Missing, Problem
from glassformer.explore.reading import RunRequest, Source, read
from glassformer.explore.writing import Written, write
from glassformer.trace.recorder import Trace, record

MOST_TOKENS = 512
"""Of either side."""
MOST_BEAM = 16
KEPT_RUNS, KEPT_BYTES = 8, 1 << 30
WAITING = 8
"""Requests that may wait for the one that computes."""


@dataclass
class Run:
    """What is kept of a run: its answer, and its tensors by name."""

    answer: dict[str, Any]
    opened: Opened
    tensors: dict[str, Tensor]
    axes: dict[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Memory that its tensors hold."""
        return sum(
            {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self.tensors.values()}.values()
        )

    def tensor(self, name: str) -> Tensor:
        """One of its tensors.

        Raises:
            Missing: There is none of that name.
        """
        if name not in self.tensors:
            raise Missing(f"no tensor {name!r} in this run; GET /api/models/{self.opened.name} names them")
        return self.tensors[name]


class Gate:
    """Lets one compute at a time, and a few wait."""

    def __init__(self, waiting: int = WAITING) -> None:
        self._lock, self._count, self._most = threading.Lock(), threading.Semaphore(waiting + 1), waiting

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Waits for its turn.

        Raises:
            Busy: Too many wait already.
        """
        if not self._count.acquire(blocking=False):
            raise Busy(f"{self._most} requests are waiting already; try again in a moment")
        try:
            with self._lock:
                yield
        finally:
            self._count.release()


class Runs:
    """Makes runs, and keeps the last few."""

    def __init__(
        self, models: Models, kept: int = KEPT_RUNS, kept_bytes: int = KEPT_BYTES, mark: str | None = None
    ) -> None:
        self.models, self.kept, self.kept_bytes = models, kept, kept_bytes
        # A page that was open before the server was started again must not take another's run for its own.
        self.mark = secrets.token_hex(4) if mark is None else mark
        self.gate = Gate()
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._lock, self._numbers = threading.Lock(), itertools.count(1)

    def __getitem__(self, name: str) -> Run:
        with self._lock:
            if name not in self._runs:
                raise Missing(f"no run {name!r} any more: the last {self.kept} are kept; run the text again")
            self._runs.move_to_end(name)
            return self._runs[name]

    def make(self, request: RunRequest) -> Run:
        """Runs a request and keeps the result.

        Raises:
            Problem: It cannot be done; the line says why.
        """
        opened = self.models[request.model]
        with self.gate(), torch.no_grad():
            run = perform(opened, request, f"run-{self.mark}-{next(self._numbers)}")
        with self._lock:
            self._runs[run.answer["id"]] = run
            while len(self._runs) > 1 and (
                len(self._runs) > self.kept or sum(each.nbytes for each in self._runs.values()) > self.kept_bytes
            ):
                self._runs.popitem(last=False)
        return run


def perform(opened: Opened, request: RunRequest, name: str) -> Run:
    """One run: the text read, a target written or given, and all of it read once more, recorded.

    Raises:
        Problem: As `Runs.make`.
    """
    started = time.perf_counter()
    source = read(opened, request, MOST_TOKENS)
    alpha = LENGTH_PENALTY if request.length_penalty is None else request.length_penalty
    beam_size = _beam_size(opened, request)
    written = write(opened, request, source, beam_size, alpha, MOST_TOKENS)
    before = time.perf_counter()
    trace = _recorded(opened, source, written)
    forward = time.perf_counter() - before
    answer: dict[str, Any] = {
        "id": name,
        "request": request.model_dump(by_alias=True, exclude_none=True),
        "model": opened.name,
        "source": source.tokens,
        "source_mask": source.mask,
        "tensors": _told(opened, trace),
        **written.told(opened, source, trace, alpha),
    }
    if source.image is not None:
        answer["image"] = source.image
    answer["seconds"] = {"forward": forward, "total": time.perf_counter() - started}
    axes = {tensor["name"]: tensor["axes"] for tensor in answer["tensors"]}
    return Run(answer, opened, {each: trace[each] for each in trace}, axes)


def _beam_size(opened: Opened, request: RunRequest) -> int:
    default = BEAM_SIZE if opened.config.kind == "encoder-decoder" else 1
    beam_size = default if request.beam_size is None else request.beam_size
    if not 1 <= beam_size <= MOST_BEAM:
        raise Problem(f"beam_size {beam_size}: must be from 1 to {MOST_BEAM}")
    return beam_size


def _recorded(opened: Opened, source: Source, written: Written) -> Trace:
    """The one pass whose numbers are shown."""
    model = opened.model
    with record(model) as trace:
        if opened.config.kind == "encoder-decoder":
            model(source.inputs, torch.tensor([written.target]), source.mask_BS)
        elif opened.config.kind == "decoder":
            model(torch.tensor([written.target]))
        else:
            model(source.inputs, source.mask_BS)
    return trace


def _told(opened: Opened, trace: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    known = opened.manifest.tensors
    return [
        {
            "name": name,
            "axes": known[name].axes,
            "shape": list(trace[name].shape),
            "parents": list(known[name].parents),
            "part": known[name].part,
        }
        for name in known
        if name in trace
    ]

"""Checkpoints of a run: each a MODEL directory, with what a resumed run needs beside it."""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from glassformer.errors import UserError
from glassformer.header import Framing, Translation
from glassformer.models.model import Model
from glassformer.store import Loaded, atomic_directory, load_model, save_tensors, write_model
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.optim import Optimizer
from glassformer.train.ready import saved_steps

log = logging.getLogger(__name__)

STATE = "training_state"


@dataclass
class Progress:
    """Where a run stands.

    Attributes:
        step: Optimizer steps done.
        epoch: Current pass over the data, from 0.
        batch: Batches of this epoch already used.
        epoch_began: The step at which this epoch began, which decides how it is segmented.
        best: Highest dev score so far (BLEU, accuracy, or the negated dev loss); ``None`` before the first evaluation.
        best_step: Step of that score; where several have it, of the one with the lowest dev loss, the first of equals.
        stale: Evaluations since then.
        seconds: Time spent training, over all resumed parts.
        history: One entry for each evaluation.
        data_bytes: How large the files of the data were, by key of the data section.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    epoch_began: int = 0
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    data_bytes: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint as it came from disk.

    Attributes:
        loaded: The model.
        progress: Where the run stood.
        optimizer: What ``Optimizer.state`` gave.
        rng_states: The state of torch's generator on each rank.
    """

    loaded: Loaded
    progress: Progress
    optimizer: dict[str, Tensor]
    rng_states: list[Tensor]


class Checkpoints:
    """The checkpoints of one run folder: ``step-N/`` for the newest few, ``last/`` and ``best/``.

    ``last`` and ``best`` hold hard links to the files of a step, so they cost no space and outlive that step's folder.
    """

    def __init__(self, run: Path, keep: int) -> None:
        self.run = run
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps with a whole checkpoint, oldest first."""
        return saved_steps(self.run)

    def newest(self) -> Checkpoint:
        """Reads the newest checkpoint that is whole; training on from an older one leads to the same end.

        Raises:
            UserError: When none is.
        """
        first: UserError | None = None
        for step in reversed(self.steps()):
            try:
                return read_checkpoint(self.directory(step))
            except UserError as error:
                log.warning("%s; resuming from an older checkpoint", error)
                first = first or error
        raise first or UserError(f"{self.run}: nothing to resume: it has no checkpoint; leave --resume out to start")

    def directory(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.run / f"step-{step}"

    def save(
        self,
        model: Model,
        tokenizer: Tokenizer | None,
        translation: Translation | None,
        framing: Framing | None,
        optimizer: Optimizer,
        progress: Progress,
        rng_states: list[Tensor],
    ) -> None:
        """Writes a checkpoint, whole or not at all, and drops the oldest ones."""
        target = self.directory(progress.step)
        with atomic_directory(target) as scratch:
            write_model(scratch, model, tokenizer, translation, framing=framing)
            state = scratch / STATE
            state.mkdir()
            tensors = {f"optimizer/{name}": value for name, value in optimizer.state().items()}
            tensors |= {f"rng.{rank}": rng for rank, rng in enumerate(rng_states)}
            save_tensors(tensors, state / "state.safetensors")
            (state / "progress.json").write_text(json.dumps(asdict(progress), indent=1), encoding="utf-8")
        for step in self.steps()[: -self.keep]:
            shutil.rmtree(self.directory(step))

    def link(self, name: str, step: int) -> None:
        """Makes ``name`` (``last`` or ``best``) a copy of a step's checkpoint, by hard links."""
        source = self.directory(step)
        with atomic_directory(self.run / name) as scratch:
            for file in source.rglob("*"):
                place = scratch / file.relative_to(source)
                if file.is_dir():
                    place.mkdir(parents=True, exist_ok=True)
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(file, place)
                except OSError:  # a file system without hard links
                    shutil.copy2(file, place)


def read_checkpoint(directory: Path) -> Checkpoint:
    """Reads one checkpoint.

    Raises:
        UserError: When anything of it is missing or damaged.
    """
    loaded = load_model(directory)
    state = directory / STATE
    try:
        progress = Progress(**json.loads((state / "progress.json").read_text(encoding="utf-8")))
        tensors = load_file(state / "state.safetensors")
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise UserError(f"{state}: missing or damaged ({error})") from None
    rng_states = [tensors.pop(f"rng.{rank}") for rank in range(sum(name.startswith("rng.") for name in tensors))]
    optimizer = {name.removeprefix("optimizer/"): value for name, value in tensors.items()}
    return Checkpoint(loaded, progress, optimizer, rng_states)

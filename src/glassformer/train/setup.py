"""What a run starts from: its folder, and the model to go on with."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import torch

from glassformer import interop
from glassformer.config import ModelConfig
from glassformer.data.corpus import Pair
from glassformer.errors import UserError
from glassformer.models.model import Model
from glassformer.store import Loaded, load_model, recover_directories
from glassformer.train.checkpoint import Checkpoint
from glassformer.train.config import DataSection, TrainConfig, changes, load_config
from glassformer.train.distributed import GradientBuffer, World
from glassformer.train.examples import read_corpus
from glassformer.train.masking import Masking
from glassformer.train.ready import data_bytes


def own_run_folder(run: Path) -> IO[str]:
    """Makes the run folder this process's own until the returned file is closed, and mends what a kill left in it.

    Raises:
        UserError: When another training owns it.
    """
    run.mkdir(parents=True, exist_ok=True)
    lock = (run / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{run}: another training is writing here; choose another train.output") from None
    recover_directories(run)
    return lock


def check_resumed(run: Path, config: TrainConfig, resumed: Checkpoint, processes: int) -> list[str]:
    """Refuses a config that a checkpoint cannot follow.

    Returns:
        A line for each value that is new or text that changed, since from there on the run is another one.
    """
    ranks = len(resumed.rng_states)
    if ranks != processes:
        raise UserError(
            f"{run}: was trained by {ranks} processes, and this run has {processes}; set train.workers to {ranks}"
        )
    saved = run / "config.yaml"
    if not saved.exists():
        return []
    changed = changes(load_config(saved), config)
    changed.pop("train.output", None)  # the same folder by another path
    for key, (old, new) in changed.items():
        if key.split(".")[0] in ("model", "tokenizer") or key == "objective.type":
            raise UserError(
                f"{saved}: {key} is {old!r}, and {new!r} does not fit the checkpoints; "
                "set it back, or start anew with another train.output"
            )
    notes = [f"{key} is now {new!r}, was {old!r}" for key, (old, new) in changed.items()]
    before, now = resumed.progress.data_bytes, data_bytes(config.data)
    edited = [f"data.{key}" for key in before if before[key] != now[key] and f"data.{key}" not in changed]
    notes += [f"the text of {key} was changed since step {resumed.progress.step}" for key in edited]
    if any(key.startswith("data.") for key in (*changed, *edited)):
        notes.append(
            f"other data from step {resumed.progress.step} on: not the run that it would have been; start anew "
            "with another train.output, and model.from to keep the weights, where that matters"
        )
    return notes


def start_of(config: TrainConfig, resumed: Loaded | None) -> Loaded | None:
    """The model to go on with: a checkpoint's, or the one that the config names, of any format; None for a new one."""
    if resumed is not None or "from" not in config.model:
        return resumed
    path = Path(config.model["from"])
    name = interop.format_of(path)
    return load_model(path) if name is None else interop.load(path, name)


def masking_of(data: DataSection, pairs: Sequence[Pair]) -> Masking | None:
    """What draws the masked pairs of each epoch; None where the config wants none."""
    if not data.masked_share:
        return None
    return Masking(pairs, read_corpus(data.mask_terms, data) if data.mask_terms else [], data.masked_share)


def longest_example(config: ModelConfig, limit: int) -> int:
    """The most tokens on a side of an example: the limit, or the model's positions if those are fewer."""
    return min([limit, *(stack.max_len for _, stack in config.stacks if stack.max_len is not None)])


def gradient_buffer(model: Model, extra: int, world: World, device: torch.device) -> GradientBuffer:
    """One buffer for all gradients: zeroed, summed over processes, measured and clipped in one call each.

    Args:
        extra: Numbers behind the gradients that are summed with them.
    """
    parameters = list(model.parameters())
    buffer = GradientBuffer(sum(p.numel() for p in parameters) + extra, world, device)
    offset = 0
    for parameter in parameters:
        parameter.grad = buffer.flat[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()
    return buffer

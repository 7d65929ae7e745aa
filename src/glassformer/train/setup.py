"""What a run starts from: its folder, and the model and tokenizer to train."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import torch

from glassformer.config import ModelConfig
from glassformer.data.corpus import Pair
from glassformer.errors import UserError
from glassformer.families import build
from glassformer.models.seq2seq import Seq2Seq
from glassformer.store import Loaded, Translation, load_model, recover_directories
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.checkpoint import Checkpoint
from glassformer.train.config import DataSection, TrainConfig, changes, load_config
from glassformer.train.distributed import GradientBuffer, World
from glassformer.train.examples import check_tokenizer, make_tokenizer, read_corpus
from glassformer.train.masking import Masking


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
        A line for each value that is new, since from there on the run is another one.
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
        if key.split(".")[0] in ("model", "tokenizer"):
            raise UserError(
                f"{saved}: {key} is {old!r}, and {new!r} does not fit the checkpoints; "
                "set it back, or start anew with another train.output"
            )
    return [f"{key} is now {new!r}, was {old!r}" for key, (old, new) in changed.items()]


def model_to_train(
    config: TrainConfig, translation: Translation, resumed: Loaded | None, pairs: Sequence[Pair]
) -> tuple[Tokenizer, Seq2Seq]:
    """The model and tokenizer to go on with, or new ones.

    Args:
        resumed: A checkpoint's; otherwise the config says what to build or to start from.
        pairs: What a new tokenizer is learnt from.

    Raises:
        UserError: When the model was trained for another translation, or its tokenizer lacks a token that this needs.
    """
    start = load_model(config.model["from"]) if resumed is None and "from" in config.model else resumed
    if start is None:
        tokenizer = make_tokenizer(config.tokenizer, pairs, translation)
        torch.manual_seed(config.train.seed)
        return tokenizer, build(config.model_config_for(tokenizer.vocab_size))
    if start.translation not in (None, translation):
        raise UserError(
            f"{start.path}: was trained for {start.translation}, but data says {translation}; "
            "set data.source, data.target and data.both_directions to the former"
        )
    check_tokenizer(start.tokenizer, translation, start.path)
    return start.tokenizer, start.model


def masking_of(data: DataSection, pairs: Sequence[Pair]) -> Masking | None:
    """What draws the masked pairs of each epoch; None where the config wants none."""
    if not data.masked_share:
        return None
    return Masking(pairs, read_corpus(data.mask_terms, data) if data.mask_terms else [], data.masked_share)


def longest_example(config: ModelConfig, limit: int) -> int:
    """The most tokens on a side of an example: the limit, or the model's positions if those are fewer."""
    return min([limit, *(stack.max_len for _, stack in config.stacks if stack.max_len is not None)])


def gradient_buffer(model: Seq2Seq, extra: int, world: World, device: torch.device) -> GradientBuffer:
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

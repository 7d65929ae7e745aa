"""What can be said of a run before anything slow is loaded: config, run folder, and whether the data exist."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glassformer.errors import UserError
from glassformer.train.config import Corpus, DataSection, TrainConfig, load_config

DATA = ("train", "dev", "mask_terms")
"""Keys of the data section that name files."""
_STEP = re.compile(r"step-(\d+)")


def ready(
    config: str | os.PathLike[str] | Mapping[str, Any], overrides: Mapping[str, Any] | None = None, *, resume: bool
) -> TrainConfig:
    """Reads a config and checks what needs no model.

    Raises:
        UserError: On a mistake in the config, a file of the data that is not there, a run folder that holds a run
            already, or one to resume that holds none.
    """
    resolved = load_config(config, overrides).resolved()
    run = Path(resolved.train.output)
    steps = saved_steps(run)
    if steps and not resume:
        raise UserError(f"{run}: holds a run at step {steps[-1]}; --resume goes on, or choose another train.output")
    if resume and not steps:
        raise UserError(f"{run}: nothing to resume: it has no checkpoint; leave --resume out to start")
    for key in DATA:
        for file in _files(getattr(resolved.data, key)):
            if not os.path.exists(file):
                raise UserError(
                    f"{file}: cannot read it: No such file or directory; data.{key} is looked for from where you are"
                )
    return resolved


def saved_steps(run: Path) -> list[int]:
    """Steps with a whole checkpoint, oldest first."""
    found = [_STEP.fullmatch(path.name) for path in run.glob("step-*")]
    return sorted(int(match[1]) for match in found if match)


def data_bytes(data: DataSection) -> dict[str, list[int]]:
    """How large each file of the data is: cheap to know, and another one says that a text was changed meanwhile."""
    return {key: [os.path.getsize(file) for file in _files(getattr(data, key))] for key in DATA}


def _files(corpus: Corpus | None) -> Iterator[str]:
    for entry in [corpus] if isinstance(corpus, str) else corpus or []:
        yield from [entry] if isinstance(entry, str) else entry

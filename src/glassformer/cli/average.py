"""`glassformer average`: several checkpoints of a run into one model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def average(
    checkpoints: Annotated[
        list[str], typer.Argument(metavar="CKPT…", help="MODEL directories, such as step-N of a run.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where to write the model.")],
) -> None:
    """Averages the weights of checkpoints that share a config and a tokenizer."""
    from glassformer.header import read_config

    for checkpoint in checkpoints:  # what is missing is told before PyTorch is loaded, which takes seconds
        read_config(Path(checkpoint))
    from glassformer.train.average import average as run

    run(checkpoints, output)
    print(f"averaged {len(checkpoints)} into {output}", file=sys.stderr)

"""`glassformer train`: from a YAML file to a trained model."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)


@app.command()
def train(
    config: Annotated[str, typer.Argument(help="YAML file; recipes/ holds complete ones.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=c", help="Replace a value; repeatable.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run folder's newest checkpoint.")] = False,
    dump_config: Annotated[bool, typer.Option("--dump-config", help="Print the resolved config and stop.")] = False,
) -> None:
    """Trains a model, also under torchrun. Ctrl-C saves and stops; --resume goes on exactly there."""
    from glassformer.train import config as configs

    overrides = _overrides(set_ or [])
    if dump_config:
        sys.stdout.write(configs.dump_config(configs.load_config(config, overrides)))
        return
    from glassformer.train.ready import ready

    ready(config, overrides, resume=resume)  # mistakes are told before PyTorch is loaded, which takes seconds
    from glassformer.train.loop import train as run

    outcome = run(config, overrides, resume=resume)
    if outcome.interrupted:
        raise typer.Exit(128 + outcome.signal)


def _overrides(pairs: list[str]) -> dict[str, Any]:
    from glassformer.errors import UserError
    from glassformer.train.config import parse_yaml

    overrides: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"--set {pair!r}: expected key=value, such as --set train.lr=1e-3")
        overrides[key] = parse_yaml(value, f"--set {pair}")
    return overrides

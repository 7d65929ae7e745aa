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
    import yaml

    from glassformer.train.config import load_config

    overrides = _overrides(set_ or [])
    if dump_config:
        resolved = load_config(config, overrides).model_dump(mode="json", by_alias=True)
        sys.stdout.write(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True))
        return
    from glassformer.train.loop import train as run

    outcome = run(config, overrides, resume=resume)
    if outcome.interrupted:
        print(f"stopped at step {outcome.step}; saved {outcome.run / 'last'}; --resume goes on", file=sys.stderr)
        raise typer.Exit(130)
    print(f"done: {outcome.run / 'best'}", file=sys.stderr)


def _overrides(pairs: list[str]) -> dict[str, Any]:
    import yaml

    from glassformer.errors import UserError

    overrides: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"--set {pair!r}: expected key=value, such as --set train.lr=1e-3")
        parsed = yaml.safe_load(value)
        # YAML 1.1 reads 1e-3, without a dot, as text.
        overrides[key] = _number(parsed) if isinstance(parsed, str) else parsed
    return overrides


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text

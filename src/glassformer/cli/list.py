"""`glassformer list`: the families of models and their presets."""

from __future__ import annotations

import json
import sys
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)


@app.command("list")
def list_presets(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a preset or model.")] = False,
) -> None:
    """The families of models, their presets with parameter counts, and the models that ship with the package."""
    from glassformer import catalogue

    rows = [
        {"preset": name, "model": None, **{key: answer[key] for key in ("family", "kind", "parameters", "source")}}
        for name, answer in catalogue.presets().items()
    ]
    rows += _bundled()
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        _print(rows)


def _bundled() -> list[dict[str, Any]]:
    """The models that ship with the package, by what their files say of themselves."""
    from glassformer.api import BUNDLED, bundled_models
    from glassformer.header import Header, read_config

    rows: list[dict[str, Any]] = []
    for name in bundled_models():
        model, translation = read_config(BUNDLED / name)["model"], Header.read(BUNDLED / name).translation
        kind = "-".join(stack for stack in ("encoder", "decoder") if model.get(stack))
        arrow = "⇄" if translation and translation.both_directions else "→"
        does = f", translates {translation.source} {arrow} {translation.target}" if translation else ""
        numbers = {"kind": kind, "parameters": _stored(BUNDLED / name), "source": f"ships with the package{does}"}
        rows.append({"preset": None, "model": name, "family": None, **numbers})
    return rows


def _stored(model: Path) -> int:
    """Numbers in a weights file, by its header: https://huggingface.co/docs/safetensors, "Format"."""
    from glassformer.header import WEIGHTS

    with (model / WEIGHTS).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 1000, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("preset", style="bold", no_wrap=True)
    table.add_column("family", style="cyan", no_wrap=True)
    table.add_column("kind", style="cyan", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("source", style="dim", no_wrap=not terminal)
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    for row in sorted(rows, key=lambda row: (row["preset"] is None, kinds.index(row["kind"]))):
        name, family = row["preset"] or row["model"], row["family"] or "–"
        table.add_row(name, family, row["kind"], f"{row['parameters']:,}", row["source"])
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))

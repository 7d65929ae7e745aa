"""`glassformer list`: the families of models and their presets."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)


@app.command("list")
def list_presets(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a preset.")] = False,
) -> None:
    """The families of models and their presets, with parameter counts."""
    from glassformer.families import configure, presets
    from glassformer.models.build import build_model

    rows: list[dict[str, Any]] = []
    for name, (family, preset) in presets().items():
        config = configure(name)
        rows.append(
            {
                "preset": name,
                "family": family.name,
                "kind": family.kind,
                "parameters": build_model(config, device="meta", initialise=False).num_parameters(),
                "source": preset.source,
            }
        )
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        _print(rows)


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 1000, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("preset", style="bold", no_wrap=True)
    table.add_column("kind", style="cyan", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("source", style="dim", no_wrap=not terminal)
    for row in rows:
        table.add_row(row["preset"], row["kind"], f"{row['parameters']:,}", row["source"])
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))

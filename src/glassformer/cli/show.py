"""`glassformer show`: a model's tree of parts, and what it costs."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from glassformer import catalogue
from glassformer.errors import UserError

app = typer.Typer(add_completion=False)


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A preset (glassformer list), a model's folder, or a bundled model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    context: Annotated[int, typer.Option(min=1, help="Sequence length that FLOPs are stated for.")] = catalogue.CONTEXT,
) -> None:
    """A model's tree: shapes, parameters, memory for training and for decoding, FLOPs a token."""
    answer = catalogue.preset(model, context) or _of_path(model, context)
    if as_json:
        print(json.dumps(answer, ensure_ascii=False, indent=2))
    else:
        _print(answer)


def _of_path(name: str, context: int) -> dict[str, Any]:
    """The answer about a model on disk."""
    from glassformer.api import bundled_models, find_model

    if not Path(name).exists() and name not in bundled_models():
        near = difflib.get_close_matches(name, [*catalogue.presets(), *bundled_models()], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "glassformer list names the presets"
        raise UserError(f"{name}: neither a preset, nor a bundled model, nor a folder; {hint}")
    path = find_model(name)
    from glassformer.loading import read_model_config

    return catalogue.describe(read_model_config(path), name, str(path), context)


def _print(answer: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    # Off a terminal nothing may wrap or be cut: the reader is a program or a file.
    console = Console(width=None if terminal else 200, highlight=False)
    parts = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "left", "right"):
        parts.add_column(justify=justify, no_wrap=True)
    for guide, node in _rows(answer["tree"]):
        name = Text(guide, style="dim").append(node["name"], style="bold not dim")
        times = f" × {node['repeat']}" if node["repeat"] > 1 else ""
        count = f"{node['parameters']:,}{times}" if node["parameters"] else "–"
        parts.add_row(name, Text(node["kind"], style="cyan"), node["shape"], count)
    numbers = Table.grid(padding=(0, 2))
    numbers.add_column(no_wrap=True, style="bold")
    numbers.add_column(no_wrap=True, justify="right")
    numbers.add_column(no_wrap=terminal is False)
    for row in _costs(answer):
        numbers.add_row(*row)
    with console.capture() as captured:
        console.print(Text(answer["source"], style="dim"))
        console.print(parts)
        console.print()
        console.print(numbers)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _rows(
    node: dict[str, Any], lead: str = "", last: bool = True, top: bool = True
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node in reading order, with the lines that draw the tree before it."""
    yield ("" if top else lead + ("└─ " if last else "├─ ")), node
    inner = "" if top else lead + ("   " if last else "│  ")
    children = node.get("children", [])
    for index, child in enumerate(children):
        yield from _rows(child, inner, index == len(children) - 1, top=False)


def _costs(spent: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    weights, gradients, moments = (spent[name] for name in ("weights", "gradients", "moments"))
    yield "parameters", f"{spent['parameters']:,}", "shared ones counted once"
    parts = f"weights {size(weights)} + gradients {size(gradients)} + Adam's moments {size(moments)}"
    told = f"float32: {parts}; activations come on top"
    yield "training", size(weights + gradients + moments), told
    cached = _sides(size, spent["cache_per_target"], "written", spent["cache_per_source"], "source")
    kept = f"; each row's cache: {cached}" if cached else ""
    kept += f"; each row's state, whatever its length: {size(spent['state'])}" if spent["state"] else ""
    yield "decoding" if kept else "inference", size(weights), f"float32 weights{kept}"
    source, target = spent["flops_per_source"], spent["flops_per_target"]
    forward = _sides(flops, source, "source", target, "target")
    told = f"forward: {forward}, at a length of {spent['context']}; training takes 3 ×"
    yield "arithmetic", flops(source + target), told


def _sides(told: Callable[[float], str], one: float, of_one: str, other: float, of_other: str) -> str:
    """Both sides of an encoder–decoder, or the only side of a model that has one."""
    if one and other:
        return f"{told(one)} a {of_one} token, {told(other)} a {of_other} token"
    return f"{told(one or other)} a token" if one or other else ""


def size(count: float) -> str:
    """Bytes in the nearest unit of 1,000."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"))


def flops(count: float) -> str:
    """Floating-point operations in the nearest unit of 1,000."""
    return _scaled(count, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def _scaled(count: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {units[-1]}"

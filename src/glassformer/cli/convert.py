"""`glassformer convert`: a model from one format into another, compared on the way."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="A MODEL, or a model of Hugging Face, CTranslate2, GGUF, rwkv.cpp or llama2.c."
        ),
    ],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="A directory that does not exist yet.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="glassformer, hf, ct2 or onnx.")] = "glassformer",
    quantization: Annotated[
        str | None, typer.Option("--quantization", metavar="TYPE", help="For ct2: int8, float16, bfloat16 ….")
    ] = None,
) -> None:
    """Converts a model, runs it before and after, and prints the largest difference."""
    from glassformer.api import convert as run

    compared = run(source, destination, to, quantization=quantization)
    print(f"{destination}: {compared}", file=sys.stderr)

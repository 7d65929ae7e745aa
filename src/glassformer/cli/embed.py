"""`glassformer embed`: texts in, vectors out."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli import options
from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.embedder import Embedder

app = typer.Typer(add_completion=False)


@app.command()
def embed(
    model: options.AnyModel,
    text: Annotated[list[str] | None, typer.Argument(help="What to embed.", show_default="standard input")] = None,
    input: Annotated[Path | None, typer.Option("--input", "-i", help="A text file, a text a line.")] = None,
    output: options.Output = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling", help="mean of all tokens' vectors, cls (the first) or last.", show_default="the model's own"
        ),
    ] = None,
    normalise: Annotated[
        bool | None,
        typer.Option("--normalise/--no-normalise", help="Give vectors length 1.", show_default="the model's own"),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Most texts that are read together.")] = 32,
    errors: options.Errors = "strict",
    precision: options.Precision = "auto",
    threads: options.Threads = None,
) -> None:
    """Embed each text: a JSON line with its vector, and whether the text was cut."""
    lines = options.input_lines(text, input, errors, "a text a line")
    embedder = _open(model, precision, threads)
    records = embedder.records(lines, pooling=pooling, normalise=normalise, batch_size=batch_size)
    progress = options.Progress("texts")
    with options.output_stream(output) as out:
        for record in records:
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
            progress.add(1)
    progress.close()


def _open(model: str, precision: str, threads: int | None) -> "Embedder":
    from glassformer.api import load
    from glassformer.embedder import Embedder

    embedder = load(model, precision=precision, threads=threads)
    if not isinstance(embedder, Embedder):
        raise UserError(f"--model {model}: gives no vectors of texts; give an encoder, such as a BERT")
    return embedder

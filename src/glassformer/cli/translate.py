"""`glassformer translate`: text in, as many lines of translation out."""

import json
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from glassformer.cli import options
from glassformer.errors import UserError

app = typer.Typer(add_completion=False)

LARGEST_CHUNK = 1024


class Format(StrEnum):
    text = "text"
    jsonl = "jsonl"


@app.command()
def translate(
    text: Annotated[list[str] | None, typer.Argument(help="What to translate.", show_default="standard input")] = None,
    model: options.Model = "zh-en",
    input: Annotated[Path | None, typer.Option("--input", "-i", help="A text file, a sentence a line.")] = None,
    output: options.Output = None,
    source: options.From = None,
    to: options.To = None,
    beam_size: options.BeamSize = 5,
    n_best: Annotated[int, typer.Option("--n-best", help="Translations of each line; needs --format jsonl.")] = 1,
    length_penalty: options.LengthPenalty = 1.0,
    max_new_tokens: options.MaxNewTokens = None,
    format: Annotated[
        Format, typer.Option("--format", help="text: a line each; jsonl: scores and n-best too.")
    ] = Format.text,
    precision: options.Precision = "auto",
    threads: options.Threads = None,
    batch_tokens: options.BatchTokens = 4000,
    errors: options.Errors = "strict",
) -> None:
    """Translate text, a file, or standard input: a line out for each line in, in order."""
    from glassformer.generate import SearchConfig

    SearchConfig(beam_size, n_best, length_penalty, max_new_tokens)
    if n_best > 1 and format is Format.text:
        raise UserError(f"--n-best {n_best}: text has one line for each line read; add --format jsonl")
    if text and input is not None:
        raise UserError(f"both TEXT and --input {input}: give one of them")
    if input is not None and output is not None and output.exists() and output.samefile(input):
        raise UserError(f"--output {output}: is the input, which it would overwrite; name another file")

    lines = _lines(text, input, errors)
    first = list(islice(lines, 1))  # a missing file or a bad first byte is told before the model is read
    translator = options.open_translator(model, precision, threads)
    translator.possible_directions(source, to)
    progress = options.Progress("lines")
    with options.output_stream(output) as stream:
        for chunk in _chunks(first, lines, steady=not text and input is None and sys.stdin.isatty()):
            records = translator.translate(
                chunk,
                to=to,
                source=source,
                beam_size=beam_size,
                n_best=n_best,
                length_penalty=length_penalty,
                max_new_tokens=max_new_tokens,
                batch_tokens=batch_tokens,
                details=True,
            )
            stream.writelines(_written(record, format) for record in records)
            stream.flush()
            progress.add(len(chunk))
    progress.close()
    if not progress.done:
        print("the input is empty: nothing to translate", file=sys.stderr)


def _lines(text: list[str] | None, path: Path | None, errors: str) -> Iterator[str]:
    from glassformer.data.corpus import read_lines

    if text:
        return (line for argument in text for line in argument.split("\n"))
    if path is None and sys.stdin.isatty():
        print("type a sentence a line; end with Ctrl-D", file=sys.stderr)
    return read_lines(sys.stdin.buffer if path is None else path, errors=errors)


def _chunks(first: list[str], rest: Iterable[str], steady: bool) -> Iterator[list[str]]:
    """Lines in groups that double: the first results come at once, later groups batch well; `steady` is one by one."""
    size, rest = 1 if steady else 16, iter(rest)
    chunk = first + list(islice(rest, size - len(first)))
    while chunk:
        yield chunk
        size = size if steady else min(2 * size, LARGEST_CHUNK)
        chunk = list(islice(rest, size))


def _written(record: dict[str, Any], format: Format) -> str:
    if format is Format.jsonl:
        return json.dumps(record, ensure_ascii=False) + "\n"
    return record["translation"].replace("\n", " ") + "\n"  # byte pieces can spell a line's end

"""`glassformer classify`: texts or images in, labels or answers out."""

import json
import sys
from collections.abc import Iterator
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import options
from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.reader import Reader

app = typer.Typer(add_completion=False)


@app.command()
def classify(
    model: options.AnyModel,
    text: Annotated[
        list[str] | None, typer.Argument(help="Texts, or paths of images.", show_default="standard input")
    ] = None,
    input: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            help="A text a line (two with a tab between, such as a question and a passage), or the path of an image a "
            "line; or an image.",
        ),
    ] = None,
    output: options.Output = None,
    top: Annotated[int | None, typer.Option("--top", help="Tell so many labels.", show_default="all")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Most inputs that are read together.")] = 32,
    errors: options.Errors = "strict",
    precision: options.Precision = "auto",
    threads: options.Threads = None,
) -> None:
    """Label each text, pair of texts or image: a JSON line with the likeliest label and every label's probability.

    A token classifier labels each word of a text, and a model of answers points to one in a passage.
    """
    if top is not None and top < 1:
        raise UserError(f"--top {top}: must be 1 or more")
    from glassformer.classifier import Classifier

    classifier = _open(model, precision, threads)
    if top is not None and not isinstance(classifier, Classifier):
        raise UserError("--top: is for models that label whole inputs; leave it out")
    what = "image" if classifier.reads_images else "text"
    if classifier.reads_images and not text and input is not None and _is_binary(input):
        text, input = [str(input)], None
    lines, read = tee(options.input_lines(text, input, errors, "a text, or the path of an image, a line"))
    inputs: Iterator[Any] = read if classifier.reads_images else map(_text, read)
    failed = 0
    progress = options.Progress(f"{what}s")
    with options.output_stream(output) as out:
        for line, record in zip(lines, classifier.records(inputs, batch_size=batch_size), strict=True):
            told: dict[str, Any] = {what: line, **record}
            if "error" in told:
                failed += 1
                print(told["error"], file=sys.stderr)
            if "probabilities" in told and top is not None:
                told["probabilities"] = dict(list(told["probabilities"].items())[:top])
            out.write(json.dumps(told, ensure_ascii=False) + "\n")
            progress.add(1)
    progress.close()
    if failed:
        raise UserError(f"{failed} of {progress.done} {what}s could not be read")


def _text(line: str) -> str | tuple[str, str]:
    """A text, or the two of a pair."""
    first, tab, second = line.partition("\t")
    return (first, second) if tab else line


def _is_binary(path: Path) -> bool:
    """Whether a file is an image itself, not a list of them: text holds no zero byte."""
    try:
        with open(path, "rb") as file:
            return b"\0" in file.read(1024)
    except OSError as error:
        raise UserError(f"--input {path}: {error.strerror}") from None


def _open(model: str, precision: str, threads: int | None) -> "Reader":
    from glassformer.api import load
    from glassformer.reader import Reader

    classifier = load(model, precision=precision, threads=threads)
    if not isinstance(classifier, Reader):
        raise UserError(f"--model {model}: has no labels to choose from; give a classifier")
    return classifier

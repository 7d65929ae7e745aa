"""`glassformer generate`: goes on from a prompt."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import options
from glassformer.decoding import Decoding
from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.generator import Generator

app = typer.Typer(add_completion=False)

_SAMPLING = "Sampling"


@app.command()
def generate(
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="A MODEL, a Hugging Face directory, a .gguf file …", show_default=False),
    ],
    prompt: Annotated[str | None, typer.Argument(help="What to go on from.", show_default="standard input")] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Most tokens to write.")] = 256,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="Sample; 0 is greedy.", show_default="greedy", rich_help_panel=_SAMPLING),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Keep the k likeliest tokens.", rich_help_panel=_SAMPLING)
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Keep the nucleus of this probability.", rich_help_panel=_SAMPLING)
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option("--min-p", help="Keep tokens so likely, relative to the likeliest.", rich_help_panel=_SAMPLING),
    ] = None,
    typical_p: Annotated[
        float | None,
        typer.Option("--typical-p", help="Keep the locally typical set.", rich_help_panel=_SAMPLING),
    ] = None,
    repetition_penalty: Annotated[
        float,
        typer.Option("--repetition-penalty", help="Divide logits of what was said.", rich_help_panel=_SAMPLING),
    ] = 1.0,
    no_repeat_ngram: Annotated[
        int | None,
        typer.Option("--no-repeat-ngram", help="Write no n tokens twice.", rich_help_panel=_SAMPLING),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The same seed draws the same text.", rich_help_panel=_SAMPLING)
    ] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be repeated.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Take the prompt for what a user says to an assistant, or for a text to go on from.",
            show_default="chat where the model has a template",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="What the assistant is told before.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Show the text as it is written.")] = False,
    precision: options.Precision = "auto",
    threads: options.Threads = None,
) -> None:
    """Write what follows a prompt."""
    decoding: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "no_repeat_ngram": no_repeat_ngram,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "seed": seed,
        "repetition_penalty": repetition_penalty,
    }
    Decoding(beam_size=1, **decoding)  # told before a model is read
    text = _read() if prompt is None else prompt
    asked = decoding | {"stop": stop or [], "chat": chat, "system": system}
    generator = _open(model, precision, threads)
    pieces: Iterable[str] = generator.stream(text, **asked) if stream else [generator.generate(text, **asked)]
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _read() -> str:
    """Standard input, without the end of its last line."""
    from glassformer.data.lines import read_lines

    if sys.stdin.isatty():
        print("type a prompt; end with Ctrl-D", file=sys.stderr)
    return "\n".join(read_lines(sys.stdin.buffer))


def _open(model: str, precision: str, threads: int | None) -> "Generator":
    from glassformer.api import load
    from glassformer.generator import Generator

    opened = load(model, precision=precision, threads=threads)
    if not isinstance(opened, Generator):
        raise UserError(
            f"-m {model}: a model that reads or translates, but generate needs one that goes on from a text"
        )
    return opened

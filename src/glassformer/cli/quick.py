"""Command lines that need no Typer: importing it takes as long as the rest of a short translation together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.cli.translating import Format, run

__all__ = ["run", "translation"]

_NAMES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "model": (str, ("--model", "-m")),
    "input": (Path, ("--input", "-i")),
    "output": (Path, ("--output", "-o")),
    "source": (str, ("--from",)),
    "to": (str, ("--to",)),
    "format": (Format, ("--format",)),
    "beam_size": (int, ("--beam-size", "--beam", "--num-beams", "-b")),
    "n_best": (int, ("--n-best",)),
    "max_new_tokens": (int, ("--max-new-tokens",)),
    "engine": (str, ("--engine",)),
    "precision": (str, ("--precision",)),
    "threads": (int, ("--threads",)),
}
_FLAGS = {name: (parameter, kind) for parameter, (kind, names) in _NAMES.items() for name in names}


def translation(arguments: Sequence[str]) -> dict[str, Any] | None:
    """The parameters of a plain call of `glassformer translate`, as Typer would read them.

    Returns:
        What to call `translating.run` with; None where only Typer knows, such as of a mistake.
    """
    given: dict[str, Any] = {}
    text, waiting = [], list(arguments)[::-1]
    while waiting:
        argument = waiting.pop()
        if not argument.startswith("-"):
            text.append(argument)
            continue
        name, equals, value = argument.partition("=") if argument.startswith("--") else (argument, "", "")
        if name not in _FLAGS:
            return None
        if not equals:
            if not waiting or waiting[-1].startswith("-"):
                return None
            value = waiting.pop()
        parameter, kind = _FLAGS[name]
        try:
            given[parameter] = kind(value)
        except ValueError:
            return None
    return {"text": text or None, **given}

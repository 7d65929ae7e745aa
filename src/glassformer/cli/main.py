"""The shell around every command: finds it, runs it, and turns whatever goes wrong into one line and an exit code.

Exit codes: 0 success, 2 a user's mistake, 1 a fault, 130 interrupted, 141 the reader of our output went away.
Nothing heavy is imported here, so that `glassformer --help` answers at once.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from glassformer import __version__
from glassformer.errors import UserError

COMMANDS = {
    "translate": "Translate text, files, or standard input.",
    "score": "Log-probability of given translations, token by token.",
    "generate": "Go on from a prompt, or answer it.",
    "train": "Train a model from a YAML config; resume exactly.",
    "evaluate": "BLEU, chrF++ and TER of a model on a test set.",
    "average": "Average checkpoints into one model.",
    "embed": "Vectors of texts.",
    "classify": "Labels of texts or images.",
    "convert": "A model from one format into another, compared.",
    "tokenizer": "Train, use, or inspect a tokenizer.",
    "data": "Count, clean, and split parallel text.",
    "shortlist": "Learn which pieces translations are made of: faster.",
    "explore": "Look inside a model, in the browser.",
    "bench": "How fast a model runs here, and how near the machine's limit.",
    "show": "A model's tree: shapes, parameters, memory, FLOPs.",
    "list": "The families of models and their presets.",
}

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_USER_OS_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; `argv` is without the program's name."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by who started us
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (as long as we run)
    _speak_utf8()
    try:
        code = _run(_utf8_arguments(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_output()
        return 141
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except Exception as error:
        if os.environ.get("GLASSFORMER_DEBUG"):
            raise
        if _is_disk_full(error):
            _drop_output()
        return _complain(*_diagnose(error))


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(_help(), file=sys.stderr)
        return 2
    name, *rest = arguments
    if name in ("-h", "--help", "help"):
        print(_help())
        return 0
    if name in ("-V", "--version"):
        print(f"glassformer {__version__}")
        return 0
    if name not in COMMANDS:
        kind, known = ("flag", ["--help", "--version"]) if name.startswith("-") else ("command", list(COMMANDS))
        raise UserError(f"no {kind} {name!r}; {_did_you_mean(name, known) or 'see glassformer --help'}")
    return _run_command(name, rest)


def _run_command(name: str, arguments: list[str]) -> int:
    if name == "translate":
        from glassformer.cli import quick

        if (given := quick.translation(arguments)) is not None:
            quick.run(**given)
            return 0
    import typer.main

    module = importlib.import_module(f"glassformer.cli.{name}")
    command = typer.main.get_command(module.app)
    parts = getattr(command, "commands", None)
    if parts and not arguments:
        raise UserError(f"glassformer {name}: say which part: {', '.join(parts)}; see glassformer {name} --help")
    settings: dict[str, Any] = {
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
    }
    try:
        # Not command.main(): it would print errors in its own several-line form and swallow a broken pipe.
        with command.make_context(f"glassformer {name}", arguments, **settings) as context:
            command.invoke(context)
    except typer.Exit as leave:
        return leave.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    return 0


def _diagnose(error: Exception) -> tuple[str, int]:
    """One line for an error, and the exit code."""
    if isinstance(error, UserError):
        return str(error), 2
    if isinstance(error, FloatingPointError):
        return f"{error}; its weights are no good: train it again, or give another model", 2
    if hasattr(error, "format_message"):  # Typer's usage errors, whose class moved between its releases
        return _usage(error), 2
    if _is_disk_full(error):
        place = getattr(error, "filename", None)
        where = f" while writing {place}" if place else ""
        return f"no space left on the disk{where}; free some, or write to another folder", 1
    if isinstance(error, _USER_OS_ERRORS) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", 2
    detail = " ".join(str(error).split())
    return f"{type(error).__name__}: {detail} (run with GLASSFORMER_DEBUG=1 for the traceback)", 1


def _usage(error: Any) -> str:
    """Typer's message as one line in our form, naming the command whose help tells more."""
    message = " ".join(error.format_message().split())
    unknown = getattr(error, "option_name", None)
    if unknown:
        near = _did_you_mean(unknown, list(getattr(error, "possibilities", None) or []))
        message = f"no flag {unknown!r}; {near}".rstrip("; ")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    if context is None or "did you mean" in message.lower():
        return message
    return f"{message.rstrip('.')}; see {context.command_path} --help"


def _is_disk_full(error: Exception) -> bool:
    # Writers in compiled code (safetensors, torch.save) wrap the system's error into a type of their own.
    return getattr(error, "errno", None) in _DISK_FULL or "No space left on device" in str(error)


def _did_you_mean(word: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else ""


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "Glassformer: one Transformer you can train, run fast, and see through.",
            "",
            "Usage: glassformer COMMAND [ARGUMENTS]",
            "",
            "Commands:",
            *lines,
            "",
            "  glassformer COMMAND --help   its flags, each written with - or with _",
            "  glassformer --version",
        ]
    )


def _complain(message: str, code: int) -> int:
    prefix = "glassformer" if code == 130 else "glassformer: error"
    print(f"{prefix}: {message}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """Sends what is still buffered for stdout nowhere: the interpreter would fail, and say so, flushing it at exit."""
    if sys.stdout is sys.__stdout__:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _speak_utf8() -> None:
    """UTF-8 on the standard streams whatever the locale, and no translation of line ends."""
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors, newline="\n")


def _utf8_arguments(arguments: Sequence[str]) -> list[str]:
    """Arguments read as UTF-8, whatever the locale they were decoded with."""
    decoded = []
    for position, argument in enumerate(arguments, start=1):
        raw = os.fsencode(argument)
        try:
            decoded.append(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(f"argument {position}, byte {error.start + 1}: not UTF-8 ({raw!r})") from None
    return decoded

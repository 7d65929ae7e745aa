"""A plain call of `glassformer translate` is read as Typer reads it, and without Typer."""

import inspect
import random
import subprocess
import sys

import pytest

from glassformer.cli import quick, translate, translating
from glassformer.cli.main import main


def test_defaults_are_the_flags():
    ours, flags = (inspect.signature(each).parameters for each in (translating.run, translate.translate))
    assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in flags.values()]


WORDS = [
    "你好",
    "a b",
    "",
    "x=y",
    "中—文",
    "-m",
    "models/x",
    "--model",
    "--model=a=b",
    "--to",
    "--to=en",
    "--from",
    "zh",
]
WORDS += ["-b", "--beam", "--beam-size=3", "--num-beams", "4", " 7 ", "1_0", "x", "--threads", "-2", "--n-best", "-i"]
WORDS += [
    "-o",
    "--output=",
    "--format",
    "jsonl",
    "--format=moses",
    "TEXT",
    "--engine",
    "--max-new-tokens=9",
    "--precision",
]
RARE = ["-h", "--help", "--", "-", "--stream", "-b2", "--beam_size", "--nothing", "--top-k", "-mx", "--mod"]


def test_what_is_read_is_what_typer_reads(monkeypatch, capsys):
    r, seen, plain = random.Random(0), [], quick.translation
    defaults = {p.name: p.default for p in inspect.signature(translating.run).parameters.values()}

    def record(**given):
        seen.append(defaults | given)

    monkeypatch.setattr(quick, "run", record)
    monkeypatch.setattr(translate, "run", record)
    taken = 0
    for _ in range(400):
        arguments = [r.choice(WORDS if r.random() < 0.97 else RARE) for _ in range(r.randint(0, 6))]
        if plain(arguments) is None:
            continue
        taken += 1
        monkeypatch.setattr(quick, "translation", plain)
        assert main(["translate", *arguments]) == 0
        monkeypatch.setattr(quick, "translation", lambda _: None)
        assert main(["translate", *arguments]) == 0, (arguments, capsys.readouterr().err)
        mine, typers = seen[-2:]
        assert mine == typers | {"text": typers["text"] or None}, arguments
    assert taken > 100


@pytest.mark.parametrize("arguments", [["--help"], ["-b"], ["-b", "two"], ["--to", "-m"], ["--nothing"], ["--", "-x"]])
def test_what_is_not_plain_is_left_to_typer(arguments):
    assert quick.translation(arguments) is None


def test_a_plain_translation_loads_no_typer():
    code = "import sys; from glassformer.cli.main import main; main(['translate', '-m', '/nowhere', 'x']); "
    code += "print({'typer', 'rich', 'torch', 'logging', 'tempfile'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "set()\n" and "/nowhere" in ran.stderr

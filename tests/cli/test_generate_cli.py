"""`glassformer generate`: stdout holds the text alone, and a mistake is one line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import glassformer as gf
from glassformer.cli.main import main
from glassformer.header import Framing
from glassformer.interop import hf
from glassformer.text.tokenizer import Tokenizer
from tests.randomised import randomise

CHAT = "{% for m in messages %}{{ '<s>' + m['content'] }}{% endfor %}</s>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.train(["the cat sat on the mat", "a b c d"] * 4, vocab_size=290)
    model = randomise(gf.build("llama-tiny", vocab_size=tokenizer.vocab_size))
    path = tmp_path_factory.mktemp("models") / "lm"
    hf.save(path, model, tokenizer, Framing((1,), (), None, (2,), CHAT))
    return path


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = main(["generate", *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_command_and_python_write_the_same_bytes(folder: Path, capsys: Any):
    lm = gf.load(folder)
    flags = ("-m", str(folder), "--max-new-tokens", "9")
    assert run(capsys, "the cat", *flags) == (0, lm.generate("the cat", max_new_tokens=9) + "\n", "")
    plain = lm.generate("the cat", max_new_tokens=9, chat=False)
    assert run(capsys, "the cat", *flags, "--no-chat", "--stream") == (0, plain + "\n", "")
    assert plain != lm.generate("the cat", max_new_tokens=9)
    told = lm.generate("the cat", max_new_tokens=9, system="a b")
    assert run(capsys, "the cat", *flags, "--system", "a b")[1] == told + "\n"
    drawn = dict(temperature=1.1, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=4, stop=["c", "d"])
    given = (
        *("--temperature", "1.1", "--top-k", "20", "--top_p", "0.9", "--min-p", "0.01", "--repetition_penalty", "1.2"),
        *("--seed", "4", "--stop", "c", "--stop", "d"),
    )
    assert run(capsys, "the cat", *flags, *given)[1] == lm.generate("the cat", max_new_tokens=9, **drawn) + "\n"


def test_a_prompt_comes_from_standard_input(folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    lm = gf.load(folder)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat\nsat\n"), encoding="utf-8"))
    wanted = lm.generate("the cat\nsat", max_new_tokens=5)
    assert run(capsys, "-m", str(folder), "--max-new-tokens", "5")[1] == wanted + "\n"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("x",), "missing option '--model' / '-m'"),
        (("x", "-m", "zh-en"), "generate needs one that goes on from a text"),
        (("x", "-m", "nowhere"), "no model 'nowhere'"),
        (("x", "-m", "zh-en", "--temperature", "-1"), "--temperature"),
        (("x", "-m", "zh-en", "--max-new-tokens", "0"), "--max-new-tokens"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(capsys: Any, arguments: tuple[str, ...], said: str):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


def test_other_commands_say_what_such_a_model_is_for(folder: Path, capsys: Any):
    assert main(["translate", "-m", str(folder), "x"]) == 2
    assert "no translator; glassformer generate" in capsys.readouterr().err
    assert main(["show", str(folder)]) == 0
    assert "decoder.layers" in (shown := capsys.readouterr().out) or "layers" in shown


def test_the_help_says_that_the_model_is_required(capsys: Any):
    assert main(["generate", "--help"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "--model" in line)
    assert "*" in line or "[required]" in line

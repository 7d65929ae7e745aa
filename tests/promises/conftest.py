"""A tiny model with random weights, since the promises hold whatever a model answers."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from glassformer.api import Translator, load
from glassformer.cli.main import main
from glassformer.families import configure
from glassformer.models.build import build_model
from glassformer.store import Translation, save_model
from glassformer.text.tokenizer import Tokenizer

LINES = ["我爱自然语言处理。", "我喜欢打篮球。", "I love natural language processing.", "The cat sat on the mat."] * 4
POSITIONS = 48
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A MODEL directory of both directions."""
    torch.manual_seed(4)
    tokenizer = Tokenizer.train(LINES, vocab_size=330, languages=("zh", "en"))
    network = build_model(configure("transformer-tiny", vocab_size=tokenizer.vocab_size + 4, max_len=POSITIONS))
    with torch.no_grad():
        network.embed.weight.mul_(4)  # far from uniform, so that one answer differs from another
        # Bytes would be most of what it writes, and text of none of them.
        network.embed.weight[[i for i in range(tokenizer.vocab_size) if "<0x" in tokenizer.id_to_token(i)]] = 0
    path = tmp_path_factory.mktemp("model") / "zh-en"
    save_model(path, network, tokenizer, Translation(source="zh", target="en", both_directions=True))
    return str(path)


@pytest.fixture(scope="session")
def translator(model: str) -> Translator:
    """The same model, loaded."""
    return load(model, engine="model")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the program: (exit code, what it printed, what it told)."""

    def run(*arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def check_each_promise_has_its_test(module: ModuleType, promises: Iterable[str]) -> None:
    """Each promise is quoted by one test's docstring, and each test quotes one."""
    tests = [value for name, value in vars(module).items() if name.startswith("test_") and name != "test_each_promise"]
    quoted = sorted(re.sub(r"\s+", " ", test.__doc__ or f"{test.__name__} quotes nothing").strip() for test in tests)
    assert quoted == sorted(promises)


def write(path: Path, *lines: str) -> Path:
    """A file of these lines."""
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path

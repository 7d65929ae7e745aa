"""Whatever a file holds, as many lines come out, in order, each as if alone, in a time that follows its length."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from glassformer.api import load
from glassformer.cli.main import main
from glassformer.families import configure
from glassformer.models.build import build_model
from glassformer.store import Translation, save_model
from glassformer.text.pipeline import translate_text
from glassformer.text.protect import protect
from glassformer.text.script import detect_language
from glassformer.text.split import split
from glassformer.text.tags import carry_tags
from glassformer.text.tokenizer import Tokenizer
from tests.oddities import CHINESE, ENGLISH, odd_bytes, odd_lines

LONG = 100_000
OPTIONS = {"beam_size": 1, "max_new_tokens": 4}


@contextmanager
def watchdog(seconds: float = 25) -> Iterator[None]:
    """Ends what would keep the processor for minutes; what it stands around takes a second or two."""

    def bark(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s of the processor: its time grows faster than the text")

    before = signal.signal(signal.SIGPROF, bark)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(5)
    tokenizer = Tokenizer.train([*CHINESE, " ".join(ENGLISH)] * 4, vocab_size=340, languages=("zh", "en"))
    network = build_model(configure("transformer-tiny", vocab_size=tokenizer.vocab_size, max_len=64))
    with torch.no_grad():
        network.embed.weight.mul_(4)  # far from uniform, so that answers differ
    path = tmp_path_factory.mktemp("model") / "zh-en"
    save_model(path, network, tokenizer, Translation(source="zh", target="en", both_directions=True))
    return str(path)


def test_a_file_of_oddities_comes_back_line_for_line_as_each_alone(model: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"".join(line + b"\n" for line in odd_bytes(seed=11, count=150)))
    flags = ["-b", "1", "--max-new-tokens", "4", "--format", "jsonl", "--errors", "replace"]
    assert main(["translate", "-m", model, *flags, "-i", str(source), "-o", str(out)]) == 0
    records = [json.loads(line) for line in out.read_bytes().decode().split("\n")[:-1]]
    lines = odd_lines(seed=11, count=150)
    assert [record["source"] for record in records] == lines
    alone = load(model)
    for line, record in zip(lines, records, strict=True):
        assert record == alone.translate(line, details=True, **OPTIONS), repr(line)
        assert bool(record["translation"].strip()) == bool(line.strip())


def test_text_output_of_oddities_has_a_line_for_each(model: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"\n".join(odd_bytes(seed=12, count=60)))
    flags = ["-b", "1", "--max-new-tokens", "4", "--errors", "replace"]
    assert main(["translate", "-m", model, *flags, "-i", str(source), "-o", str(out)]) == 0
    lines = odd_lines(seed=12, count=60)
    answers = out.read_bytes().decode().split("\n")[:-1]
    assert answers == load(model).translate(lines, **OPTIONS)


UNITS = (
    """
今天天气很好。|今天天气很好|The cat sat. |see https://a.com/x |{n}|X1 {n} |<b>x|x</b>|مرحبا |a|😀|<|a.|—|《|"a. |. ““|/a
""".strip("\n").split("|")
    + ["e\u0301", "👨\u200d", "a\t", "\x01"]
)
RUNS = ["x" + run * LONG + "x" for run in " .,。!"]


def _short(line: str) -> str:
    return ascii(line[:6])


@pytest.mark.slow
@pytest.mark.parametrize("line", [*((unit * LONG)[:LONG] for unit in UNITS), *RUNS], ids=_short)
def test_a_very_long_line_takes_a_time_that_follows_its_length(line: str) -> None:
    with watchdog():
        detect_language(line, ["zh", "en"])
        (result,) = translate_text(
            [line], lambda parts: [part.protected.text for part in parts], split_above=60, max_length=120
        )
        assert "".join(part.source + part.separator for part in result.parts) in (line, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    ["<b>" * 100_000 + "x" + "</b>" * 100_000, "<b>x " * 100_000 + "</i>" * 100_000,
     " ".join(f"{{name{i}}} w" for i in range(60_000)), "%s %sword " * 50_000],
    ids=_short,
)  # fmt: skip
def test_a_hundred_thousand_things_to_protect_take_a_time_that_follows_their_number(line: str) -> None:
    with watchdog():
        protected = protect(line)
        assert protected.text != line
        split(line[:LONG], max_length=120)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["x <br/> ", "<b>x</b> ", "<b>x ", "x</b> ", "<i>x <br/></i> "])
@pytest.mark.parametrize("linked", [True, False])
def test_tens_of_thousands_of_tags_are_carried_in_a_time_that_follows_their_number(unit: str, linked: bool) -> None:
    line = unit * 30_000
    with watchdog():
        carried = carry_tags(line, "y " * 30_000, [(i, i) for i in range(30_000)] if linked else [])
    assert sorted(carried.replace(" ", "")) == sorted(line.replace(" ", "").replace("x", "y"))

"""`glassformer tokenizer`: N lines in, N lines out, data on stdout alone, mistakes in one line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glassformer.cli.tokenizer import app
from glassformer.errors import UserError
from glassformer.text import Tokenizer

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    rng = random.Random(1)
    words = ["the", "fox", "jumps", "over", "lazy", "dogs"]
    with (folder / "text.tsv").open("w", encoding="utf-8") as stream:
        stream.write("zh\ten\tsource\n")
        for _ in range(80):
            chinese, english = "".join(rng.choices("我爱自然语言", k=8)), " ".join(rng.choices(words, k=6))
            stream.write(f"{chinese}\t{english}\tQQQQ\n")
    arguments = [
        "train",
        str(folder / "text.tsv"),
        "--vocab-size",
        "330",
        "--languages",
        "zh,en",
        "-o",
        str(folder / "out"),
    ]
    result = RUNNER.invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "100.000 % in pieces" in result.stderr
    return folder / "out"


def test_training_reads_the_language_columns_of_a_tsv(trained: Path) -> None:
    tokenizer = Tokenizer.load(trained)
    assert tokenizer.language_ids == {"zh": 4, "en": 5}
    assert tokenizer.tokens("the fox") == ["▁the", "▁fox"]
    assert tokenizer.token_to_id("Q") is None


def test_a_tsv_without_a_header_and_plain_text_are_used_whole(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("ab\tcd ef\n" * 3, encoding="utf-8")
    (tmp_path / "b.txt").write_text("xy\tz\n" * 3, encoding="utf-8")
    arguments = [
        "train",
        str(tmp_path / "a.tsv"),
        str(tmp_path / "b.txt"),
        "--vocab-size",
        "290",
        "-o",
        str(tmp_path / "t.json"),
    ]
    assert RUNNER.invoke(app, arguments, catch_exceptions=False).exit_code == 0
    tokenizer = Tokenizer.load(tmp_path / "t.json")
    assert all(tokenizer.token_to_id(char) is not None for char in "abcdefxyz\t")


@pytest.mark.parametrize("extra", [[], ["--pieces"]])
def test_lines_come_back_one_for_one(trained: Path, extra: list[str]) -> None:
    lines = ["the fox", "", "  ", "\u3000", "我爱🐉 x", "a\u2028b\rc", "</s> <2en>", "last"]
    text = "\r\n".join(lines).encode() + b"\n"
    ids = RUNNER.invoke(app, ["encode", "-t", str(trained), *extra], input=text, catch_exceptions=False)
    assert ids.stdout_bytes.count(b"\n") == len(lines)
    back = RUNNER.invoke(app, ["decode", "-t", str(trained), *extra], input=ids.stdout_bytes, catch_exceptions=False)
    assert back.stdout_bytes.decode() == "\n".join(lines) + "\n"


def test_encode_prints_what_the_library_gives(trained: Path) -> None:
    result = RUNNER.invoke(app, ["encode", "--model", str(trained), "the fox", "我"], catch_exceptions=False)
    tokenizer = Tokenizer.load(trained)
    assert result.stdout == "".join(" ".join(map(str, tokenizer.encode(text))) + "\n" for text in ("the fox", "我"))


def test_info(trained: Path) -> None:
    facts = json.loads(RUNNER.invoke(app, ["info", str(trained), "--json"], catch_exceptions=False).stdout)
    tokenizer = Tokenizer.load(trained)
    assert facts["specials"]["eos"] == {"id": 2, "token": "</s>"}
    assert (facts["kind"], facts["normalizer"], facts["languages"]) == ("bpe", "nfc", {"zh": 4, "en": 5})
    assert (facts["vocab_size"], facts["hash"]) == (tokenizer.vocab_size, tokenizer.hash)
    plain = RUNNER.invoke(app, ["info", "-t", str(trained)], catch_exceptions=False).stdout
    assert tokenizer.hash in plain and "</s> 2" in plain


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (["decode"], b"5 6\n7 x\n", r"<stdin>:2: 'x' is not an id from 0 to"),
        (["decode"], b"99999\n", r"<stdin>:1: '99999'"),
        (["decode"], b"-1\n", r"<stdin>:1: '-1'"),
        (["decode", "--pieces"], b"nope\n", r"<stdin>:1: 'nope' is not a piece"),
        (["encode"], b"fine\n\xff\n", r":2: .*0xff"),
    ],
)
def test_mistakes_are_one_line(trained: Path, arguments: list[str], text: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        RUNNER.invoke(app, [*arguments, "-t", str(trained)], input=text, catch_exceptions=False)
    assert "\n" not in str(caught.value)


def test_a_missing_file_or_tokenizer_is_named(tmp_path: Path) -> None:
    for arguments in (
        ["train", str(tmp_path / "no.txt"), "-o", str(tmp_path / "o")],
        ["info", str(tmp_path / "no.json")],
    ):
        with pytest.raises(UserError, match="no\\."):
            RUNNER.invoke(app, arguments, catch_exceptions=False)
    with pytest.raises(UserError, match="--tokenizer"):
        RUNNER.invoke(app, ["info"], catch_exceptions=False)

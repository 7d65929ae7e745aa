"""What the project promises about text, files and decoding, end to end: the program over a tiny model, all at once.

Each promise is named by its test. What is held elsewhere is not repeated: see tests/laws for search, sampling,
splitting and protection, and tests/cli/test_translate_cli.py for the flags.
"""

import json

import pytest
import torch

from glassformer.api import load
from glassformer.cli.main import main
from glassformer.families import configure
from glassformer.models.build import build_model
from glassformer.store import Translation, save_model
from glassformer.text.tokenizer import Tokenizer

LINES = ["我爱自然语言处理。", "我喜欢打篮球。", "I love natural language processing.", "The cat sat on the mat."] * 4
PROTECTED = ["%1$s", "{{name}}", "https://a.com/x?y=1", "me@example.org", "{0}", "<br/>", "%d", "${HOME}", "`code`"]
ODD = [
    "", " ", "\t", "\u3000", "\u3000 \u00a0", "\u2028", "\x85", "a\u2028b", "lone\rreturn", "a\x00b\x1b[31mc", "\u200b",
    "𠮷野家🐉龘《鸡》", "😀👩‍👩‍👧", "100%", "3.14", "---", "مرحبا", "ALL CAPITALS HERE", "我用 Python 写代码",
    "Hello. 你好。", "e\u0301" * 9, "  blanks around  ", "X1 and {n}", "ha ha ha ha ha", "</s> <2en> <pad>",
    *PROTECTED, *(f"See {p}, then {p}. 我爱 {p}" for p in PROTECTED), "<b>Bold <i>cat</i></b>", "<b>loose",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    torch.manual_seed(3)
    tokenizer = Tokenizer.train(LINES, vocab_size=330, languages=("zh", "en"))
    network = build_model(configure("transformer-tiny", vocab_size=tokenizer.vocab_size, max_len=48))
    with torch.no_grad():
        network.embed.weight.mul_(4)
    path = tmp_path_factory.mktemp("model") / "zh-en"
    save_model(path, network, tokenizer, Translation(source="zh", target="en", both_directions=True))
    return str(path)


def test_n_lines_in_n_lines_out_in_order_whatever_they_hold(model, tmp_path):
    lines = [*ODD, "我爱打篮球。" * 60, "x" * 2000, *(f"{odd} {i}" if i % 3 else odd for i, odd in enumerate(ODD * 6))]
    lines = lines[:300]
    assert len(lines) == 300
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*lines, ""]).encode())
    arguments = ["translate", "-m", model, "-b", "1", "--max-new-tokens", "4", "--no-repeat-ngram", "2"]
    assert main([*arguments, "-i", str(source), "-o", str(out)]) == 0
    results = out.read_bytes().decode().split("\n")
    assert results.pop() == "" and len(results) == 300
    assert [not r.strip() for r in results] == [not line.strip() for line in lines]
    alone = load(model)
    options = {"beam_size": 1, "max_new_tokens": 4, "no_repeat_ngram": 2}
    assert results == [alone.translate(line, **options) for line in lines]


@pytest.mark.parametrize("line", [f"See {p}, then go." for p in PROTECTED])
def test_placeholders_urls_and_tags_come_through_exactly_once(model, capsys, line):
    assert main(["translate", "-m", model, "-b", "2", "--max-new-tokens", "5", line]) == 0
    protected = line.removeprefix("See ").removesuffix(", then go.")
    assert capsys.readouterr().out.count(protected) == 1


def test_an_over_long_line_is_split_and_with_no_split_it_is_cut_and_flagged(model, capsys, caplog):
    lines = ["我爱猫", "我爱打篮球。" * 20, "last"]
    for flags in ([], ["--no-split"]):
        caplog.clear()
        assert main(["translate", "-m", model, "-b", "1", "--format", "jsonl", *flags, *lines]) == 0
        records = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
        assert [record["source"] for record in records] == lines
        told = [record.getMessage() for record in caplog.records]
        assert told == (["text 2: cut to the model's limit of 48 tokens"] if flags else [])
    assert records[1]["truncated"]


def test_one_code_path_python_and_the_program_give_the_same_bytes(model, capsys):
    lines = ["我爱猫。", "See {x}.", "The cat sat. The mat!"]
    assert main(["translate", "-m", model, "-b", "3", *lines]) == 0
    assert (
        capsys.readouterr().out.encode()
        == "".join(f"{t}\n" for t in load(model).translate(lines, beam_size=3)).encode()
    )


def test_pad_and_s_are_never_produced(model, capsys):
    assert main(["translate", "-m", model, "--temperature", "5", "--seed", "1", *LINES[:4]]) == 0
    out = capsys.readouterr().out
    assert not any(special in out for special in ("<pad>", "<s>", "</s>", "<unk>", "<2en>", "<2zh>"))

"""`glassformer data`: every format in and out, data on stdout alone, each count told, each mistake in one line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from glassformer.cli.data import app
from glassformer.data.corpus import FORMATS, read_pairs
from glassformer.errors import UserError
from tests.conftest import REPOSITORY

RUNNER = CliRunner()
PAIRS = [(f"我喜欢第{n}本书。", f"I like book number {n}.") for n in range(40)]


def run(*arguments: object) -> Result:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "a.tsv"
    path.write_text("zh\ten\tby\n" + "".join(f"{zh}\t{en}\tme\n" for zh, en in PAIRS), encoding="utf-8")
    return path


def add(path: Path, *lines: str) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def test_any_format_becomes_any_other(corpus: Path, tmp_path: Path) -> None:
    files = [corpus]
    for suffix in ("jsonl", "tmx", "po"):
        # PO's msgid is English by convention, and its header names the language of msgstr.
        run("clean", *files, "-o", tmp_path / f"b.{suffix}", "--from", "zh", "--to", "en")
        files = [tmp_path / f"b.{suffix}"]
    run("clean", *files, "--from", "zh", "--to", "en", "-o", tmp_path / "c.zh", "-O", tmp_path / "c.en")
    run("clean", tmp_path / "c.zh", tmp_path / "c.en", "-o", tmp_path / "d.tsv")
    assert read_pairs(tmp_path / "d.tsv", source="zh", target="en") == PAIRS
    for path in (corpus, tmp_path / "b.jsonl", tmp_path / "b.tmx", tmp_path / "d.tsv"):
        assert json.loads(run("stats", path, "--json").stdout)["languages"] == ["zh", "en"]
    assert '"by": "me"' in (tmp_path / "b.jsonl").read_text(encoding="utf-8")


def test_clean_tells_each_reason_and_keeps_what_it_dropped(corpus: Path, tmp_path: Path) -> None:
    zh, en = PAIRS[0]
    add(corpus, f"{zh}\t{en}\tcopy", "OK\tok!\t", "\tlost\t", f"{zh[:-1]}！\tI\u200b like it.\t", "Bonjour\tgood day\t")
    result = run("clean", corpus, "--rejected", tmp_path / "no.tsv")
    kept = result.stdout.splitlines()
    assert kept == ["zh\ten\tby", *(f"{zh}\t{en}\tme" for zh, en in PAIRS), f"{zh[:-1]}！\tI like it.\t"]
    dropped = [line.split("\t") for line in (tmp_path / "no.tsv").read_text(encoding="utf-8").splitlines()]
    assert dropped == [
        ["zh", "en", "by", "reason", "at"],
        [zh, en, "copy", "duplicate", f"{corpus}:42"],
        ["OK", "ok!", "", "identical", f"{corpus}:43"],
        ["", "lost", "", "empty", f"{corpus}:44"],
        ["Bonjour", "good day", "", "wrong script", f"{corpus}:46"],
    ]
    told = {" ".join(line.split()[1:3]): line for line in result.stderr.splitlines()}
    for count in ("1 duplicate", "1 identical", "1 empty", "1 wrong", "0 length", "0 too", "1 control", "0 not"):
        assert count in told
    assert "read 45 pairs, kept 41 (91.11 %)" in result.stderr and "--script-share" in told["1 wrong"]
    assert run("clean", corpus, "--rejected", tmp_path / "no.tsv").stdout == result.stdout


def test_clean_obeys_every_flag(corpus: Path) -> None:
    add(
        corpus,
        f"{PAIRS[0][0]}\t{PAIRS[0][1]}\t",
        "OK\tok!\t",
        "e\u0301一二\te\u0301 a\u200bb cdef\t",
        f"二\t{'long ' * 20}\t",
    )
    off = ["--duplicates", "keep", "--keep-identical", "--length-ratio", 0, "--script-share", 0, "--keep-control"]
    assert run("clean", corpus, *off).stdout.splitlines() == [
        line.rstrip(" ").replace(" \t", "\t") for line in corpus.read_text(encoding="utf-8").split("\n")[:-1]
    ]
    assert "é一二\té ab cdef" in run("clean", corpus, "--nfc").stdout
    assert len(run("clean", corpus, "--max-chars", 5).stdout.splitlines()) == 1


def test_languages_that_are_unknown_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("Bonjour\tdas da drüben\n", encoding="utf-8")
    result = run("clean", tmp_path / "a.tsv")
    assert result.stdout == "Bonjour\tdas da drüben\n" and "--from and --to" in result.stderr


def test_stats_as_a_table_and_as_json(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text(
        "zh\ten\n新的。\ti like BOOK number 3\n别的。\tSomething else.\n", encoding="utf-8"
    )
    report = json.loads(run("stats", corpus, "--json", "--against", tmp_path / "test.tsv").stdout)
    assert (report["pairs"], report["duplicates"], report["source"]["length"]["p0"]) == (40, 0, 8)
    assert report["target"]["characters"] == sum(len(en) for _, en in PAIRS)
    found = report["against"][str(tmp_path / "test.tsv")]
    assert (found["pairs"], found["any"], found["near_target"], found["same_target"]) == (2, 1, 1, 0)
    assert found["examples"] == [f"{tmp_path / 'test.tsv'}:2"]
    table = run("stats", corpus, "--against", tmp_path / "test.tsv").stdout
    for line in ("wrong script", "length ratio  p0", "sources with several targets", "1 of 2 pairs share something"):
        assert line in table
    assert f"{report['target']['words']:,}" in table and "zh" in table


def test_stats_count_tokens_of_a_tokenizer(corpus: Path, tmp_path: Path) -> None:
    from glassformer.text import Tokenizer

    tokenizer = Tokenizer.train([side for pair in PAIRS for side in pair], vocab_size=320)
    tokenizer.save(tmp_path / "t.json")
    report = json.loads(run("stats", corpus, "-t", tmp_path / "t.json", "--json").stdout)
    assert report["source"]["tokens"] == sum(len(tokenizer.encode(zh)) for zh, _ in PAIRS)
    assert "tokens a text, p50" in run("stats", corpus, "-t", tmp_path / "t.json").stdout


@pytest.mark.parametrize("form", ["tsv", "plain", "jsonl", "same suffix"])
def test_split_writes_three_files_without_a_leak(corpus: Path, tmp_path: Path, form: str) -> None:
    add(corpus, *(f"{zh.replace('我', '她')}\tShe likes it {n}\tme" for n, (zh, _) in enumerate(PAIRS[:5])), "\t\t")
    add(corpus, *(f"{zh.replace('我', '他')}\tHe saw it {n}\tme" for n, (zh, _) in enumerate(PAIRS[:5])))
    files, ends = [corpus], [".tsv"]
    if form == "jsonl":
        files, ends = [tmp_path / "b.jsonl"], [".jsonl"]
        run("clean", corpus, "-o", *files)
    elif form != "tsv":
        files = (
            [tmp_path / "b.zh", tmp_path / "b.en"] if form == "plain" else [tmp_path / "b1.txt", tmp_path / "b2.txt"]
        )
        ends = [".zh", ".en"]
        run("clean", corpus, "-o", files[0], "-O", files[1])
    languages = ["--from", "zh", "--to", "en"]
    result = run("split", *files, "-o", tmp_path / "out", "--dev", 6, "--test", "20%", "--seed", 3, *languages)
    assert "train 34, dev 6, test 10" in result.stderr and result.stdout == ""
    splits = {
        name: read_pairs(*(tmp_path / "out" / f"{name}{end}" for end in ends), source="zh", target="en")
        for name in ("train", "dev", "test")
    }
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 34, "dev": 6, "test": 10}
    whole = [pair for pair in read_pairs(*files, source="zh", target="en")]
    assert sorted(pair for pairs in splits.values() for pair in pairs) == sorted(whole)
    # He and she meet in one split.
    sources = [{zh.replace("她", "他") for zh, _ in pairs} for pairs in splits.values()]
    assert not sources[0] & sources[1] and not sources[0] & sources[2] and not sources[1] & sources[2]
    for pairs in splits.values():
        assert pairs == [pair for pair in whole if pair in pairs], "the order of the corpus"


def test_groups_too_large_for_a_split_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"same\tother {n}\n" for n in range(9)), encoding="utf-8")
    result = run("split", tmp_path / "a.tsv", "-o", tmp_path, "--dev", 2, "--test", 0)
    assert "train 9, dev 0, test 0" in result.stderr
    assert "--dev: 0 of 2; the groups that are left are too large" in result.stderr


def test_standard_input_is_read(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    command = [sys.executable, "-m", "glassformer", "data", "clean", "-", "--from", "zh", "--to", "en"]
    environment = {"PYTHONPATH": str(REPOSITORY / "src"), "PATH": ""}
    done = subprocess.run(command, input=corpus.read_bytes(), capture_output=True, env=environment, timeout=120)
    assert (done.returncode, done.stdout) == (0, corpus.read_bytes())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["stats", "missing.tsv"], "missing.tsv: cannot read it"),
        (["stats", "a.tsv", "--from", "zh"], "--from and --to: give both"),
        (["stats", "a.tsv", "--from", "zh", "--to", "zh"], "expected two languages"),
        (["stats", "a.tsv", "--format", "xml"], "format 'xml': expected tsv, plain, jsonl, tmx, po"),
        (["stats", "a.tsv", "--errors", "ignore"], "--errors ignore"),
        (["stats", "a.tsv", "--against", "missing.tsv"], "missing.tsv: cannot read it"),
        (["stats", "a.tsv", "short.txt"], "a.tsv has 41 lines but short.txt has 1"),
        (["stats", "bad.tsv"], "bad.tsv:2: byte 0xff at offset 8"),
        (["clean", "a.tsv", "--duplicates", "most"], "--duplicates most"),
        (["clean", "a.tsv", "-o", "no/where.tsv"], "no/where.tsv: cannot write it"),
        (["clean", "a.tsv", "-O", "b.en"], "--target-output: give the source's file too"),
        (["clean", "a.tsv", "-o", "b.txt", "--output-format", "plain"], "plain text comes as two files"),
        (["clean", "bad.tsv", "-o", "out.tsv"], "bad.tsv:2"),
        (["split", "a.tsv", "--dev", "many"], "--dev many: expected"),
        (["split", "a.tsv", "--dev", "20", "--test", "20"], "ask for 20 . 20 of 40 pairs"),
        (["split", "empty.tsv"], "empty.tsv: no sentence pairs"),
        (["split", "missing.tsv"], "missing.tsv: cannot read it"),
    ],
)
def test_mistakes_are_one_line(corpus: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str) -> None:
    monkeypatch.chdir(corpus.parent)
    Path("short.txt").write_text("x\n")
    Path("bad.tsv").write_bytes(b"zh\ten\na\t\xff\n")
    Path("empty.tsv").write_bytes(b"\n")
    before = sorted(Path().iterdir())
    with pytest.raises(UserError, match=told) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
    assert sorted(Path().iterdir()) == before, "nothing half written"


def test_help_loads_nothing_heavy() -> None:
    import subprocess

    code = (
        "import sys; from glassformer.cli.main import main; main(['data', 'clean', '--help']);"
        "print(*sys.modules, file=sys.stderr)"
    )
    environment = {"PYTHONPATH": str(REPOSITORY / "src"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert "--script-share" in done.stdout
    assert not {"torch", "tokenizers", "sacrebleu", "numpy"} & set(done.stderr.split())


def test_a_bar_is_shown_on_a_terminal(corpus: Path) -> None:
    """Share of the bytes, pairs, pairs a second and time left; on standard output the report alone."""
    import os
    import pty
    import subprocess

    add(corpus, *(f"第{n}行\tline {n}\t" for n in range(2000)))
    ours, theirs = pty.openpty()
    environment = {"PYTHONPATH": str(REPOSITORY / "src"), "PATH": "", "COLUMNS": "120", "TERM": "xterm"}
    command = [sys.executable, "-m", "glassformer", "data", "stats", str(corpus), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, timeout=120)
    os.close(theirs)
    told = b""
    with open(ours, "rb", buffering=0) as terminal:
        try:
            while chunk := terminal.read(65536):
                told += chunk
        except OSError:  # how Linux ends a terminal
            pass
    assert json.loads(done.stdout)["pairs"] == 2040
    bar = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told.decode()).replace("\r", "\n")
    assert re.search(r"a\.tsv ━+ 100% 2,040 pairs, [\d,]+/s 0:00:00", bar)


@pytest.mark.parametrize("form", FORMATS)
def test_elsewhere_a_line_now_and_then_tells_how_far_it_is(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The clock here runs a second at each look, so that every tenth look is told."""
    from glassformer.cli import reading

    add(corpus, *(f"第{n}行\tline {n} of many\t" for n in range(30_000)))
    files = [tmp_path / "b.zh", tmp_path / "b.en"] if form == "plain" else [tmp_path / f"b.{form}"]
    run("clean", corpus, "-o", files[0], *(["-O", files[1]] if form == "plain" else []))
    ticks = iter(range(10**6))
    monkeypatch.setattr(reading.time, "monotonic", lambda: float(next(ticks)))
    told = run("stats", *files, "--from", "zh", "--to", "en").stderr.splitlines()
    line = rf"{files[0].name}: ([\d,]+) pairs, [\d,]+/s, (\d+)% of ([\d,]+) bytes, 0:\d\d:\d\d left"
    found = [re.fullmatch(line, one) for one in told]
    assert len(found) == 30_040 // reading.LOOK // 10 and all(found)
    size = sum(file.stat().st_size for file in files)
    for one in found:
        pairs, share, total = (int(part.replace(",", "")) for part in one.groups())
        assert total == size and abs(share / 100 - pairs / 30_040) < 0.1


def test_a_pipe_has_no_share_to_tell(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import os

    from glassformer.cli import reading

    ends = os.pipe()
    with open(ends[0], "rb") as stream, open(ends[1], "wb") as other, pytest.MonkeyPatch.context() as patch:
        ticks = iter(range(10**6))
        patch.setattr(reading.time, "monotonic", lambda: float(next(ticks)))
        with reading.shown(range(10 * reading.LOOK), [stream, other], "-") as rows:
            assert sum(1 for _ in rows) == 10 * reading.LOOK
    assert re.fullmatch(r"-: 2,560 pairs, \d+/s\n", capsys.readouterr().err)

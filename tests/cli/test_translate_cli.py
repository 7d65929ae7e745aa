"""`translate`, `score` and `evaluate` from the command line, over a tiny model with random weights."""

import io
import json
import math
import os
import subprocess
import sys
import threading

import pytest
import torch

from glassformer.api import load
from glassformer.cli.main import main
from glassformer.cli.translating import Format, _written
from glassformer.families import configure
from glassformer.models.build import build_model
from glassformer.store import Translation, save_model
from glassformer.text.pipeline import SPLIT_ABOVE
from glassformer.text.tokenizer import Tokenizer

LINES = ["我爱自然语言处理。", "我喜欢打篮球。", "I love natural language processing.", "The cat sat on the mat."] * 4
INPUT = "我爱猫\n\nThe cat sat\u2028on the mat.\n　\nlone\rreturn\nlast"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    torch.manual_seed(4)
    tokenizer = Tokenizer.train(LINES, vocab_size=330, languages=("zh", "en"))
    network = build_model(configure("transformer-tiny", vocab_size=tokenizer.vocab_size))
    path = tmp_path_factory.mktemp("model") / "zh-en"
    save_model(path, network, tokenizer, Translation(source="zh", target="en", both_directions=True))
    return str(path)


@pytest.fixture
def tsv(tmp_path) -> str:
    path = tmp_path / "test.tsv"
    path.write_text("en\tzh\nThe cat\t我爱猫\nI love\t我喜欢\nthe mat\t打篮球\n", encoding="utf-8")
    return str(path)


def stdin(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def expected(model: str, text: str, **options) -> list[str]:
    return [t.replace("\n", " ") for t in load(model).translate(text.split("\n"), **options)]


def test_a_line_comes_out_for_each_line_in_from_every_kind_of_input(model, tmp_path, monkeypatch, capsys):
    want = expected(model, INPUT, beam_size=2)
    assert any(want) and want[1] == want[3] == ""
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(b"\xef\xbb\xbf" + INPUT.replace("\n", "\r\n").encode())

    stdin(monkeypatch, INPUT.encode())
    assert main(["translate", "-m", model, "-b", "2"]) == 0
    assert capsys.readouterr().out == "\n".join(want) + "\n"

    assert main(["translate", "-m", model, "--beam", "2", "-i", str(source), "-o", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert out.read_bytes().decode() == "\n".join(want) + "\n"

    assert main(["translate", "-m", model, "--num_beams", "2", "我爱猫", "last"]) == 0
    assert capsys.readouterr().out == f"{want[0]}\n{want[-1]}\n"


def test_many_lines_keep_their_order_over_chunks(model, monkeypatch, capsys):
    lines = [f"{'我爱猫' * (i % 5)} {i}" if i % 7 else "" for i in range(70)]
    stdin(monkeypatch, "\n".join(lines).encode())
    assert main(["translate", "-m", model, "-b", "1", "--max-new-tokens", "6"]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == expected(model, "\n".join(lines), beam_size=1, max_new_tokens=6)


def test_results_come_while_the_input_is_still_open(model):
    command = [sys.executable, "-m", "glassformer", "translate", "-m", model, "-b", "1", "--max-new-tokens", "2"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=buffered) as process:
        assert process.stdin is not None and process.stdout is not None
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        process.stdin.write("我爱\n".encode() * 16)
        process.stdin.flush()
        assert [process.stdout.readline()[-1:] for _ in range(16)] == [b"\n"] * 16
        process.stdin.close()
        assert process.wait() == 0
        watchdog.cancel()


def test_an_endless_input_is_never_read_far_ahead(model, monkeypatch, capsys):
    class Endless(io.RawIOBase):
        read_lines = written = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.read_lines += 1
            self.written += capsys.readouterr().out.count("\n")
            assert self.read_lines - self.written <= 1024 + 1
            if self.read_lines > 1100:
                raise KeyboardInterrupt
            buffer[:1] = b"\n"
            return 1

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless(), 1)))
    assert main(["translate", "-m", model]) == 130


def test_a_line_end_inside_a_translation_makes_no_second_line():
    assert _written({"translation": "a\nb"}, Format.text) == "a b\n"


def test_threads_reach_torch(model, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert main(["translate", "-m", model, "--engine", "model", "--threads", "3", "-b", "1", "我"]) == 0
    assert asked == [3]


def test_jsonl_holds_one_record_a_line_as_the_api_gives_it(model, capsys):
    arguments = ["--format", "jsonl", "--n-best", "3", "-b", "4", "--length-penalty", "0.6", "--to", "en"]
    assert main(["translate", "-m", model, *arguments, "我爱猫", ""]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    options = {"beam_size": 4, "n_best": 3, "length_penalty": 0.6, "to": "en", "details": True}
    assert records == load(model).translate(["我爱猫", ""], **options)


def test_bad_bytes_stop_or_are_replaced(model, monkeypatch, capsys):
    stdin(monkeypatch, b"ok\nbad \xff\n")
    assert main(["translate", "-m", model, "-b", "1"]) == 2
    error = capsys.readouterr().err
    assert ":2: byte 0xff" in error and "--errors replace" in error
    stdin(monkeypatch, b"ok\nbad \xff\n")
    assert main(["translate", "-m", model, "-b", "1", "--errors", "replace"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_empty_input_gives_empty_output_and_says_so(model, monkeypatch, capsys):
    stdin(monkeypatch, b"")
    assert main(["translate", "-m", model]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "empty" in captured.err


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--n-best", "3", "--format", "jsonl", "-b", "2"], ["--n-best 3", "--beam-size 2"]),
        (["--n-best", "3"], ["--n-best 3", "--format jsonl"]),
        (["-b", "100000"], ["--beam-size 100000", "512"]),
        (["-b", "4", "--temperature", "0.7"], ["--beam-size 4", "--temperature 0.7"]),
        (["--temperature", "-1"], ["--temperature -1", "from 1e-6 to 1e6"]),
        (["--top-p", "1.5"], ["--top-p 1.5", "at most 1"]),
        (["--beam-groups", "2"], ["--beam-groups 2", "--beam-size 5"]),
        (["--split-above", "-1"], ["--split-above -1"]),
        (["--alignments"], ["--alignments", "--format jsonl"]),
        (["--alignment-heads", "a"], ["--alignment-heads 'a'", "numbers"]),
        (["--banned", ","], ["--banned ','", "words"]),
        (["--banned", "word.txt"], ["--banned word.txt: no such file", "words with commas"]),
        (["--banned", "no/words"], ["--banned no/words: no such file"]),
        (["--glossary", "absent.tsv"], ["absent.tsv"]),
        (["--prefix-file", "absent.txt"], ["absent.txt"]),
        (["-b", "0"], ["--beam-size 0", "512"]),
        (["--precision", "int7"], ["--precision int7", "bf16"]),
        (["--threads", "0"], ["--threads 0"]),
        (["--batch-tokens", "0"], ["--batch-tokens 0"]),
        (["--to", "fr"], ["--to fr", "--from zh --to en"]),
        (["--errors", "ignore"], ["--errors ignore", "strict or replace"]),
        (["-i", "absent.txt"], ["TEXT", "absent.txt"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(model, capsys, monkeypatch, arguments, told):
    text = [] if "--errors" in arguments else ["我"]
    stdin(monkeypatch, b"x")
    assert main(["translate", "-m", model, *arguments, *text]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert all(part in captured.err for part in told)


def test_missing_files_and_models_are_told_by_name(model, tmp_path, capsys):
    for arguments in (["-m", model, "-i", str(tmp_path / "no.txt")], ["-m", str(tmp_path / "no-model"), "我"]):
        assert main(["translate", *arguments]) == 2
        assert "no" in capsys.readouterr().err.replace(str(tmp_path), "")


def test_the_output_never_overwrites_the_input(model, tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("我爱\n", encoding="utf-8")
    assert main(["translate", "-m", model, "-i", str(path), "-o", str(path)]) == 2
    assert path.read_text(encoding="utf-8") == "我爱\n" and "overwrite" in capsys.readouterr().err


def test_moses_lists_each_lines_best_by_its_number(model, capsys):
    assert main(["translate", "-m", model, "--format", "moses", "--n-best", "2", "-b", "3", "我爱猫", "", "last"]) == 0
    rows = [line.split(" ||| ") for line in capsys.readouterr().out.splitlines()]
    records = load(model).translate(["我爱猫", "", "last"], n_best=2, beam_size=3, details=True)
    assert [(int(n), text, float(a), float(b)) for n, text, a, b in rows] == [
        (number, c["translation"].replace("\n", " "), c["score"], c["score"])
        for number, record in enumerate(records)
        for c in record["n_best"]
    ]


def test_prefixes_terms_and_banned_words_reach_the_translation(model, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("我爱猫\n\n我喜欢打篮球\n", encoding="utf-8")
    (tmp_path / "prefixes.txt").write_text("The cat\r\n\r\n\r\n", encoding="utf-8")
    (tmp_path / "terms.tsv").write_text("篮球\tthe mat\n", encoding="utf-8")
    (tmp_path / "banned.txt").write_text("\n love \n", encoding="utf-8")
    files = [str(tmp_path / name) for name in ("in.txt", "prefixes.txt", "terms.tsv", "banned.txt")]
    arguments = ["translate", "-m", model, "-b", "2", "--max-new-tokens", "9", "-i", files[0]]
    assert main([*arguments, "--prefix-file", files[1], "--glossary", files[2], "--banned", files[3]]) == 0
    out = capsys.readouterr().out
    first, blank, last = out.splitlines()
    assert first.startswith("The cat") and blank == "" and "the mat" in last
    assert main([*arguments, "--prefix-file", files[1], "--glossary", files[2], "--banned", "x y, love"]) == 0
    assert capsys.readouterr().out == out

    (tmp_path / "prefixes.txt").write_text("a\n\n", encoding="utf-8")
    assert main([*arguments, "--prefix-file", files[1]]) == 2
    told = capsys.readouterr()
    assert told.out == "" and "has 2 lines, but the input has 3" in told.err and told.err.count("\n") == 1
    (tmp_path / "terms.tsv").write_text("a\tb\n\nalone\n", encoding="utf-8")
    assert main([*arguments, "--glossary", files[2]]) == 2
    assert f"{files[2]}:3: expected a term" in capsys.readouterr().err
    assert main([*arguments, "--prefix-file", files[1], "-o", files[1]]) == 2
    assert "overwrite" in capsys.readouterr().err


def test_sampling_repeats_with_its_seed(model, capsys):
    arguments = ["translate", "-m", model, "--temperature", "1.2", "--top_k", "40", "--seed", "5", "我爱猫"]
    outs = []
    for _ in range(2):
        assert main(arguments) == 0
        outs.append(capsys.readouterr().out)
    wanted = load(model).translate("我爱猫", temperature=1.2, top_k=40, seed=5)
    assert outs[0] == outs[1] == wanted + "\n"


def test_score_gives_a_json_line_for_each_pair(model, tsv, capsys):
    assert main(["score", "-m", model, "--tsv", tsv, "--from", "zh", "--to", "en", "--length-penalty", "0"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(records) == 3
    for record in records:
        assert list(record) == ["score", "tokens"] and record["tokens"][-1]["token"] == "</s>"
        assert record["score"] == pytest.approx(math.fsum(token["logprob"] for token in record["tokens"]))
    wanted = load(model).score([("我爱猫", "The cat")], to="en", length_penalty=0)
    assert records[0]["score"] == pytest.approx(wanted[0]["score"], abs=1e-4)


@pytest.mark.parametrize("source, target", [("zh", "en"), ("en", "zh")])
def test_evaluate_scores_what_translate_gives(model, tsv, source, target, capsys):
    arguments = ["evaluate", "-m", model, "--tsv", tsv, "--from", source, "--to", target, "-b", "2", "--limit", "2"]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    from glassformer.train.evaluate import corpus_scores

    sides = {"zh": ["我爱猫", "我喜欢"], "en": ["The cat", "I love"]}
    hypotheses = load(model).translate(sides[source], source=source, to=target, beam_size=2)
    scores = corpus_scores(hypotheses, sides[target], target)
    assert {key: report[key] for key in scores} == scores
    assert report["sentences"] == 2 and report["sentences_per_second"] > 0

    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert all(f"{report[key]:.2f}" in table for key in ("bleu", "chrf", "ter")) and "a second" in table
    assert all(signature in table for signature in scores["signatures"].values())


def test_help_needs_no_torch():
    code = (
        "import sys; from glassformer.cli.main import main\n"
        "for name in ('translate', 'score', 'evaluate'): assert main([name, '--help']) == 0\n"
        "assert not {'torch', 'sacrebleu', 'tokenizers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--beam-size" in done.stdout
    assert "[default: (60)]" in done.stdout and SPLIT_ABOVE == 60


@pytest.mark.parametrize("engine", ["model", "auto"])
def test_streamed_lines_are_those_of_greedy_search_and_come_piece_by_piece(
    model, engine, tmp_path, monkeypatch, capsys
):
    text, prefixes = tmp_path / "text", tmp_path / "prefixes"
    text.write_text("我爱猫\n\nThe cat.\n", encoding="utf-8")
    prefixes.write_text("\n\n猫，cat sat\n", encoding="utf-8")
    files = ["-i", str(text), "--prefix-file", str(prefixes)]
    arguments = ["translate", "-m", model, "--engine", engine, "--max-new-tokens", "9", *files]
    assert main([*arguments, "--beam-size", "1"]) == 0
    whole, written = capsys.readouterr().out, []
    monkeypatch.setattr(sys.stdout, "write", written.append)
    assert main([*arguments, "--stream"]) == 0
    assert "".join(written) == whole and whole.count("\n") == 3 and len(written) > 2 * whole.count("\n")


@pytest.mark.parametrize(
    "flags, words",
    [
        (["-b", "4"], ["--stream", "--beam-size 4", "--beam-size 1"]),
        (["--format", "jsonl"], ["--stream", "--format jsonl"]),
        (["--glossary", "terms.tsv", "--no-protect"], ["--stream", "--glossary", "--no-protect"]),
        (["--glossary", "terms.tsv", "--prefix-file", "p"], ["--stream", "--glossary", "--prefix-file"]),
        (["--n-best", "2"], ["--n-best 2", "--beam-size"]),
    ],
)
def test_what_cannot_be_streamed_is_refused_before_a_model_is_read(flags, words, capsys):
    assert main(["translate", "-m", "no-such-model", "--stream", *flags, "我"]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words) and error.count("\n") == 1

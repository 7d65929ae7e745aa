"""What users are promised of text and files, each promise by one test that quotes it, end to end where that is short.

The laws behind them are held in tests/laws, tests/unit and tests/cli; here a promise cannot be forgotten.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys

import pytest

from glassformer.text.normalize import NORMALIZERS
from glassformer.text.split import split
from glassformer.text.stream import StreamDecoder
from glassformer.text.tokenizer import Tokenizer
from tests.conftest import REPOSITORY
from tests.promises.conftest import LINES, POSITIONS, check_each_promise_has_its_test, write

PROMISES = """
N lines in, N lines out, always, in order
blank, space-only and U+3000-only lines give blank lines
an over-long line is split or flagged, never dropped, and never shifts its neighbours
Only \\n ends a line (not U+2028, U+2029, U+0085, a lone CR)
CRLF and a BOM are removed
UTF-8 everywhere, whatever the locale
a bad byte is reported as file:line
--errors says whether to stop or replace
Two files of unequal length: an error with both counts and the first suspect line, before any training
Cleaning and statistics as commands: duplicates
Cleaning and statistics as commands: one-to-many
Cleaning and statistics as commands: source = target
Cleaning and statistics as commands: length ratio
Cleaning and statistics as commands: wrong script
Cleaning and statistics as commands: overlap of train and test
Normalisation is an explicit choice saved with the tokenizer
a Chinese target keeps ，！？（）
Byte fallback is on: 𠮷野家🐉龘《鸡》 survives
a coverage report
Broken byte pieces decode to U+FFFD
streaming decode, joined, equals the full decode, spaces included
WordPiece decodes Chinese without spaces between characters
WordPiece keeps accents
BPE training on text without spaces ends in bounded time
Placeholders, URLs, e-mails, tags, numbers in braces come through exactly once, untouched
A glossary forces terms
A splitter that loses nothing and rejoins with the same separators
long text is translated sentence by sentence
a `truncated` flag if ever cut
""".strip().split("\n")

PROTECTED = ["%1$s", "{{name}}", "https://a.com/x?y=1", "me@example.org", "{0}", "<br/>", "%d", "${HOME}", "`code`"]
ODD = [
    "", " ", "\t", "\u3000", "\u3000 \u00a0", "\u2028", "\x85", "a\u2028b", "lone\rreturn", "a\x00b\x1b[31mc", "\u200b",
    "𠮷野家🐉龘《鸡》", "😀👩‍👩‍👧", "100%", "3.14", "---", "مرحبا", "ALL CAPITALS HERE", "我用 Python 写代码",
    "Hello. 你好。", "e\u0301" * 9, "  blanks around  ", "X1 and {n}", "ha ha ha ha ha", "</s> <2en> <pad>",
    *PROTECTED, *(f"See {p}, then {p}. 我爱 {p}" for p in PROTECTED), "<b>Bold <i>cat</i></b>", "<b>loose",
]  # fmt: skip
FAST = ("-b", 1, "--max-new-tokens", 4, "--no-repeat-ngram", 2)
FAST_OPTIONS = {"beam_size": 1, "max_new_tokens": 4, "no_repeat_ngram": 2}


def test_each_promise():
    check_each_promise_has_its_test(sys.modules[__name__], PROMISES)


def translated(run, model, stdin: bytes, *flags) -> list[str]:
    code, out, err = run("translate", "-m", model, *FAST, *flags, stdin=stdin)
    assert code == 0, err
    *lines, rest = out.split("\n")
    assert rest == ""
    return lines


def test_n_lines_in_n_lines_out_in_order_whatever_they_hold(run, model, translator):
    """N lines in, N lines out, always, in order"""
    lines = ["我爱打篮球。" * 60, "x" * 2000, *(f"{odd} {i}" if i % 3 else odd for i, odd in enumerate(ODD * 6))][:200]
    results = translated(run, model, "".join(f"{line}\n" for line in lines).encode(), "--engine", "model")
    assert results == [translator.translate(line, **FAST_OPTIONS) for line in lines]


def test_lines_of_blanks_give_blank_lines(run, model):
    """blank, space-only and U+3000-only lines give blank lines"""
    blanks = ["", " ", "   ", "\u3000", "\u3000 \u3000", "\t", "\u00a0", "\u2028"]
    lines = [line for blank in blanks for line in ("我爱猫。", blank)]
    results = translated(run, model, "\n".join(lines).encode())
    assert [bool(result.strip()) for result in results] == [True, False] * len(blanks)


def test_an_over_long_line_is_split_or_flagged_and_shifts_no_neighbour(run, model, caplog):
    """an over-long line is split or flagged, never dropped, and never shifts its neighbours"""
    long = "我爱打篮球。" * 20
    lines = ["我爱猫", long, "last"]
    alone = [translated(run, model, line.encode()) for line in (lines[0], lines[2])]
    for flags, cut in ((), False), (("--no-split",), True):
        caplog.clear()
        code, out, _ = run("translate", "-m", model, *FAST, "--format", "jsonl", *flags, *lines)
        records = [json.loads(row) for row in out.splitlines()]
        assert code == 0 and [record["source"] for record in records] == lines
        assert [[records[0]["translation"]], [records[2]["translation"]]] == alone
        assert (f"text 2: cut to the model's limit of {POSITIONS} tokens" in caplog.text) == cut
        assert records[1]["translation"] and (records[1]["truncated"] or not cut)


def test_only_a_line_feed_ends_a_line(run, model):
    """Only \\n ends a line (not U+2028, U+2029, U+0085, a lone CR)"""
    for other in ("\u2028", "\u2029", "\u0085", "\r", "\x0b", "\x0c", "\x1c"):
        code, out, _ = run("translate", "-m", model, *FAST, "--format", "jsonl", stdin=f"a{other}b\nc\n".encode())
        assert code == 0
        assert [json.loads(row)["source"] for row in out.split("\n")[:-1]] == [f"a{other}b", "c"]
        assert len(translated(run, model, f"a{other}b\nc\n".encode())) == 2


def test_crlf_and_a_byte_order_mark_are_removed(run, model):
    """CRLF and a BOM are removed"""
    marked = b"\xef\xbb\xbf" + "\r\n".join(LINES[:3]).encode() + b"\r\n"
    code, out, _ = run("translate", "-m", model, *FAST, "--format", "jsonl", stdin=marked)
    assert code == 0 and [json.loads(row)["source"] for row in out.splitlines()] == LINES[:3]


def test_the_locale_does_not_matter(model, tmp_path):
    """UTF-8 everywhere, whatever the locale"""
    lines = write(tmp_path / "in.txt", *LINES[:3])
    command = [sys.executable, "-m", "glassformer", "translate", "-m", model, *map(str, FAST)]
    environment = {"PYTHONPATH": str(REPOSITORY / "src"), "PATH": "", "OMP_NUM_THREADS": "1"}
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    answers = [
        subprocess.run([*command, *texts], capture_output=True, env=environment | locale, timeout=120)
        for locale in ({"LC_ALL": "C.UTF-8"}, ascii_alone, {"LC_ALL": "C"})
        for texts in ([["-i", str(lines)]] if locale is ascii_alone else [LINES[:3]])
    ]
    assert [(done.returncode, done.stdout) for done in answers] == [(0, answers[0].stdout)] * 3
    assert answers[0].stdout.decode().count("\n") == 3


def test_a_bad_byte_is_reported_as_file_and_line(run, model, tmp_path):
    """a bad byte is reported as file:line"""
    path = tmp_path / "a.tsv"
    path.write_bytes("一\tone\n二\ttw".encode() + b"\xff\n")
    for command in (["translate", "-m", model, "-i"], ["data", "stats"], ["data", "clean"], ["data", "split"]):
        code, _, err = run(*command, path)
        assert code == 2 and f"{path}:2: byte 0xff at offset 14 is not UTF-8" in err


def test_errors_says_whether_to_stop_or_replace(run, model):
    """--errors says whether to stop or replace"""
    bad = b"a\xffb\nThe cat\n"
    assert run("translate", "-m", model, *FAST, "--errors", "strict", stdin=bad)[0] == 2
    code, out, _ = run("translate", "-m", model, *FAST, "--format", "jsonl", "--errors", "replace", stdin=bad)
    assert code == 0 and [json.loads(row)["source"] for row in out.splitlines()] == ["a\ufffdb", "The cat"]


def test_two_files_of_unequal_length_are_refused_before_any_training(run, tmp_path):
    """Two files of unequal length: an error with both counts and the first suspect line, before any training"""
    sources = [f"{'字' * (n % 9 + 2)}{n}" for n in range(30)]
    targets = [f"{'word ' * (n % 9 + 2)}{n}" for n in range(30)]
    del targets[11]
    zh, en = write(tmp_path / "a.zh", *sources), write(tmp_path / "a.en", *targets)
    config = tmp_path / "c.yaml"
    data = {"train": [[str(zh), str(en)]], "source": "zh", "target": "en"}
    config.write_text(json.dumps({"data": data, "train": {"output": str(tmp_path / "run"), "steps": 1}}))
    for command in (["train", config], ["data", "stats", zh, en], ["data", "clean", zh, en]):
        code, _, err = run(*command)
        assert code == 2 and f"{zh} has 30 lines but {en} has 29" in err
        suspect = re.search(rf"first suspect: {re.escape(str(zh))}:(\d+)", err)
        assert suspect and abs(int(suspect[1]) - 12) <= 1
    assert not list(tmp_path.rglob("*.safetensors"))


GOOD = [f"我喜欢第{n}本书。\tI like book number {n}." for n in range(30)]


@pytest.fixture
def counted(run, tmp_path):
    """What `data stats` reports of some more lines, and the places of those that `data clean` drops, by reason."""

    def counted(*lines: str, flags: tuple = ()) -> tuple[dict, list[str]]:
        path = write(tmp_path / "a.tsv", "zh\ten", *GOOD, *lines)
        report = json.loads(run("data", "stats", path, "--json", *flags)[1])
        assert run("data", "clean", path, "-o", tmp_path / "b.tsv", "--rejected", tmp_path / "no.tsv")[0] == 0
        kept = (tmp_path / "b.tsv").read_text(encoding="utf-8").splitlines()
        dropped = (tmp_path / "no.tsv").read_text(encoding="utf-8").splitlines()[1:]
        assert len(kept) - 1 + len(dropped) == len(GOOD) + len(lines)
        return report, [line.split("\t")[2] for line in dropped]

    return counted


def test_duplicates_are_counted_and_cleaned(counted):
    """Cleaning and statistics as commands: duplicates"""
    report, dropped = counted(GOOD[3], GOOD[5], GOOD[3])
    assert (report["pairs"], report["duplicates"], dropped) == (33, 3, ["duplicate"] * 3)


def test_sources_with_several_targets_are_counted(counted):
    """Cleaning and statistics as commands: one-to-many"""
    zh, en = GOOD[3].split("\t")
    report, dropped = counted(f"{zh}\tThat one too.", f"你好吗？\t{en}", f"我好。\t{en}")
    assert report["sources_with_several_targets"] == report["targets_with_several_sources"] == 1
    assert dropped == [], "a second translation teaches nothing false"


def test_a_target_that_is_its_source_is_counted_and_cleaned(counted):
    """Cleaning and statistics as commands: source = target"""
    report, dropped = counted("OK 好\tok 好！")
    assert (report["identical"], dropped) == (1, ["identical"])


def test_the_length_ratio_is_told_and_cleaned_by(counted):
    """Cleaning and statistics as commands: length ratio"""
    report, dropped = counted(f"短句\t{'a very long answer ' * 9}")
    assert report["length_ratio"]["p50"] < 3 and report["length_ratio"]["p100"] > 80
    assert dropped == ["length ratio"]


def test_the_wrong_script_is_counted_and_cleaned(counted):
    """Cleaning and statistics as commands: wrong script"""
    report, dropped = counted("Bonjour à tous\tGood morning", "大家早上好\t大家早上好啊", "我用 Python\tI use Python")
    assert (report["source"]["wrong_script"], report["target"]["wrong_script"]) == (1, 1)
    assert report["source"]["mixed_scripts"] == 1 and report["source"]["scripts"]["LATIN"] == 1
    assert dropped == ["wrong script"] * 2


def test_what_a_test_set_shares_with_training_is_told(counted, run, tmp_path):
    """Cleaning and statistics as commands: overlap of train and test"""
    test = write(tmp_path / "test.tsv", "zh\ten", GOOD[4], "新的句子\tA new one", "妳好\tI LIKE book number 7")
    found = counted(flags=("--against", test))[0]["against"][str(test)]
    assert (found["pairs"], found["any"], found["same_pair"], found["near_target"]) == (3, 2, 1, 2)
    assert found["examples"] == [f"{test}:2", f"{test}:4"]
    corpus = write(tmp_path / "all.tsv", "zh\ten", *GOOD, *(line.replace("I like", "i LIKE") for line in GOOD))
    assert run("data", "split", corpus, "-o", tmp_path, "--dev", 10, "--test", 10)[0] == 0
    against = [flag for name in ("dev", "test") for flag in ("--against", tmp_path / f"{name}.tsv")]
    report = json.loads(run("data", "stats", tmp_path / "train.tsv", "--json", *against)[1])
    assert [found["any"] for found in report["against"].values()] == [0, 0], "split lets nothing through"


def test_the_normaliser_is_chosen_and_saved_with_the_tokenizer(run, tmp_path):
    """Normalisation is an explicit choice saved with the tokenizer"""
    corpus = write(tmp_path / "a.txt", *LINES, *["cafe\u0301 Ｆｕｌｌ"] * 4)
    kept = {"none": "cafe\u0301 Ｆｕｌｌ", "nfc": "café Ｆｕｌｌ", "nfkc": "café Full"}
    for name in NORMALIZERS:
        flags = ["--vocab-size", 330, "--normalizer", name, "-o", tmp_path / name]
        assert run("tokenizer", "train", corpus, *flags)[0] == 0
        tokenizer = Tokenizer.load(tmp_path / name)
        assert tokenizer.decode(tokenizer.encode("cafe\u0301 Ｆｕｌｌ")) == kept[name]
        assert name in run("tokenizer", "info", tmp_path / name)[1]


def test_chinese_punctuation_is_kept_under_every_normaliser():
    """a Chinese target keeps ，！？（）"""
    for name in NORMALIZERS:
        tokenizer = Tokenizer.train([*LINES, "好，真的吗？（是）！"], vocab_size=330, normalizer=name)
        assert tokenizer.decode(tokenizer.encode("好，！？（）")) == "好，！？（）"


def test_characters_without_a_piece_survive():
    """Byte fallback is on: 𠮷野家🐉龘《鸡》 survives"""
    for kind in ("bpe", "unigram"):
        tokenizer = Tokenizer.train(LINES, kind=kind, vocab_size=310)
        assert tokenizer.token_to_id("龘") is None
        assert tokenizer.decode(tokenizer.encode("𠮷野家🐉龘《鸡》")) == "𠮷野家🐉龘《鸡》"


def test_training_a_tokenizer_reports_its_coverage(run, tmp_path):
    """a coverage report"""
    corpus = write(tmp_path / "a.txt", *LINES, "龘")
    code, out, err = run("tokenizer", "train", corpus, "--vocab-size", 330, "-o", tmp_path / "t")
    characters = sum(map(len, LINES)) + 1
    assert code == 0 and out == "" and f"of {characters:,} characters" in err
    share = float(re.search(r"([\d.]+) % in pieces, ([\d,]+) as bytes", err)[1])
    assert share == pytest.approx(100 * (1 - 1 / characters), abs=0.001)


def test_broken_byte_pieces_decode_to_the_replacement_character():
    """Broken byte pieces decode to U+FFFD"""
    tokenizer = Tokenizer.train(LINES, vocab_size=330)
    broken = [tokenizer.token_to_id(piece) for piece in ("<0xE9>", "<0xBE>")]  # two thirds of 龘
    text = tokenizer.decode([*tokenizer.encode("我"), *broken, *tokenizer.encode("爱")])
    assert set(text) == {*"我\ufffd爱"} and text[0] == "我" and text[-1] == "爱"


def test_streamed_text_joins_to_the_whole_text():
    """streaming decode, joined, equals the full decode, spaces included"""
    for kind in ("bpe", "unigram", "wordpiece"):
        tokenizer = Tokenizer.train(LINES, kind=kind, vocab_size=330)
        for seed in range(40):
            draw = random.Random(seed)
            ids = [draw.randrange(tokenizer.vocab_size) for _ in range(12)]
            ids += tokenizer.encode(" The cat  sat 我爱 龘 on")
            decoder = StreamDecoder(tokenizer)
            pieces = [decoder.feed(index) for index in ids]
            assert "".join([*pieces, decoder.finish()]) == tokenizer.decode(ids)


WORDPIECE = ["我爱自然语言处理 größten Übung café"] * 4


def test_wordpiece_puts_no_space_into_chinese():
    """WordPiece decodes Chinese without spaces between characters"""
    tokenizer = Tokenizer.train(WORDPIECE, kind="wordpiece", vocab_size=400)
    assert tokenizer.decode(tokenizer.encode("我爱处理 语言")) == "我爱处理 语言"


def test_wordpiece_keeps_accents():
    """WordPiece keeps accents"""
    tokenizer = Tokenizer.train(WORDPIECE, kind="wordpiece", vocab_size=400)
    assert tokenizer.decode(tokenizer.encode("größten Übung café")) == "größten Übung café"


def test_bpe_training_on_text_without_spaces_is_bounded():
    """BPE training on text without spaces ends in bounded time"""
    letters = random.Random(5)
    line = "".join(letters.choices([chr(0x4E00 + i) for i in range(60)], k=60_000))
    tokenizer = Tokenizer.train([line], vocab_size=800)
    # Unbounded runs would make merges of ever longer pieces, and the time grow with their square.
    assert tokenizer.vocab_size == 800 and max(map(len, tokenizer.backend.get_vocab())) <= 64
    assert tokenizer.decode(tokenizer.encode(line[:5000])) == line[:5000]


def test_placeholders_urls_emails_and_tags_come_through_exactly_once(run, model):
    """Placeholders, URLs, e-mails, tags, numbers in braces come through exactly once, untouched"""
    kinds = [*PROTECTED, "{12}", "<b>", "www.example.org/a_b", "%(name)s", "&nbsp;"]
    frames = ["See {}, then go.", "我爱{}和猫。", "{}"]
    lines = [frame.replace("{}", kind) for kind in kinds for frame in frames]
    results = translated(run, model, "\n".join(lines).encode())
    counts = [result.count(kind) for result, kind in zip(results, [k for k in kinds for _ in frames], strict=True)]
    assert counts == [1] * len(lines), [line for line, count in zip(lines, counts, strict=True) if count != 1]


def test_a_glossary_forces_its_terms(run, model, tmp_path):
    """A glossary forces terms"""
    glossary = write(tmp_path / "g.tsv", "zh\ten", "自然\tthe mat", "篮球\tcat")
    arguments = ["translate", "-m", model, "-b", 4, "--max-new-tokens", 12]
    lines = ["我爱自然。", "我喜欢打篮球。", "我爱语言"]
    free, forced = (run(*arguments, *flags, *lines)[1].splitlines() for flags in ((), ("--glossary", glossary)))
    assert "the mat" in forced[0] and "cat" in forced[1] and "the mat" not in free[0] and "cat" not in free[1]
    assert forced[2] == free[2]


def test_sentences_and_separators_are_the_text():
    """A splitter that loses nothing and rejoins with the same separators"""
    pieces = [
        "Dr. Smith left. ",
        "他说：“好。”",
        "\n",
        "\u3000",
        "3.5 % ",
        "Why? ",
        "No!\t",
        "。",
        "x" * 90,
        "…",
        "\r\n",
        " ",
    ]
    draw = random.Random(1)
    for _ in range(300):
        text = "".join(draw.choices(pieces, k=draw.randrange(9)))
        for longest in (None, 20):
            found = split(text, max_length=longest)
            assert "".join(sentence + separator for sentence, separator in found) == text
            assert not any(separator.strip() for _, separator in found)


def test_long_text_is_translated_sentence_by_sentence(run, model):
    """long text is translated sentence by sentence"""
    sentences = ["The cat sat.", "I love natural language.", "The mat sat on the cat."]
    whole = translated(run, model, (" ".join(sentences * 3) + "\n").encode(), "--split-above", 10)
    parts = translated(run, model, "\n".join(sentences).encode(), "--split-above", 10)
    assert len(whole) == 1
    rest = whole[0]
    for part in parts * 3:
        assert rest.lstrip().startswith(part)
        rest = rest.lstrip().removeprefix(part)
    assert rest.strip() == ""


def test_whatever_is_cut_is_flagged(run, model):
    """a `truncated` flag if ever cut"""
    lines = ["我爱猫", "我爱打篮球" * 30]
    arguments = ["translate", "-m", model, "--format", "jsonl", "-b", 1]
    _, out, _ = run(*arguments, "--no-split", *lines)
    assert json.loads(out.splitlines()[1])["truncated"], "a source cut to the model's limit"
    _, out, _ = run(*arguments, "--max-new-tokens", 1, *lines)
    assert all(json.loads(row)["truncated"] for row in out.splitlines()), "a target cut to the limit asked for"

"""What a line is, what a pair is, and what each mistake in a file is told."""

import io
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glassformer.data import Pair, read_lines, read_pairs
from glassformer.data.corpus import first_suspect
from glassformer.errors import UserError

Write = Callable[[str, str | bytes], Path]

# Rich in what other readers take for the end of a line, or for nothing at all.
odd_text = st.text(
    st.sampled_from("\n\r\t \u3000\u2028\u2029\u0085\x00\x0b\x0c\x1c\ufeff我a𠮷") | st.characters(codec="utf-8")
)
blank = st.text(st.sampled_from(" \u3000\u2028\u0085\r\xa0"), max_size=3)
sentence = st.text(st.characters(codec="utf-8", exclude_characters="\n\t\ufeff"), min_size=1).filter(
    lambda text: bool(text.strip()) and not text.endswith("\r")
)


def lines(raw: bytes, errors: str = "strict") -> list[str]:
    return list(read_lines(io.BytesIO(raw), errors))


def mistake(path: Path, *args: object, **options: str) -> str:
    """The one line that a user reads."""
    with pytest.raises(UserError) as caught:
        read_pairs(path, *args, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write


@given(odd_text)
@example("a\r")
@example("a\r\r\n")
@example("a\r\n\r\nb\n\n")
@example("\ufeff\ufeffa")
def test_only_a_newline_ends_a_line(text: str) -> None:
    *ended, rest = text.removeprefix("\ufeff").split("\n")
    expected = [line.removesuffix("\r") for line in ended] + ([rest] if rest else [])
    assert lines(text.encode("utf-8")) == expected


@given(st.lists(odd_text.map(lambda text: text.replace("\n", "").rstrip("\r"))), st.booleans(), st.booleans())
def test_as_many_lines_out_as_were_written(written: list[str], crlf: bool, bom: bool) -> None:
    end = "\r\n" if crlf else "\n"
    raw = "\ufeff" * bom + "".join(line + end for line in written)
    if not bom and raw.startswith("\ufeff"):
        return
    assert lines(raw.encode("utf-8")) == written


def test_a_file_and_a_stream_read_alike_and_the_stream_stays_open(write: Write) -> None:
    raw = "\ufeff一\r\n\r\n\u3000\nlast".encode()
    stream = io.BytesIO(raw)
    assert list(read_lines(stream)) == list(read_lines(write("a.txt", raw))) == ["一", "", "\u3000", "last"]
    assert not stream.closed


def test_lines_come_before_the_stream_ends() -> None:
    class Slow(io.RawIOBase):
        reads = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]
            self.reads += 1
            if self.reads > 1:
                raise AssertionError("read on before the first line was asked for")
            buffer[:3] = b"hi\n"
            return 3

    assert next(read_lines(io.BufferedReader(Slow()))) == "hi"


@example([], "", b"\xff")
@example(["\ufeff"], "", b"\xff")
@example(["\ufeffa\r", ""], "", b"\xff")
@given(st.lists(odd_text, max_size=4), odd_text, st.sampled_from([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88"]))
def test_a_bad_byte_is_named_by_its_line_and_its_offset(before: list[str], after: str, bad: bytes) -> None:
    head = ("\n".join(before) + "|").encode("utf-8")
    raw = head + bad + b"|" + after.encode("utf-8")
    with pytest.raises(UserError) as caught:
        lines(raw)
    found = re.match(r"<input>:(\d+): byte 0x(..) at offset (\d+) is not UTF-8", str(caught.value))
    assert found is not None and "--errors replace" in str(caught.value)
    assert int(found[1]) == head.count(b"\n") + 1
    assert int(found[3]) == len(head) and raw[len(head)] == int(found[2], 16)
    assert any("\ufffd" in line for line in lines(raw, "replace"))


def test_lines_before_a_bad_byte_are_still_given() -> None:
    reader = read_lines(io.BytesIO(b"good\n\xff\n"))
    assert next(reader) == "good"
    with pytest.raises(UserError, match="<input>:2"):
        next(reader)


def test_utf16_is_recognised() -> None:
    with pytest.raises(UserError, match=r"<input>:1: byte 0xff at offset 0 .*UTF-16"):
        lines("你好\n".encode("utf-16"))


def test_nothing_in_nothing_out() -> None:
    assert lines(b"") == lines(b"\xef\xbb\xbf") == []
    assert lines(b"\n") == lines(b"\xef\xbb\xbf\n") == [""]


def test_a_huge_line_is_one_line() -> None:
    huge = "长" * 3_000_000
    assert lines(f"{huge}\nnext\n".encode()) == [huge, "next"]


@pytest.mark.parametrize("errors", ["ignore", "", "STRICT"])
def test_an_unknown_way_with_errors_is_refused(errors: str) -> None:
    with pytest.raises(UserError, match="strict or replace"):
        lines(b"x", errors)


@given(
    st.lists(st.tuples(sentence, sentence), min_size=1, max_size=8), st.sampled_from(["tsv", "plain", "jsonl", "hf"])
)
def test_every_format_gives_the_same_pairs(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], kind: str
) -> None:
    folder = tmp_path_factory.mktemp("formats")

    def write(name: str, rows: list[str]) -> Path:
        (folder / name).write_bytes("".join(row + "\n" for row in rows).encode("utf-8"))
        return folder / name

    if kind == "tsv":
        rows = [f"x\t{target}\tmore\t{source}" for source, target in pairs]
        got = read_pairs(write("a.tsv", ["id\ten\tsource\tzh", *rows]), source="zh", target="en")
    elif kind == "plain":
        got = read_pairs(write("a.zh", [s for s, _ in pairs]), write("a.en", [t for _, t in pairs]))
    else:
        records = [{"en": target, "zh": source, "id": 1} for source, target in pairs]
        wrapped = [{"translation": record} for record in records] if kind == "hf" else records
        got = read_pairs(write("a.jsonl", [json.dumps(r) for r in wrapped]), source="zh", target="en")
    assert got == [Pair(*pair) for pair in pairs]


def test_a_tsv_without_both_names_on_its_first_line_is_columns_one_and_two(write: Write) -> None:
    path = write("a.tsv", "zh\ten\n一\tone\n")
    assert read_pairs(path, source="zh", target="en") == [("一", "one")]
    assert read_pairs(path, source="en", target="zh") == [("one", "一")]
    assert read_pairs(path, source="zh", target="de") == [("zh", "en"), ("一", "one")]
    assert read_pairs(path) == [("zh", "en"), ("一", "one")]


def test_the_names_of_columns_stand_behind_a_bom_and_before_a_crlf(write: Write) -> None:
    path = write("a.tsv", b"\xef\xbb\xbfzh\ten\r\n\xe4\xb8\x80\tone\r\n")
    assert read_pairs(path, source="zh", target="en") == [("一", "one")]


def test_a_thousand_columns(write: Write) -> None:
    assert read_pairs(write("a.tsv", "\t".join(f"c{i}" for i in range(1000)))) == [("c0", "c1")]


def test_oddities_inside_a_side_are_kept(write: Write) -> None:
    side = "a\u2028b\u0085c\rd\x00e \u3000"
    assert read_pairs(write("a.tsv", f"{side}\t{side}\n")) == [(side, side)]


@given(st.lists(st.tuples(blank, blank), min_size=1, max_size=5))
def test_pairs_blank_on_both_sides_are_skipped_and_counted(
    tmp_path_factory: pytest.TempPathFactory, blanks: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("blank") / "a.tsv"
    path.write_bytes("".join([*(f"{s}\t{t}\n" for s, t in blanks), "\n", "一\tone\n"]).encode("utf-8"))
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("glassformer.data.corpus")
    logger.addHandler(handler)
    try:
        assert read_pairs(path) == [("一", "one")]
    finally:
        logger.removeHandler(handler)
    (record,) = records
    assert f"skipped {len(blanks) + 1} pairs" in record.getMessage()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.tsv", "", "a.tsv: no sentence pairs"),
        ("a.tsv", "\n\u3000\n", "a.tsv: no sentence pairs"),
        ("a.tsv", "source\ttarget\n", "a.tsv: no sentence pairs"),
        ("a.tsv", "一\tone\n二\n", r"a\.tsv:2: 1 column, but the target is column 2; put one tab"),
        ("a.tsv", "id\tsource\ttarget\n1\t一\n", r"a\.tsv:2: 2 columns, but the target is column 3"),
        (
            "a.tsv",
            "一\tone\n二\t\u3000\n",
            r"a\.tsv:2: the target is blank but the source is not; fill it in, or delete",
        ),
        ("a.tsv", "\u2028\tone\n", r"a\.tsv:1: the source is blank but the target is not"),
        ("a.tsv", b"a\tb\nc\t\xff\n", r"a\.tsv:2: byte 0xff at offset 6 is not UTF-8; .*--errors replace"),
        ("a.jsonl", '{"source": "a", "target": "b"}\n{"source": \n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", "[" * 100_000, r"a\.jsonl:1: not JSON"),
        ("a.jsonl", '["a", "b"]', r"a\.jsonl:1: expected an object .*found list"),
        ("a.jsonl", '{"zh": "a", "en": "b"}', r'a\.jsonl:1: no key "source" \(found: "zh", "en"\); .*data\.source'),
        ("a.jsonl", "{}", r'a\.jsonl:1: no key "source" \(found: none\)'),
        ("a.jsonl", '{"source": 1, "target": "b"}', r'a\.jsonl:1: "source" is a int, expected a string'),
        ("a.jsonl", '{"source": "", "target": "b"}', r"a\.jsonl:1: the source is blank"),
        ("a.jsonl", r'{"source": "\ud83d", "target": "b"}', r"a\.jsonl:1: \\ud83d is half of a surrogate pair"),
    ],
)
def test_each_mistake_is_told_with_its_place(write: Write, name: str, content: str | bytes, told: str) -> None:
    assert re.search(told, mistake(write(name, content)))


def test_errors_replace_reaches_every_format(write: Write) -> None:
    assert read_pairs(write("a.tsv", b"a\xff\tb\n"), errors="replace") == [("a\ufffd", "b")]
    assert read_pairs(write("a", b"\xff\n"), write("b", b"b\xc3\n"), errors="replace") == [("\ufffd", "b\ufffd")]
    record = rb'{"source": "\ud83d!", "target": "\ud83d\ude00' + b'\xff"}'
    assert read_pairs(write("a.jsonl", record), errors="replace") == [("\ufffd!", "😀\ufffd")]


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    assert "missing.tsv: cannot read it: No such file" in mistake(tmp_path / "missing.tsv")
    assert "cannot read it: Is a directory" in mistake(tmp_path)
    assert "not a path" in mistake(Path("a\0b"))
    (tmp_path / "a.zh").write_text("x\n")
    assert "a.en: cannot read it" in mistake(tmp_path / "a.zh", tmp_path / "a.en")


def test_a_blank_line_in_one_of_two_files_names_both_places(write: Write) -> None:
    told = mistake(write("a.zh", "一\n二\n"), write("a.en", "one\n \n"))
    assert re.search(r"a\.en:2: blank, but its source .*a\.zh:2 is not; fill it in, or delete both lines", told)


def test_two_files_of_unequal_length_are_refused_with_both_counts(write: Write) -> None:
    told = mistake(write("a.zh", "一二三四五\n一\n"), write("a.en", "one two three four five\nx y\n\nlast\n"))
    assert re.search(r"a\.zh has 2 lines but \S*a\.en has 4", told)
    assert re.search(r"first suspect: \S*a\.en:3", told)
    assert re.search(r"a\.zh has 0 lines but \S*a\.en has 1", mistake(write("a.zh", ""), write("a.en", "x\n")))


@pytest.mark.parametrize("longer", ["source", "target"])
@pytest.mark.parametrize("surplus", [1, 3])
def test_the_first_suspect_line_is_where_lines_were_lost(longer: str, surplus: int) -> None:
    rng = Random(1)
    misses = []
    for _ in range(30):
        sources = [rng.randint(3, 60) for _ in range(400)]
        targets = [max(1, round(3.3 * length * rng.uniform(0.8, 1.25))) for length in sources]
        lost = rng.randrange(400 - surplus)
        kept = sources if longer == "target" else targets
        del kept[lost : lost + surplus]
        misses.append(abs(first_suspect(sources, targets) - (lost + 1)))
    assert sorted(misses)[15] <= 1, "half of the guesses within a line"
    assert max(misses) <= 12


def test_the_first_suspect_line_of_a_cut_file_is_the_first_without_a_partner() -> None:
    rng = Random(2)
    sources = [rng.randint(3, 60) for _ in range(300)]
    assert first_suspect(sources, [2 * length for length in sources[:250]]) == 251
    assert first_suspect([], [5, 5]) == 1


def test_real_pairs_are_read_whole(shared: Path) -> None:
    path = shared / "data/zh-en/train.tsv"
    pairs = read_pairs(path, source="zh", target="en")
    assert len(pairs) == path.read_bytes().count(b"\n") - 1
    assert pairs[0] == ("他是个城市规划的专家。", "He is an expert in the area of city planning.")
    assert read_pairs(path, source="en", target="zh") == [(target, source) for source, target in pairs]


def test_a_line_lost_from_real_text_is_found_nearby(shared: Path, write: Write) -> None:
    pairs = read_pairs(shared / "data/zh-en/dev.tsv", source="zh", target="en")
    chinese, english = [source for source, _ in pairs], [target for _, target in pairs]
    del english[400]
    told = mistake(write("dev.zh", "\n".join(chinese)), write("dev.en", "\n".join(english)))
    found = re.search(r"first suspect: \S*dev\.zh:(\d+)", told)
    assert found is not None and abs(int(found[1]) - 401) <= 5

"""Streaming, writing, counting, cleaning, and splitting parallel text, each against a plain and slow version of it."""

import random
import sys
import tracemalloc
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glassformer.data import clean as clean_module
from glassformer.data.characters import script_share, scripts_in, strip_control
from glassformer.data.clean import REASONS, CleanConfig, Cleaner
from glassformer.data.corpus import FORMATS, format_of, stream_pairs
from glassformer.data.digests import DigestSet, blind_key, digest, leak_key, pair_digest
from glassformer.data.languages import find_languages, is_language
from glassformer.data.lines import Located, Pair
from glassformer.data.splits import Share, split_pairs
from glassformer.data.stats import Overlap, Statistics, percentiles
from glassformer.data.writers import open_writer
from glassformer.errors import UserError

few = settings(max_examples=30)
odd = st.text(
    st.sampled_from(" \u3000\u2028\u0085\u200b\r，!我他Aａé\ufeff\u0301") | st.characters(codec="utf-8"), max_size=8
)
# Few words, so that texts meet again.
word = st.sampled_from(
    ["he", "she", "He", "he!", "I'm", "I am", "it's", "x", "我", "她", "他。", "x.", "x ", "ｘ", "…", ""]
)
sentence = st.lists(word, max_size=2).map(" ".join)
pairs_of_words = st.lists(st.tuples(sentence, sentence).map(lambda sides: Pair(*sides)), max_size=30)
# Each side meets again with another partner, and one pair in other spelling.
MEETINGS = [Pair("我", "x"), Pair("我", "he"), Pair("她", "x"), Pair("我", "x"), Pair("我", "X!"), Pair("x", "x.")]


def rows_of(pairs: list[Pair]) -> list[Located]:
    return [Located(pair, f"a:{n}", f"b:{n}") for n, pair in enumerate(pairs, 1)]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def files(folder: Path, format: str) -> list[Path]:
    return [folder / "a.zh", folder / "a.en"] if format == "plain" else [folder / f"a.{format}"]


def write_all(paths: list[Path], rows: list[Located], **options: Any) -> None:
    with open_writer(*paths, **options) as writer:
        for row in rows:
            writer.write(row)


@settings(max_examples=50)
@given(st.sampled_from(["tsv", "plain", "jsonl"]), st.booleans(), st.lists(st.tuples(odd, odd), max_size=5))
@example("tsv", False, [("source", "target"), ("a\r", "b\r")])
@example("plain", False, [("\ufeffa\r", "\ufeff"), ("", "")])
def test_what_is_written_streams_back(scratch: Path, format: str, named: bool, texts: list) -> None:
    drop = {"tsv": "\t\n", "plain": "\n", "jsonl": ""}[format]
    texts = [tuple("".join(c for c in text if c not in drop) for text in pair) for pair in texts]
    languages = ("zh", "en") if named else None
    write_all(files(scratch, format), rows_of([Pair(*pair) for pair in texts]), languages=languages)
    names = {"source": "zh", "target": "en"} if named else {}
    back = [row.pair for row in stream_pairs(*files(scratch, format), **names)]
    blank_lines = format == "tsv"  # a line of blanks is a blank pair, whatever blanks it holds
    assert [("", "") if blank_lines and not any(map(str.strip, p)) else p for p in back] == [
        ("", "") if blank_lines and not any(map(str.strip, p)) else p for p in texts
    ]


@pytest.mark.parametrize("format", ["tsv", "jsonl", "tmx"])
def test_other_columns_keys_and_props_come_along(tmp_path: Path, format: str) -> None:
    rows = [Located(Pair("一", "one"), "", "", {"id": "7", "by": "x"}), Located(Pair("二", "two"), "", "", {"id": "8"})]
    write_all(files(tmp_path, format), rows, languages=("zh", "en"))
    back = list(stream_pairs(*files(tmp_path, format), source="zh", target="en"))
    filled = [{"id": "7", "by": "x"}, {"id": "8", "by": ""} if format == "tsv" else {"id": "8"}]
    assert [(row.pair, row.extra) for row in back] == [(r.pair, e) for r, e in zip(rows, filled, strict=True)]


def test_columns_without_names_stay_without(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("一\tone\tx\n二\ttwo\ty\n", encoding="utf-8")
    write_all([tmp_path / "b.tsv"], list(stream_pairs(path)))
    assert (tmp_path / "b.tsv").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("format", "bad"), [("tsv", "a\tb"), ("tsv", "a\nb"), ("plain", "a\nb")])
def test_a_text_that_a_format_cannot_hold_is_refused_and_nothing_is_lost(tmp_path: Path, format: str, bad: str) -> None:
    paths = files(tmp_path, format)
    for path in paths:
        path.write_text("before")
    with pytest.raises(UserError, match=rf"U\+{ord(bad[1]):04X} in the text cannot stand in"):
        write_all(paths, rows_of([Pair("ok", "ok"), Pair("ok", bad)]))
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert {path.read_text() for path in paths} == {"before"}


def test_a_file_may_be_cleaned_into_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"一{n}\tone {n}\n" for n in range(5000)), encoding="utf-8")
    before = path.read_bytes()
    with open_writer(path) as writer:
        for row in stream_pairs(path):
            writer.write(row)
    assert path.read_bytes() == before


@pytest.mark.parametrize("format", FORMATS)
def test_pairs_stream_before_the_file_is_read(tmp_path: Path, format: str) -> None:
    """The end of the file is wrong, and yet the pairs before it come: what streams has not read to the end."""
    many = 3000
    paths = files(tmp_path, format)
    write_all(paths, rows_of([Pair(f"一{n}", f"one {n}") for n in range(many)]), languages=("zh", "en"))
    with paths[0].open("ab") as stream:
        stream.write(b"\xff")
    rows = stream_pairs(*paths, source="zh", target="en")
    assert len(list(islice(rows, many - 10))) == many - 10
    with pytest.raises(UserError, match=r"a\.\w+:\d+"):
        list(rows)


def test_formats_by_suffix_and_by_name() -> None:
    assert [format_of(f"a.{suffix}") for suffix in ("tsv", "JSONL", "tmx", "po", "pot", "txt", "")] == [
        *("tsv", "jsonl", "tmx", "po", "po", "tsv", "tsv")
    ]
    assert (format_of("a.tmx", format="tsv"), format_of("a.zh", "a.en")) == ("tsv", "plain")
    for arguments in ({"format": "xml"}, {"format": "plain"}, {"target_path": "b", "format": "tmx"}):
        with pytest.raises(UserError, match="plain"):
            format_of("a", **arguments)  # type: ignore[arg-type]


def tuv(language: str) -> str:
    return f'<tuv xml:lang="{language}"><seg/></tuv>'


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.tsv", "zh\ten\tsource\n", ("zh", "en")),
        ("a.tsv", "en-GB\tzh_Hans\n", ("en-GB", "zh_Hans")),
        ("a.tsv", "and\tund\n", None),
        ("a.tsv", "en\ten\n", None),
        ("a.tsv", "id\tzh\ten\n", ("id", "zh")),
        ("a.tsv", "", None),
        ("a.jsonl", '{"note": 1, "en": "a", "zh": "b"}\n', ("en", "zh")),
        ("a.jsonl", '{"translation": {"de": "a", "en": "b"}, "id": 1}\n', ("de", "en")),
        ("a.jsonl", '{"source": "a", "target": "b"}\n', None),
        ("a.jsonl", "[1]\n", None),
        ("a.tmx", f'<tmx><header srclang="en"/><body><tu>{tuv("zh")}{tuv("en-US")}</tu></body></tmx>', ("en-US", "zh")),
        ("a.tmx", f'<tmx><header srclang="*all*"/><body><tu>{tuv("zh")}</tu></body></tmx>', None),
        ("a.po", 'msgid "a"\nmsgstr "b"\n', None),
    ],
)
def test_languages_are_found_where_a_corpus_names_them(tmp_path: Path, name: str, content: str, found: object) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert find_languages(tmp_path / name) == found


def test_two_files_name_their_languages_by_suffix(tmp_path: Path) -> None:
    for name in ("a.zh", "a.en", "a.txt"):
        (tmp_path / name).touch()
    assert find_languages(tmp_path / "a.zh", tmp_path / "a.en") == ("zh", "en")
    assert find_languages(tmp_path / "a.txt", tmp_path / "a.en") is None
    assert [*map(is_language, ["zh", "zh-CN", "zh_Hans_CN", "zhx", "zh-", "ZH", ""])] == [True] * 3 + [False] * 4


@few
@given(st.lists(st.integers(1, 2**64 - 1) | st.integers(1, 9).map(lambda n: n << 10), max_size=200))
def test_a_digest_set_is_a_set(values: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glassformer.data.digests._FIRST_SLOTS", 2)
        ours, known = DigestSet(), set()
        for value in values:
            assert (value in ours) == (value in known)
            assert ours.add(value) == (value not in known)
            known.add(value)
            assert len(ours) == len(known)
        assert all(value in ours for value in known)


def test_a_digest_takes_at_most_24_bytes() -> None:
    rng, digests = random.Random(1), DigestSet()
    for count in range(1, 20_001):
        digests.add(rng.randrange(1, 2**64))
        if count > 1000 and count % 500 == 0:
            assert 8 * len(digests._slots) <= 24 * count + 8 * 4
    assert sys.getsizeof(digests._slots) < 24 * count + 200


def test_digests_tell_texts_apart() -> None:
    texts = {f"{a}{b}" for a in range(100) for b in "xyz我"} | {"", " ", "\ud83d"}
    assert len({digest(text) for text in texts}) == len(texts) and 0 not in map(digest, texts)
    assert pair_digest("ab", "c") != pair_digest("a", "bc") and pair_digest("1 a", "") != pair_digest("", "1 a")


@few
@given(odd)
def test_a_blind_key_ignores_case_width_punctuation_and_spaces(text: str) -> None:
    key = blind_key(text)
    assert key == blind_key(f" {text}\t") or not key
    noisy = "。 ".join(unicodedata.normalize("NFD", text))
    if any(unicodedata.category(c)[0] in "LNS" for c in key):
        assert blind_key(noisy) == blind_key(noisy.replace("。", "!"))
        assert all(unicodedata.category(c)[0] not in "PZC" for c in key)
        assert blind_key(key) == key


def test_what_keys_ignore_and_what_they_keep() -> None:
    assert blind_key("Ｈｅｌｌｏ，Ｗｏｒｌｄ！") == blind_key("hello world") == "helloworld"
    assert (
        blind_key("C++") != blind_key("C")
        and blind_key("！？") == "！？"
        and blind_key("Straße") == blind_key("STRASSE")
    )
    same = [
        ("I'm sure she can't.", "I am sure he cannot"),
        ("It’s her book", "It is his book"),
        ("We'd go", "we would go"),
    ]
    assert all(leak_key(a, "en-GB") == leak_key(b, "en") for a, b in same)
    assert leak_key("您喜欢她吗？", "zh") == leak_key("你喜欢他吗", "zh_CN")
    assert leak_key("I'm", "de") != leak_key("I am", "de") and leak_key("there", "en") != leak_key("thee", "en")


INVISIBLE = {"Cc", "Zl", "Zp"}


@few
@given(odd, odd)
@example("a\u200d", "b")
def test_no_control_character_survives_and_nothing_else_is_lost(text: str, more: str) -> None:
    text = f"{text}\x07\u200b{more}"
    stripped = strip_control(text)
    assert not INVISIBLE & {unicodedata.category(c) for c in stripped} and "\u200b" not in stripped
    assert strip_control(stripped) == stripped
    visible = [c for c in text if unicodedata.category(c)[0] in "LMNPS"]
    assert [c for c in stripped if unicodedata.category(c)[0] in "LMNPS"] == visible


def test_joiners_stay_where_they_spell_something() -> None:
    for kept in ("👩‍👩‍👧", "🏳️‍🌈", "می‌خواهم", "क्‍ष", "❤️‍🔥"):
        assert strip_control(kept) == kept
    assert strip_control("\u200d我\u200c们 a\u200db\u200d") == "我们 ab"
    assert strip_control("a\tb\r\nc\u2028d\x00e\xadf\u202eg\ufeff") == "a b c defg"


@pytest.mark.parametrize(
    ("text", "language", "share"),
    [
        ("我用Python写代码", "zh", 5 / 6),
        ("我用Python写代码", "en", 1 / 6),
        ("これは猫です", "zh", 1 / 6),
        ("これは猫です", "ja", 1.0),
        ("The word 猫 is here", "en-US", 4 / 5),
        ("Ｈｅｌｌｏ", "en", 1.0),
        ("123 …!", "zh", 1.0),
        ("", "zh", 1.0),
        ("Привет", "en", 0.0),
    ],
)
def test_the_share_of_words_in_a_languages_script(text: str, language: str, share: float) -> None:
    assert script_share(text, language) == pytest.approx(share)
    assert scripts_in("我A1, ａ") == {"CJK", "LATIN"}


@few
@given(st.lists(st.integers(0, 50), min_size=1), st.sampled_from([0, 1, 5, 25, 50, 75, 99, 100]))
def test_percentiles_are_those_of_numpy(values: list[int], point: int) -> None:
    expected = np.percentile(values, point, method="inverted_cdf")
    assert percentiles(Counter(values), [point]) == {f"p{point}": expected}


@few
@given(pairs_of_words)
@example(MEETINGS)
def test_statistics_are_those_of_a_plain_count(pairs: list[Pair]) -> None:
    statistics = Statistics(("zh", "en"), tokenizer=Letters())
    for pair in pairs:
        statistics.add(pair)
    report = statistics.report()
    stripped = [(s.strip(), t.strip()) for s, t in pairs if s.strip() or t.strip()]
    full = [(s, t) for s, t in stripped if s and t]
    blind = [(blind_key(s), blind_key(t)) for s, t in full]
    assert (report["pairs"], report["blank"]) == (len(stripped), len(pairs) - len(stripped))
    assert report["duplicates"] == len(full) - len(set(full))
    assert report["blind_duplicates"] == len(blind) - len(set(blind))
    assert report["identical"] == sum(s == t for s, t in blind)
    for side, name, many in (
        (0, "source", "sources_with_several_targets"),
        (1, "target", "targets_with_several_sources"),
    ):
        texts = [pair[side] for pair in stripped]
        others: dict[str, set[str]] = {}
        for pair in full:
            others.setdefault(pair[side], set()).add(pair[1 - side])
        assert report[many] == sum(len(found) > 1 for found in others.values())
        assert report[name]["characters"] == report[name]["tokens"] == len("".join(texts))
        assert report[name]["words"] == len(" ".join(texts).split())
        assert report[name]["blank"] == texts.count("")
        assert report[name]["length"] == report[name]["length_in_tokens"] == percentiles(Counter(map(len, texts)))
        assert report[name]["wrong_script"] == sum(script_share(text, ("zh", "en")[side]) < 0.5 for text in texts)
        assert sum(report[name]["scripts"].values()) == len(texts)
        assert report[name]["mixed_scripts"] == sum(len(scripts_in(text)) > 1 for text in texts)
        counts = Counter("".join(texts))
        alphabet = report[name]["alphabet"]
        assert alphabet["distinct"] == len(counts) and alphabet["once"] == [*counts.values()].count(1)
        held = [sum(sorted(counts.values())[::-1][:n]) for n in range(len(counts) + 1)]
        assert alphabet["cover_99"] == next(n for n, part in enumerate(held) if part >= 0.99 * held[-1])


class Letters:
    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))


def test_odd_characters_and_ratios_are_counted() -> None:
    statistics = Statistics()
    for pair in [Pair("ab\u200b", "abcdef"), Pair("e\u0301", "e"), Pair("\x07", "")]:
        statistics.add(pair)
    report = statistics.report()
    assert (report["source"]["control"], report["source"]["not_nfc"]) == (2, 1)
    assert report["source"]["wrong_script"] is None and report["languages"] is None
    assert report["length_ratio"]["p0"] == pytest.approx(0.5, rel=0.01)
    assert report["length_ratio"]["p100"] == pytest.approx(2, rel=0.01)


def cleaned(pairs: list[Pair], languages: tuple[str, str] | None = None, **config: Any) -> tuple[list[Pair], list[str]]:
    got = list(Cleaner(CleanConfig(**config), languages).clean(rows_of(pairs)))
    return [row.pair for row, reason in got if not reason], [reason for _, reason in got]


OFF: dict[str, Any] = dict(
    duplicates="keep", drop_identical=False, length_ratio=0, max_chars=0, script_share=0, strip_control=False
)


@few
@given(pairs_of_words, st.sampled_from(["exact", "blind", "keep"]))
@example(MEETINGS, "exact")
@example(MEETINGS, "blind")
def test_cleaning_drops_duplicates_as_a_plain_loop_would(pairs: list[Pair], duplicates: str) -> None:
    full = [Pair(s.strip(), t.strip()) for s, t in pairs if s.strip() and t.strip()]
    first: dict[object, Pair] = {}
    for pair in full:
        first.setdefault(tuple(map(blind_key, pair)) if duplicates == "blind" else tuple(pair), pair)
    kept, reasons = cleaned(pairs, **{**OFF, "duplicates": duplicates})
    assert kept == (full if duplicates == "keep" else list(first.values()))
    assert reasons.count("empty") == len(pairs) - len(full)


@few
@given(st.lists(st.tuples(odd, odd).map(lambda sides: Pair(*sides)), max_size=20), st.booleans())
def test_cleaning_again_changes_nothing_and_every_pair_is_counted(pairs: list[Pair], nfc: bool) -> None:
    config = CleanConfig(length_ratio=0, duplicates="blind", nfc=nfc)  # the median moves when pairs go
    cleaner = Cleaner(config, ("zh", "en"))
    got = list(cleaner.clean(rows_of(pairs)))
    kept = [row.pair for row, reason in got if not reason]
    assert [row.source_at for row, _ in got] == [f"a:{n}" for n in range(1, len(pairs) + 1)]
    assert cleaner.read == len(pairs) and cleaner.kept == len(kept)
    assert cleaner.dropped == Counter(reason for _, reason in got if reason) and list(cleaner.dropped) == list(REASONS)
    again = Cleaner(config, ("zh", "en"))
    assert [row.pair for row, reason in again.clean(rows_of(kept)) if not reason] == kept
    assert again.edited.total() == 0
    if nfc:
        assert all(unicodedata.is_normalized("NFC", side) for pair in kept for side in pair)


GOOD = [Pair("我爱自然语言处理" + str(n), "I love natural language " + str(n)) for n in range(20)]


@pytest.mark.parametrize(
    ("pair", "reason", "off"),
    [
        (Pair("一", " \u3000"), "empty", {}),
        (Pair("\u200b", "x"), "empty", {"strip_control": False}),
        (Pair("长" * 1001, "long " * 500), "too long", {"max_chars": 0}),
        (Pair("OK 好!", "ok好"), "identical", {"drop_identical": False}),
        (Pair("一二三", "word " * 40), "length ratio", {"length_ratio": 0}),
        (Pair("一" * 60, "word"), "length ratio", {"length_ratio": 0}),
        (Pair("Bonjour tout le monde", "Good morning to all of you, and so on"), "wrong script", {"script_share": 0}),
        (Pair("大家早上好", "大家早上好啊，各位"), "wrong script", {"script_share": 0}),
        (GOOD[3], "duplicate", {"duplicates": "keep"}),
    ],
)
def test_each_filter_drops_its_kind_and_can_be_turned_off(pair: Pair, reason: str, off: dict[str, Any]) -> None:
    pairs = [*GOOD, pair]
    assert cleaned(pairs, ("zh", "en"))[1] == [""] * len(GOOD) + [reason]
    if off:
        assert cleaned(pairs, ("zh", "en"), **off)[1] == [""] * (len(GOOD) + 1)


def test_the_usual_ratio_is_that_of_the_corpus() -> None:
    """Sides three times as long as the others' are no outliers where all are so."""
    triple = [Pair("字" * n, "w" * 9 * n) for n in range(20, 60)]
    assert set(cleaned(triple, length_ratio=1.5, script_share=0)[1]) == {""}
    assert cleaned([*triple, Pair("字" * 50, "w" * 50)], length_ratio=1.5)[1][-1] == "length ratio"


def test_cleaning_reads_no_further_than_its_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_module, "SAMPLE", 5)
    read = 0

    def endless() -> Iterator[Located]:
        nonlocal read
        while True:
            read += 1
            yield Located(Pair(f"一{read}", f"one {read}"), "", "")

    got = Cleaner(CleanConfig()).clean(endless())
    assert [next(got)[0].pair.source for _ in range(9)] == [f"一{n}" for n in range(1, 10)]
    assert read <= 10


@pytest.mark.parametrize(
    "config",
    [
        {"duplicates": "x"},
        {"length_ratio": 0.5},
        {"length_ratio": float("nan")},
        {"max_chars": -1},
        {"script_share": 2},
    ],
)
def test_a_filter_out_of_range_names_its_flag(config: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--" + next(iter(config)).replace("_", "-")):
        CleanConfig(**config)


def components(pairs: list[Pair], languages: tuple[str, str]) -> list[set[int]]:
    """Pairs joined by shared keys, by searching until nothing more joins."""
    keys = [{(side, leak_key(pair[side], languages[side])) for side in (0, 1)} - {(0, ""), (1, "")} for pair in pairs]
    left, found = set(range(len(pairs))), []
    while left:
        group = {left.pop()}
        while more := {i for i in left if any(keys[i] & keys[j] for j in group)}:
            group |= more
            left -= more
        found.append(group)
    return found


@few
@given(pairs_of_words.filter(lambda pairs: len(pairs) > 6), st.integers(0, 3), st.integers(0, 3), st.integers(0, 9))
def test_groups_stay_together_and_splits_share_nothing(pairs: list[Pair], dev: int, test: int, seed: int) -> None:
    shares = Share(dev, True), Share(test, True)
    choice = split_pairs(pairs, *shares, languages=("zh", "en"), seed=seed)
    groups = components(pairs, ("zh", "en"))
    assert all(len({choice[i] for i in group}) == 1 for group in groups)
    for split, wanted in ((1, dev), (2, test)):
        assert choice.count(split) <= wanted
    # Whatever is missing could not have been filled by a group that went to train.
    left = [len(group) for group in groups if choice[min(group)] == 0]
    assert all(size > wanted - choice.count(split) for size in left for split, wanted in ((1, dev), (2, test)))
    chosen = {split: [pair for pair, one in zip(pairs, choice, strict=True) if one == split] for split in range(3)}
    overlap = Overlap(("zh", "en"))
    for pair in chosen[0]:
        overlap.add(pair)
    for split in (1, 2):
        assert overlap.compare(rows_of(chosen[split]))["any"] == 0


def test_a_split_follows_from_text_and_seed_alone() -> None:
    pairs = [Pair(f"第{n}句", f"sentence {n}") for n in range(300)]
    shares = Share(20, True), Share(0.1, False)
    choice = split_pairs(pairs, *shares, seed=1)
    assert [choice.count(split) for split in range(3)] == [250, 20, 30]
    order = random.Random(1).sample(range(300), 300)
    shuffled = split_pairs([pairs[i] for i in order], *shares, seed=1)
    assert [choice[i] for i in order] == list(shuffled)
    other = split_pairs(pairs, *shares, seed=2)
    both = sum(a == b == 2 for a, b in zip(choice, other, strict=True))
    assert both < 12, "another seed, another test set"
    grouped = [Pair(pair.source, f"sentence {n // 3}") for n, pair in enumerate(pairs)]
    choice = split_pairs(grouped, *shares, seed=1)
    assert [choice[i] for i in order] == list(split_pairs([grouped[i] for i in order], *shares, seed=1))


def test_shares_are_read_or_refused() -> None:
    for text, pairs in (("7", 7), ("0", 0), ("0.25", 50), ("2.5%", 5), ("1e-1", 20)):
        assert Share.parse(text, "--dev").of(200) == pairs
    for text in ("x", "-1", "1.5", "100%", "nan", ""):
        with pytest.raises(UserError, match=f"--dev {text}: expected"):
            Share.parse(text, "--dev")
    with pytest.raises(UserError, match="1 . 2 of 3 pairs"):
        split_pairs([Pair("a", "b")] * 3, Share(1, True), Share(2, True))


@few
@given(pairs_of_words, pairs_of_words)
@example(MEETINGS[:3], MEETINGS[2:])
def test_overlap_is_that_of_plain_sets(train: list[Pair], test: list[Pair]) -> None:
    overlap = Overlap(("zh", "en"))
    for pair in train:
        overlap.add(pair)
    found = overlap.compare(rows_of(test))
    train, test = ([Pair(s.strip(), t.strip()) for s, t in pairs if s.strip() and t.strip()] for pairs in (train, test))

    def keys(pair: Pair) -> dict[str, object]:
        near = leak_key(pair[0], "zh"), leak_key(pair[1], "en")
        named = {"pair": (pair, near), "source": (pair[0], near[0]), "target": (pair[1], near[1])}
        return {f"{how}_{name}": both[i] for name, both in named.items() for i, how in enumerate(("same", "near"))}

    known = {name: {keys(pair)[name] for pair in train} for name in keys(Pair("", ""))}
    hits = [{name for name, key in keys(pair).items() if key in known[name]} for pair in test]
    assert {name: found[name] for name in known} == {name: sum(name in hit for hit in hits) for name in known}
    assert (found["pairs"], found["any"]) == (len(test), sum(map(bool, hits)))
    assert len(found["examples"]) == min(3, found["any"])


def overlap_with(pairs: Iterator[Pair]) -> None:
    overlap = Overlap(("zh", "en"))
    for pair in pairs:
        overlap.add(pair)


def statistics_of(pairs: Iterator[Pair]) -> dict[str, Any]:
    statistics = Statistics(("zh", "en"))
    for pair in pairs:
        statistics.add(pair)
    return statistics.report()


@pytest.mark.parametrize(
    ("tool", "most"),
    [
        (statistics_of, 100),
        (overlap_with, 250),
        (lambda pairs: split_pairs(pairs, Share(0.1, False), Share(0.1, False), languages=("zh", "en")), 150),
        (lambda pairs: deque(Cleaner(CleanConfig()).clean(Located(p, "", "") for p in pairs), maxlen=0), 50),
    ],
    ids=["stats", "stats --against", "split", "clean"],
)
def test_a_tool_holds_few_bytes_of_a_pair(
    tool: Callable[[Iterator[Pair]], object], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the texts are, since none of them is held."""
    monkeypatch.setattr(clean_module, "SAMPLE", 100)

    def peak(count: int) -> int:
        tracemalloc.start()
        tool(Pair(f"第{n}句" + "长" * 20, f"sentence {n % (count // 2)} {'word ' * 9}") for n in range(count))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(100)  # what is loaded once
    small, large = 4_000, 16_000  # four times as much, so that tables that double are equally full
    assert (peak(large) - peak(small)) / (large - small) < most


def test_a_real_corpus_counts_as_its_own_description_says(shared: Path) -> None:
    """The figures of ../shared/data/zh-en/README.md."""
    statistics = Statistics(("zh", "en"))
    for row in stream_pairs(shared / "data/zh-en/dev.tsv", source="zh", target="en"):
        statistics.add(row.pair)
    report = statistics.report()
    assert (report["pairs"], report["source"]["characters"], report["target"]["words"]) == (1000, 10_011, 6_286)
    assert report["blind_duplicates"] == report["identical"] == report["source"]["control"] == 0
    assert report["source"]["wrong_script"] == report["target"]["wrong_script"] == report["source"]["not_nfc"] == 0


def test_real_dev_and_test_sets_share_no_key(shared: Path) -> None:
    overlap = Overlap(("zh", "en"))
    dev, test = (stream_pairs(shared / f"data/zh-en/{name}.tsv", source="zh", target="en") for name in ("dev", "test"))
    for row in dev:
        overlap.add(row.pair)
    found = overlap.compare(test)
    assert (found["pairs"], found["any"]) == (2000, 0)

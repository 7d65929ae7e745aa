"""Laws of what stands around a model: lines in, as many lines out, whatever they hold and the model answers."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.text.glossary import Term
from glassformer.text.pipeline import Draft, Line, Part, TranslateBatch, repeats, translate_text

ODDITIES = [
    "", " ", "\u3000", "\u3000 \u00a0", "\t", "  indented", "trailing  ", "\ufeffBOM", "a\x00b", "\x1b[31mred\x1b[0m",
    "\x07", "CR\rinside", "U+2028\u2028inside", "U+0085\x85inside", "\ud83d half", "\u200b", "\u200bword",
    "soft\u00adhyphen", "你好。你好吗？", "Hello. How are you?", "𠮷野家🐉龘《鸡》", "😀", "100%", "3.14", "---",
    "{name}", "{name}, welcome!", "<b>Bold. Bolder.</b>", "https://a.com/x.y", "See https://a.com/x. Then go.",
    "%s: %d", "x" * 300, "我" * 300, "e\u0301" * 90, "ALL CAPITALS HERE", "NASA", "ha ha ha ha ha", "مرحبا",
    "a\tb\tc", "X1 and {n}", "word " * 80,
]  # fmt: skip
lines_of_text = st.lists(
    st.sampled_from(ODDITIES) | st.text(max_size=30).map(lambda t: t.replace("\n", " ")), max_size=12
)


def translator(sentences: Sequence[str]) -> list[str]:
    """Answers follow from the sentence alone, and are as bad as a model's: shortened, moved about, empty, broken."""
    for sentence in sentences:
        assert sentence.strip(), "a model is never given a blank"
    answers = []
    for sentence in sentences:
        kind = sum(map(ord, sentence)) % 7
        words = sentence.split()
        backwards, shorter = " ".join(reversed(words)), " ".join(words[:-1])
        answers.append([sentence, sentence.swapcase(), backwards, shorter, "", "a\nb\r\u2028c", "好 " * 9][kind])
    return answers


def echo(sentences: Sequence[str]) -> list[str]:
    return list(sentences)


def reading(model: Callable[[Sequence[str]], Sequence[Draft | str]]) -> TranslateBatch:
    return lambda parts: model([part.protected.text for part in parts])


def run(lines: list[str], model: Any = translator, retry_batch: Any = None, **options: Any) -> list[Line]:
    retry = retry_batch and reading(retry_batch)
    return list(translate_text(lines, reading(model), retry_batch=retry, **options))


@settings(max_examples=80)
@given(lines_of_text, st.none() | st.integers(5, 60), st.sampled_from([1, 3, 1024]), st.booleans())
def test_as_many_lines_come_out_as_went_in(lines: list[str], longest: int | None, batch: int, case: bool) -> None:
    results = run(lines, max_length=longest, batch_sentences=batch, restore_case=case)
    assert len(results) == len(lines)
    for line, result in zip(lines, results, strict=True):
        assert result.source == "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in line)
        assert "\n" not in result.translation
        assert bool(result.translation.strip()) == bool(line.strip())
        result.translation.encode()


@settings(max_examples=40)
@given(lines_of_text, st.none() | st.integers(5, 60), st.integers(1, 40))
def test_a_line_is_translated_the_same_whatever_stands_beside_it(
    lines: list[str], longest: int | None, batch: int
) -> None:
    def retry(sentences: Sequence[str]) -> list[str]:
        return [sentence[::-1] for sentence in sentences]

    together = run(lines, max_length=longest, batch_sentences=batch, retry_batch=retry)
    assert together == [run([line], max_length=longest, retry_batch=retry)[0] for line in lines]
    assert together[::-1] == run(lines[::-1], max_length=longest, retry_batch=retry)


@settings(max_examples=80)
@given(lines_of_text)
def test_a_model_that_changes_nothing_gives_the_line_back(lines: list[str]) -> None:
    for line, result in zip(lines, run(lines, model=echo, max_length=40), strict=True):
        if line.strip():
            kept = str.maketrans("", "", "\ufffd\u00ad\ufeff" + "".join(map(chr, [*range(32), *range(127, 160)])))
            kept.update(dict.fromkeys(range(0xD800, 0xE000)))
            assert "".join(result.translation.translate(kept).split()) == "".join(line.translate(kept).split())


def test_blank_lines_stay_blank_and_spaces_around_a_line_stay() -> None:
    assert [r.translation for r in run(["", " ", "\u3000\u3000", "  a b  ", "\u3000你好。"], model=echo)] == [
        *[""] * 3, "  a b  ", "\u3000你好。",
    ]  # fmt: skip


def test_what_holds_no_words_never_reaches_the_model() -> None:
    seen: list[str] = []

    def model(sentences: Sequence[str]) -> list[str]:
        seen.extend(sentences)
        return ["译文。"] * len(sentences)

    lines = ["{name}", "https://a.com/x", "100%", "😀 !!!", "<br/>", "", "Hello. 123. {x}"]
    assert [r.translation for r in run(lines, model=model)] == [*lines[:-1], "译文。123. {x}"]
    assert seen == ["Hello."]


@pytest.mark.parametrize(
    "source, answers, expected",
    [
        ("Hello. How are you?", {"Hello.": "你好。", "How are you?": "你好吗？"}, "你好。你好吗？"),
        ("你好。你好吗？", {"你好。": "Hello.", "你好吗？": "How are you?"}, "Hello. How are you?"),
        (
            "他说：“走吧。”我们走了。",
            {"他说：“走吧。”": "He said, “Go.”", "我们走了。": "We left."},
            "He said, “Go.” We left.",
        ),
        ("Go. “Now.”", {"Go.": "走吧。", "“Now.”": "“现在。”"}, "走吧。“现在。”"),
        ("One.  Two.", {"One.": "Eins.", "Two.": "Zwei."}, "Eins.  Zwei."),
        ("一。\u3000二。", {"一。": "One.", "二。": "Two."}, "One. Two."),
        ("one\ttwo", {"one": "一", "two": "二"}, "一\t二"),
        ("하나. 둘.", {"하나.": "One.", "둘.": "Two."}, "One. Two."),
    ],
)
def test_sentences_are_joined_as_the_target_joins_them(source: str, answers: dict[str, str], expected: str) -> None:
    assert run([source], model=lambda sentences: [answers[s] for s in sentences])[0].translation == expected


def test_placeholders_come_through_once_even_if_the_model_drops_them() -> None:
    result = run(["Hi {name}, see https://a.com/x. Then run %s!"], model=lambda s: ["好"] * len(s))[0].translation
    assert [result.count(p) for p in ("{name}", "https://a.com/x", "%s")] == [1, 1, 1]
    unprotected = run(["Hi {name}!"], model=lambda s: [x.upper() for x in s], mask=None)[0].translation
    assert unprotected == "HI {NAME}!"


def test_a_line_in_capitals_is_shown_in_small_letters_and_answered_in_capitals() -> None:
    seen: list[str] = []

    def model(sentences: Sequence[str]) -> list[str]:
        seen.extend(sentences)
        return [f"halt {s}" for s in sentences]

    lines = ["STOP {name} NOW!", "NASA", "Stop NOW", "我爱 NBA", "{a} GO ON"]
    assert [r.translation for r in run(lines, model=model, restore_case=True)] == [
        "HALT STOP {name} NOW!", "halt NASA", "halt Stop NOW", "halt 我爱 NBA", "HALT {a} GO ON",
    ]  # fmt: skip
    assert seen == ["Stop X1 now!", "NASA", "Stop NOW", "我爱 NBA", "X1 Go on"]


def test_control_characters_do_not_reach_the_model_and_lines_stay_lines() -> None:
    seen: list[str] = []

    def model(sentences: Sequence[str]) -> list[str]:
        seen.extend(sentences)
        return [f"{s}\nmore\x00" for s in sentences]

    assert run(["a\x00b\x1bc"], model=model)[0].translation == "abc more"
    assert seen == ["abc"]


@pytest.mark.parametrize(
    "text, times",
    [("", 0), ("a", 1), ("a b", 1), ("no no No", 3), ("ha ha ha ha", 4), ("你好你好你好", 3), ("la" * 20, 20)]
    + [("the cat, the cat, the cat, the cat,", 4), ("1000000", 1), ("......", 1), ("a b a c a d", 1)],
)
def test_repeats_counts_units_in_a_row(text: str, times: int) -> None:
    assert repeats(text) == times


def test_a_loop_is_flagged_and_retried_once() -> None:
    retried: list[str] = []

    def model(sentences: Sequence[str]) -> list[str]:
        return ["so so so so so so" if s.startswith("loop") else s + " fine" for s in sentences]

    def retry(sentences: Sequence[str]) -> list[Draft]:
        retried.extend(sentences)
        return [Draft("better", details="second") if s == "loop one" else Draft("no " * 9) for s in sentences]

    lines = ["loop one", "ok", "loop two", "ha ha ha ha ha ha"]
    assert [r.repetition for r in run(lines, model=model)] == [True, False, True, False]
    results = run(lines, model=model, retry_batch=retry)
    assert [r.repetition for r in results] == [False, False, True, False]
    assert [r.translation for r in results] == ["better", "ok fine", "so so so so so so", "ha ha ha ha ha ha fine"]
    assert retried == ["loop one", "loop two"]
    assert results[0].parts[0].draft == Draft("better", details="second")


def test_truncated_and_untranslated_lines_are_flagged() -> None:
    def model(sentences: Sequence[str]) -> list[Draft | str]:
        answers = {"cut here": Draft("x", truncated=True), "empty answer": "  ", "done": "fertig"}
        return [answers.get(s, s) for s in sentences]

    results = run(
        ["cut here", "empty answer", "done", "我爱你。", "iPhone", "this was not translated at all"], model=model
    )
    assert [r.truncated for r in results] == [True, False, False, False, False, False]
    assert [r.untranslated for r in results] == [False, True, False, True, False, True]
    assert results[1].translation == "empty answer"


def test_other_answers_to_a_sentence_are_finished_likewise() -> None:
    part: Part = run(["Hello {name}!"], model=echo)[0].parts[0]
    assert [part.finish(answer) for answer in ("你好X1！", "X1，您好\n！", "")] == [
        "你好{name}！",
        "{name}，您好 ！",
        "Hello {name}!",
    ]


def test_lines_are_read_only_as_far_as_needed() -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "Hello." if read % 2 else ""

    results = translate_text(endless(), reading(echo), batch_sentences=1)
    for number in range(1, 6):
        next(results)
        assert read == number
    results = translate_text(endless(), reading(echo), batch_sentences=64)
    for _ in range(1000):
        next(results)
    assert read <= 1000 + 64


def test_no_batch_is_bigger_than_asked_for() -> None:
    sizes: list[int] = []

    def model(sentences: Sequence[str]) -> list[str]:
        sizes.append(len(sentences))
        return list(sentences)

    run(["One. Two. Three."] * 20 + ["Four. " * 50], model=model, batch_sentences=20)
    assert max(sizes) == 20
    assert sum(sizes) == 110


def test_a_line_of_a_megabyte_comes_through() -> None:
    lines = ["我很好。" * 10_000, "x" * 1_000_000, "word " * 20_000, "ok"]
    results = run(lines, model=echo, max_length=400)
    assert [r.translation for r in results] == [lines[0], lines[1], lines[2], "ok"]
    assert max(len(part.source) for line in results for part in line.parts) <= 400


def test_binary_rubbish_comes_through_as_something() -> None:
    rubbish = bytes(range(256)) * 8
    lines = [
        line
        for encoding, errors in (("latin-1", "strict"), ("utf-8", "replace"), ("utf-8", "surrogateescape"))
        for line in rubbish.decode(encoding, errors).split("\n")
    ]
    results = run(lines, max_length=30)
    assert len(results) == len(lines)
    for result in results:
        assert "\n" not in result.translation
        result.translation.encode()


def test_a_line_is_split_only_where_it_is_long_or_broken() -> None:
    seen: list[tuple[str, int, int]] = []

    def model(parts: Sequence[Part]) -> list[str]:
        seen.extend((part.protected.text, part.line, part.index) for part in parts)
        return [part.protected.text for part in parts]

    lines = ["Hello. How are you?", "One. 2. Three.\u2028Four. Five.", "1. Hello there. What a long line this is."]
    results = list(translate_text(lines, model, split_above=20))
    assert [result.translation for result in results] == lines
    assert seen == [
        ("Hello. How are you?", 0, 0),
        ("One. 2. Three.", 1, 0),
        ("Four. Five.", 1, 1),
        ("1. Hello there.", 2, 0),
        ("What a long line this is.", 2, 1),
    ]


def test_a_model_that_loses_an_answer_is_found_out() -> None:
    with pytest.raises(ValueError):
        run(["One", "Two"], model=lambda sentences: list(sentences)[:-1])


def test_text_code_imports_no_pytorch() -> None:
    code = "import sys, glassformer.text.pipeline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_terms_are_masked_only_where_an_answer_or_another_one_to_choose_lacks_them() -> None:
    asked = []

    def model(parts: Sequence[Part]) -> list[Draft]:
        asked.append([part.protected.text for part in parts])
        others = ["a cat"] if asked[-1][0] == "b" else []
        return [Draft({"a": "the cat", "b": "the cat"}.get(text, f"so {text}"), others=others) for text in asked[-1]]

    def terms(number: int, text: str) -> list[Term]:
        return [Term(0, 1, "tac" if text == "c" else "cat")] if number < 4 else []

    lines = list(translate_text(["a", "b", "c", "d ha", "e"], model, terms=terms))
    assert [line.translation for line in lines] == ["the cat", "the cat", "so tac", "so cat ha", "so e"]
    assert asked == [["a", "b", "c", "d ha", "e"], ["X1", "X1 ha"]]
    asked.clear()
    (line,) = translate_text(["b"], lambda parts: [Draft("the cat", others=["dogs"])], terms=terms)
    assert line.parts[0].protected is line.parts[0].termed, "another translation to choose from lacks it"


@settings(max_examples=60)
@given(lines_of_text, st.none() | st.integers(5, 60))
def test_sentences_and_their_translations_stand_where_they_are_told_to(lines: list[str], longest: int | None) -> None:
    for line in translate_text(lines, reading(translator), max_length=longest):
        for segment in line.segments:
            assert line.source.startswith(segment.source, segment.source_start)
            assert line.translation.startswith(segment.translation, segment.translation_start)
        assert len(list(line.segments)) == len(line.parts)

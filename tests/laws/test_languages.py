"""Text that is in the target language already comes back as it is, and is told."""

from __future__ import annotations

import logging

import pytest
import torch

from glassformer.api import Translator
from glassformer.engines.model import ModelEngine
from glassformer.families import configure
from glassformer.models.build import build_model
from glassformer.store import Translation
from glassformer.text.script import is_already
from glassformer.text.tokenizer import Tokenizer

TEXTS = ["我爱自然语言处理。", "我喜欢打篮球。", "I love natural language processing.", "The cat sat on the mat."] * 4


@pytest.fixture(scope="module")
def translator() -> Translator:
    torch.manual_seed(2)
    tokenizer = Tokenizer.train(TEXTS, vocab_size=330, languages=("zh", "en"))
    model = build_model(configure("transformer-tiny", vocab_size=tokenizer.vocab_size, max_len=64))
    return Translator(ModelEngine(model), tokenizer, Translation(source="zh", target="en", both_directions=True))


@pytest.mark.parametrize(
    ("text", "target", "source", "already"),
    [
        ("今天天气很好。", "zh", "en", True),
        ("我用 Python 写代码。", "zh", "en", True),
        ("Visit 北京大学 and learn", "zh", "en", False),
        ("The cat sat.", "zh", "en", False),
        ("The cat sat.", "en", "zh", True),
        ("iPhone", "en", "zh", True),
        ("I love 烤鸭 very much", "en", "zh", False),
        ("今天天气很好。", "en", "zh", False),
        ("123 😀 。", "en", "zh", False),
        ("", "zh", "en", False),
        ("Der Hund", "en", "de", False),
        ("漢字", "zh", "ja", False),
        ("Привет", "ru", "zh", True),
        ("你好", "zh-TW", "en_GB", True),
    ],
)
def test_scripts_tell_what_is_already_in_the_target_language(
    text: str, target: str, source: str, already: bool
) -> None:
    assert is_already(text, target, source) is already


OPTIONS = {"beam_size": 1, "max_new_tokens": 3, "details": True}


@pytest.mark.parametrize("flags", [{"to": "zh"}, {"source": "en"}])
def test_chinese_asked_for_in_chinese_comes_back_as_it_is_and_is_told(
    translator: Translator, caplog: pytest.LogCaptureFixture, flags: dict[str, str]
) -> None:
    lines = ["", "我 爱 <b>猫</b> {name}。", "The cat sat.", "我喜欢 NLP！"]
    with caplog.at_level(logging.WARNING):
        records = translator.translate(lines, **flags, **OPTIONS)
    assert [records[i]["translation"] for i in (0, 1, 3)] == [lines[i] for i in (0, 1, 3)]
    assert [record["untranslated"] for record in records] == [False, True, False, True]
    assert records[2]["translation"] != lines[2] and records[1]["n_best"][0]["translation"] == lines[1]
    assert "text 2 and 1 more: in the target language already" in caplog.text and "--to" in caplog.text


def test_english_asked_for_in_english_comes_back_but_a_name_is_no_complaint(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["The cat sat on the mat.", "iPhone", "SHOUTED AT THE CAT", "我爱猫"]
    with caplog.at_level(logging.WARNING):
        records = translator.translate(lines, to="en", **OPTIONS)
    assert [record["translation"] for record in records[:3]] == lines[:3]
    assert [record["untranslated"] for record in records] == [True, False, True, False]
    assert "text 1 and 1 more: in the target language already" in caplog.text


def test_without_a_language_given_each_line_goes_its_own_way(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    records = translator.translate(["我爱猫。", "The cat sat on the mat."], **OPTIONS)
    assert not any(record["untranslated"] for record in records) and not caplog.text


def test_a_prefix_is_written_whatever_the_script(translator: Translator) -> None:
    assert translator.translate("我爱猫。", to="zh", prefix="The", beam_size=1, max_new_tokens=4).startswith("The")


def test_a_stream_keeps_it_too(translator: Translator) -> None:
    for text in ("我喜欢 NLP！", "The cat sat."):
        assert "".join(translator.stream(text, to="zh", max_new_tokens=3)) == translator.translate(
            text, to="zh", beam_size=1, max_new_tokens=3
        )

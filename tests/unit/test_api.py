"""The Python interface, over a tiny model with random weights."""

import logging
import math

import pytest
import torch

from glassformer import api
from glassformer.api import Translator, find_model, load
from glassformer.engines import model as engine
from glassformer.engines.model import ModelEngine
from glassformer.errors import UserError
from glassformer.families import configure
from glassformer.models.build import build_model
from glassformer.store import Translation, save_model
from glassformer.text.script import detect_language
from glassformer.text.tokenizer import Tokenizer

LINES = ["我爱自然语言处理。", "我喜欢打篮球。", "I love natural language processing.", "The cat sat on the mat."] * 4
TEXTS = ["我爱打篮球。", "", "The cat", "　", "我", " \t", "I love the cat on the mat and natural language."]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES, vocab_size=330, languages=("zh", "en"))


def tiny(tokenizer: Tokenizer, translation: Translation | None, max_len: int = 64, spare_rows: int = 5) -> Translator:
    torch.manual_seed(7)
    model = build_model(configure("transformer-tiny", vocab_size=tokenizer.vocab_size + spare_rows, max_len=max_len))
    with torch.no_grad():
        model.embed.weight.mul_(4)  # far from uniform, so that one hypothesis differs from another
    return Translator(ModelEngine(model), tokenizer, translation)


@pytest.fixture(scope="module")
def translator(tokenizer) -> Translator:
    return tiny(tokenizer, Translation(source="zh", target="en", both_directions=True))


def test_as_many_lines_come_out_in_order_and_blank_ones_stay_blank(translator):
    together = translator.translate(TEXTS, beam_size=2)
    assert together == [translator.translate(text, beam_size=2) for text in TEXTS]
    assert [answer for text, answer in zip(TEXTS, together, strict=True) if not text.strip()] == ["", "", ""]
    assert any(together)
    assert together[::-1] == translator.translate(TEXTS[::-1], beam_size=2)
    assert together == translator.translate(iter(TEXTS), beam_size=2, batch_tokens=1)
    assert translator.translate([]) == []


def test_details_hold_what_the_plain_answer_holds_and_a_distinct_sorted_n_best(translator):
    plain = translator.translate(TEXTS, beam_size=4)
    records = translator.translate(TEXTS, beam_size=4, n_best=3, details=True)
    assert max(len(record["n_best"]) for record in records) == 3
    for text, answer, record in zip(TEXTS, plain, records, strict=True):
        assert list(record) == [
            *("source", "translation", "score", "n_best", "alignment", "truncated", "repetition", "untranslated")
        ]
        assert (record["source"], record["translation"]) == (text, answer)
        assert record["n_best"][0] == {"translation": answer, "score": record["score"]}
        scores = [candidate["score"] for candidate in record["n_best"]]
        assert scores == sorted(scores, reverse=True)
        assert len({candidate["translation"] for candidate in record["n_best"]}) == len(scores)
        assert len(scores) <= (3 if text.strip() else 1)


def test_a_translations_score_is_that_of_teacher_forcing(translator, monkeypatch):
    found = {}
    real_search = engine.search

    def spy(model, source_BS, *args, **kwargs):
        found["source"], (found["best"],) = source_BS, (answer := real_search(model, source_BS, *args, **kwargs))[0]
        return answer

    monkeypatch.setattr(engine, "search", spy)
    record = translator.translate("我爱打篮球。", to="en", beam_size=3, length_penalty=0.7, details=True)
    ids = found["best"].ids
    logits = translator.model(found["source"], torch.tensor([[translator.tokenizer.bos_id, *ids]]))
    forced = [*ids, translator.tokenizer.eos_id] if found["best"].finished else list(ids)
    logprobs = [logits[0, t].log_softmax(0)[token].item() for t, token in enumerate(forced)]
    assert list(found["best"].token_logprobs) == pytest.approx(logprobs, abs=1e-4)
    assert record["score"] == pytest.approx(sum(logprobs) / ((5 + len(forced)) / 6) ** 0.7, abs=1e-4)


def test_score_gives_each_tokens_log_probability_whatever_the_batch(translator):
    pairs = [("我爱打篮球。", "I love the cat."), ("The cat", "猫"), ("我", ""), ("我喜欢", "I love natural language")]
    scores = translator.score(pairs, length_penalty=0.5)
    t = translator.tokenizer
    for (source, target), score in zip(pairs, scores, strict=True):
        language = "zh" if source == "The cat" else "en"
        source_ids = torch.tensor([[t.language_ids[language], *t.encode(source), t.eos_id]])
        target_ids = t.encode(target)
        logits = translator.model(source_ids, torch.tensor([[t.bos_id, *target_ids]]))[0].log_softmax(-1)
        expected = [logits[i, token].item() for i, token in enumerate([*target_ids, t.eos_id])]
        assert [token["logprob"] for token in score["tokens"]] == pytest.approx(expected, abs=1e-4)
        assert [token["token"] for token in score["tokens"]] == [*t.tokens(target_ids), "</s>"]
        assert score["score"] == pytest.approx(sum(expected) / ((5 + len(expected)) / 6) ** 0.5, abs=1e-4)
    assert translator.score([]) == []


def test_a_shorter_n_best_is_the_start_of_a_longer_one(translator):
    short, long = (translator.translate(TEXTS, beam_size=5, n_best=n, details=True) for n in (2, 5))
    assert [record["n_best"] for record in short] == [record["n_best"][:2] for record in long]


def test_what_is_no_text_is_never_produced(translator, monkeypatch):
    banned = set()
    real_search = engine.search

    def spy(*args):
        banned.update(args[-1].banned_ids)
        return real_search(*args)

    monkeypatch.setattr(engine, "search", spy)
    translator.translate("我", beam_size=1)
    t = translator.tokenizer
    rows_without_a_piece = set(range(t.vocab_size, translator.model.config.target_vocab_size))
    assert len(rows_without_a_piece) == 5
    assert banned == {t.pad_id, t.bos_id, t.unk_id, *t.language_ids.values(), *rows_without_a_piece}


def source_tags(translator: Translator, monkeypatch, *args, **kwargs) -> list[str]:
    tags = []
    real_search = engine.search

    def spy(model, source_BS, *rest, **options):
        tags.extend(translator.tokenizer.tokens(source_BS[:, 0].tolist()))
        return real_search(model, source_BS, *rest, **options)

    monkeypatch.setattr(engine, "search", spy)
    translator.translate(*args, **kwargs, beam_size=1, max_new_tokens=2)
    return tags


@pytest.mark.parametrize(
    "text, options, tag",
    [
        ("我用 Python 写代码", {}, "<2en>"),
        ("He said 你好 to everyone", {}, "<2zh>"),
        ("The cat 猫", {"to": "en"}, "<2en>"),
        ("北京大学 is here", {"to": "zh"}, "<2zh>"),
        ("The cat 猫", {"source": "zh"}, "<2en>"),
        ("北京大学 is here", {"source": "en", "to": "zh"}, "<2zh>"),
        ("e = 12345", {}, "<2zh>"),
    ],
)
def test_the_direction_is_the_one_asked_for_or_else_the_scripts(translator, monkeypatch, text, options, tag):
    assert source_tags(translator, monkeypatch, text, **options) == [tag]


def test_a_direction_that_the_model_lacks_is_refused_with_those_it_has(tokenizer, translator):
    for options in ({"to": "fr"}, {"source": "en", "to": "en"}, {"source": "de"}):
        with pytest.raises(UserError, match="--from zh --to en, --from en --to zh"):
            translator.translate("The cat", **options)
    one_way = tiny(tokenizer, Translation(source="zh", target="en"))
    with pytest.raises(UserError, match=r"--to zh: this model cannot; it can --from zh --to en$"):
        one_way.translate("The cat", to="zh")
    nameless = tiny(tokenizer, None)
    assert isinstance(nameless.translate("The cat", max_new_tokens=3), str)
    with pytest.raises(UserError, match="names no languages"):
        nameless.translate("The cat", to="zh")


def test_an_over_long_line_is_cut_flagged_and_told_once(tokenizer, caplog):
    small = tiny(tokenizer, Translation(source="zh", target="en"), max_len=12)
    texts = ["我爱打篮球。" * 9, "我爱", "我爱打篮球。" * 9]
    with caplog.at_level(logging.WARNING):
        records = small.translate(texts, beam_size=2, split_above=None, details=True)
    assert len(records) == 3 and records[0]["truncated"] and records[2]["truncated"]
    assert [r.getMessage() for r in caplog.records] == ["text 1 and 1 more: cut to the model's limit of 12 tokens"]
    with pytest.raises(UserError, match="pair 1: its source"):
        small.score([(texts[0], "cat")])
    with pytest.raises(UserError, match="pair 2: its target"):
        small.score([("我", "cat"), ("我", "The cat sat on the mat " * 9)])


def test_a_translation_cut_by_its_own_limit_is_flagged(translator):
    records = translator.translate(TEXTS, beam_size=1, details=True)
    text = next(record["source"] for record in records if record["source"].strip() and not record["untranslated"])
    assert translator.translate(text, beam_size=1, max_new_tokens=1, details=True)["truncated"]
    assert not translator.translate("", max_new_tokens=1, details=True)["truncated"]


def test_bf16_runs_the_matrix_products_in_bf16(tokenizer, translator):
    fast = Translator(ModelEngine(translator.model, precision="bf16"), tokenizer, None)
    seen = set()
    layer = next(m for m in fast.model.modules() if isinstance(m, torch.nn.Linear))
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    fast.translate("我爱", beam_size=1)
    assert seen == {torch.bfloat16}
    seen.clear()
    translator.translate("我爱", beam_size=1)
    handle.remove()
    assert seen == {torch.float32}


def test_load_reads_a_saved_model(tmp_path, tokenizer, translator):
    save_model(
        tmp_path / "run" / "best",
        translator.model,
        tokenizer,
        Translation(source="zh", target="en", both_directions=True),
    )
    again = load(tmp_path / "run" / "best", engine="model")
    assert again.translate(TEXTS, beam_size=2) == translator.translate(TEXTS, beam_size=2)
    assert not again.model.training and {p.dtype for p in again.model.parameters()} == {torch.float32}
    with pytest.raises(UserError, match="-m .*best"):
        load(tmp_path / "run")
    with pytest.raises(UserError, match="precision int7"):
        load(tmp_path / "run" / "best", precision="int7")
    with pytest.raises(UserError, match="device 'abacus'"):
        load(tmp_path / "run" / "best", device="abacus")


def test_an_unknown_model_is_answered_with_the_bundled_ones(tmp_path, monkeypatch):
    for name in ("zh-en", "en-de"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    monkeypatch.setattr(api, "BUNDLED", tmp_path)
    assert find_model("zh-en") == tmp_path / "zh-en"
    with pytest.raises(UserError, match=r"no model 'zh-ne'.*en-de, zh-en; did you mean 'zh-en'\?"):
        find_model("zh-ne")
    with pytest.raises(UserError, match="a file, but a model is a directory"):
        load(tmp_path / "zh-en" / "config.json")


@pytest.mark.parametrize("bad", [[3], [None], ["ok", b"bytes"], ["\ud83d"]])
def test_what_is_not_text_is_refused_by_its_number(translator, bad):
    with pytest.raises(UserError, match=f"text {len(bad)}"):
        translator.translate(bad)


def test_impossible_options_name_their_flags(translator):
    for options, flag in (
        ({"beam_size": 0}, "--beam-size"),
        ({"n_best": 9}, "--n-best"),
        ({"batch_tokens": 0}, "--batch-tokens"),
    ):
        with pytest.raises(UserError, match=flag):
            translator.translate("我", **options)
    assert math.isfinite(translator.translate("我", length_penalty=0.0, details=True)["score"])


def test_detection_is_by_the_scripts_of_the_languages_in_question():
    assert detect_language("Привет, world, как дела", ["en", "ru"]) == "ru"
    assert detect_language("これは本です", ["en", "ja"]) == "ja"
    assert detect_language("𠮷野家", ["en", "zh-TW"]) == "zh-TW"
    assert detect_language("!?", ["en", "zh"]) == "en"

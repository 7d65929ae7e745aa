"""The translator over a tiny model with random weights: what its options promise, whatever the model answers."""

import itertools
import math
import re

import pytest
import torch

from glassformer.alignment import align_texts
from glassformer.api import Glossary, Translator
from glassformer.decoding import Decoding
from glassformer.engines import model as engine
from glassformer.engines.model import ModelEngine
from glassformer.errors import UserError
from glassformer.families import configure
from glassformer.generate import Hypothesis, NoRepeatNgram
from glassformer.generate.align import to_pharaoh
from glassformer.models.build import build_model
from glassformer.store import Translation
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.words import words

LINES = ["我爱自然语言处理。", "我喜欢打篮球。", "I love natural language processing.", "The cat sat on the mat."] * 4
ODDITIES = [
    "我爱打篮球。",
    "",
    "The cat. The mat!",
    "　",
    "Hi {name}, see https://a.com/x.",
    "a\u2028b",
    "100%",
    "我 love cat。",
]


@pytest.fixture(scope="module")
def translator() -> Translator:
    tokenizer = Tokenizer.train(LINES, vocab_size=330, languages=("zh", "en"))
    torch.manual_seed(1)
    model = build_model(configure("transformer-tiny", vocab_size=tokenizer.vocab_size, max_len=64))
    with torch.no_grad():
        model.embed.weight.mul_(4)  # far from uniform, so that one hypothesis differs from another
    translator = Translator(ModelEngine(model), tokenizer, Translation(source="zh", target="en", both_directions=True))
    # Bytes would be most of what it writes, and text of none of them.
    translator._unwritable += [i for i in range(tokenizer.vocab_size) if tokenizer.id_to_token(i).startswith("<0x")]
    return translator


@pytest.fixture
def seen(translator, monkeypatch):
    """Every source that search reads, as (its first token, its text), and what search found."""
    read: list[tuple[str, str]] = []
    real_search = engine.search

    def spy(model, source_BS, source_mask_BS, *args, **options):
        t = translator.tokenizer
        read.extend((t.tokens(row[:1])[0], t.decode(row)) for row in source_BS.tolist())
        return real_search(model, source_BS, source_mask_BS, *args, **options)

    monkeypatch.setattr(engine, "search", spy)
    return read


def test_a_plain_line_reaches_the_model_as_it_stands_whole_and_alone(translator, seen):
    lines = ["The cat sat. The mat!", "我爱打篮球。我喜欢。", "I love 3.14 cats"]
    translator.translate(lines, beam_size=1, max_new_tokens=2, no_repeat_ngram=2)
    assert sorted(seen) == sorted(zip(["<2zh>", "<2en>", "<2zh>"], lines, strict=True))


def test_a_long_or_broken_line_is_split_in_the_direction_of_the_whole(translator, seen):
    options = {"beam_size": 1, "max_new_tokens": 2, "no_repeat_ngram": 2}
    translator.translate("我爱打篮球。The 猫.\u2028I 爱.", split_above=6, **options)
    assert sorted(seen) == [("<2en>", "I 爱."), ("<2en>", "The 猫."), ("<2en>", "我爱打篮球。")]
    seen.clear()
    translator.translate("我爱打篮球。The 猫.\u2028I 爱.", split_above=None, **options)
    assert sorted(seen) == [("<2en>", "I 爱."), ("<2en>", "我爱打篮球。The 猫.")]


@pytest.mark.parametrize("way", [{"beam_size": 2, "n_best": 2}, {"temperature": 1.5, "seed": 3}])
def test_a_line_is_translated_the_same_whatever_stands_beside_it(translator, way):
    options = {**way, "max_new_tokens": 6, "details": True, "split_above": 5}
    together = translator.translate(ODDITIES, **options)
    assert [r["translation"] for r in together] == [
        r["translation"] for r in (translator.translate(line, **options) for line in ODDITIES)
    ]
    backwards = translator.translate(ODDITIES[::-1], **options, batch_tokens=1, batch_sentences=1)
    for one, other in zip(together, backwards[::-1], strict=True):
        assert one["translation"] == other["translation"] and one["score"] == pytest.approx(other["score"], abs=1e-4)
    kept = together[4]["translation"]
    assert kept.count("{name}") == kept.count("https://a.com/x") == 1
    assert [together[i]["translation"] for i in (1, 3, 6)] == ["", "", "100%"]


def test_sampling_repeats_with_a_seed_and_differs_with_another(translator):
    draw = [translator.translate("我爱打篮球。", temperature=2.0, seed=seed, max_new_tokens=9) for seed in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2]
    assert translator.translate("我爱", temperature=0) == translator.translate("我爱", beam_size=1)


def test_the_best_of_a_line_in_sentences_combine_the_best_of_each(translator):
    sentences = ["I love cats.", "The mat sat."]
    options = {"beam_size": 3, "n_best": 3, "max_new_tokens": 4, "details": True, "no_repeat_ngram": 3}
    parts = [translator.translate(sentence, **options)["n_best"] for sentence in sentences]
    line = translator.translate(" ".join(sentences), split_above=4, **options)
    sums = sorted((sum(c["score"] for c in pick) for pick in itertools.product(*parts)), reverse=True)
    assert line["score"] == pytest.approx(sums[0], abs=1e-4)
    assert line["n_best"][0] == {"translation": line["translation"], "score": line["score"]}
    assert min(map(len, parts)) > 1 and len(line["n_best"]) == 3 == len({c["translation"] for c in line["n_best"]})
    assert [c["score"] for c in line["n_best"]] == pytest.approx(sums[:3], abs=1e-4)


def test_score_equals_what_beam_search_reported(translator, monkeypatch):
    found: list[Hypothesis] = []
    real_search = engine.search

    def spy(*args, **options):
        answer = real_search(*args, **options)
        found.extend(itertools.chain.from_iterable(answer))
        return answer

    monkeypatch.setattr(engine, "search", spy)
    t, compared = translator.tokenizer, 0
    for text in ("我爱打篮球。", "The cat sat", "我 love cat。"):
        found.clear()
        record = translator.translate(text, beam_size=8, n_best=8, length_penalty=0.6, details=True, no_repeat_ngram=1)
        # A target can be scored from its text where the model spelled it as the tokenizer does.
        usual = {t.decode(h.ids): h.score for h in found if h.finished and tuple(t.encode(t.decode(h.ids))) == h.ids}
        scored = translator.score([(text, target) for target in usual], length_penalty=0.6)
        assert [s["score"] for s in scored] == pytest.approx(list(usual.values()), abs=1e-4)
        for candidate in record["n_best"]:
            if candidate["translation"] in usual:
                assert candidate["score"] == usual[candidate["translation"]]
                compared += 1
    assert compared


def test_a_forced_prefix_is_extended_and_a_blank_one_changes_nothing(translator):
    texts = ["我爱打篮球。", "我喜欢。", "The {name} sat.", ""]
    prefixes = ["The cat", "", " 我喜欢打", "cat"]
    for options in ({"beam_size": 3}, {"temperature": 1.0, "seed": 1}):
        answers = translator.translate(texts, prefix=prefixes, max_new_tokens=5, **options)
        assert answers[0].startswith("The cat") and answers[2].startswith("我喜欢打") and answers[3] == ""
        assert answers[1] == translator.translate(texts[1], max_new_tokens=5, **options)
        assert answers[0] == translator.translate(texts[0], prefix="The cat", max_new_tokens=5, **options)
    split = translator.translate("I love cats. The mat sat.", prefix="我喜欢打", split_above=4, max_new_tokens=5)
    assert split.startswith("我喜欢打") and split.count("我喜欢打") == 1
    with pytest.raises(UserError, match="2 prefixes for 1 lines"):
        translator.translate(["我"], prefix=["a", "b"])
    with pytest.raises(UserError, match="line 2: its forced prefix of .* model's limit of 64"):
        translator.translate(["我", "我爱"], prefix=["", "cat " * 80])


def test_a_glossary_forces_its_terms_in_both_directions(translator):
    glossary = {"篮球": "The mat", "cat": "自然"}
    options = {"glossary": glossary, "beam_size": 2, "max_new_tokens": 9}
    assert "The mat" in translator.translate("我爱打篮球。", **options)
    assert "篮球" in translator.translate("I love the mat.", **options)
    assert translator.translate("我爱", **options) == translator.translate("我爱", beam_size=2, max_new_tokens=9)
    assert "The mat" in translator.translate("我爱打篮球。", glossary=glossary, mask=None, beam_size=2)
    with pytest.raises(UserError, match="line 2: its forced terms take .* --max-new-tokens 1"):
        translator.translate(["我", "我爱打篮球。"], glossary=glossary, max_new_tokens=1, mask=None)
    for options in ({"mask": None}, {"mask": "literal"}, {"prefix": "The"}):
        with pytest.raises(UserError, match="--glossary with .* --temperature"):
            translator.translate("我", glossary=glossary, temperature=1.0, **options)
        with pytest.raises(UserError, match="--stream with --glossary"):
            list(translator.stream("我", glossary=glossary, **options))


@pytest.mark.parametrize("way", [{"temperature": 1.5, "seed": 2}, {"beam_size": 3, "n_best": 3}, {"beam_size": 1}])
def test_terms_are_masked_where_a_translation_lacks_them_however_it_is_chosen(translator, seen, way):
    glossary = {"篮球": "The mat", "语言": "{name} sat"}
    lines = ["我爱打篮球。", "我爱自然语言，喜欢篮球。", "篮球语言", "我爱"]
    options = {**way, "glossary": glossary, "max_new_tokens": 6, "details": True}
    for line, record in zip(lines, translator.translate(lines, **options), strict=True):
        for candidate in record["n_best"]:
            assert all((t in candidate["translation"]) for s, t in glossary.items() if s in line)
    if "temperature" not in way:
        texts = [text for _, text in seen]
        assert {"我爱打篮球。", "我爱打X1。", "我爱自然X1，喜欢X2。", "我爱"} <= set(texts)


def test_a_term_that_the_model_translates_as_it_must_is_left_to_it(translator, seen):
    options = {"beam_size": 1, "max_new_tokens": 6, "no_repeat_ngram": 1}
    free = translator.translate("我爱打篮球。", **options)
    seen.clear()
    assert translator.translate("我爱打篮球。", glossary={"篮球": free}, **options) == free and len(seen) == 1


def test_a_text_of_nothing_but_terms_is_their_translations(translator):
    assert translator.translate("篮球", glossary={"篮球": "The mat"}, beam_size=1, max_new_tokens=5) == "The mat"


def test_equal_sentences_are_decoded_once(translator, seen):
    options = {"max_new_tokens": 6, "details": True, "split_above": 5}
    lines = ["我爱。我喜欢猫。", "我喜欢猫。", "The cat.", "我喜欢猫。"]
    alone = [translator.translate(line, beam_size=2, **options)["translation"] for line in lines]
    seen.clear()
    assert [r["translation"] for r in translator.translate(lines, beam_size=2, **options)] == alone
    retried = {text for _, text in seen if seen.count(("<2en>", text)) + seen.count(("<2zh>", text)) > 2}
    assert not retried, "asked for once, and once again where it went round in circles"
    seeded = translator.translate(["我喜欢猫。"] * 3, temperature=2.0, seed=3, max_new_tokens=9)
    assert len(set(seeded)) == 1


BOTH = (("zh", "en"), ("en", "zh"))


@pytest.mark.parametrize(
    "entries, text, direction, terms",
    [
        (
            [("神经网络", "neural network"), ("网络", "network")],
            "神经网络和网络",
            ("zh", "en"),
            ["neural network", "network"],
        ),
        ([("神经网络", "neural network"), ("网络", "network")], "神经网络", ("zh", "en"), ["neural network"]),
        ([("网络", "network")], "A Network is", ("en", "zh"), ["网络"]),
        ([("网络", "network")], "networks networking", ("en", "zh"), []),
        ([("GPU", "图形处理器")], "a GPU", ("en", "zh"), ["图形处理器"]),
        ([("图形处理器", "GPU")], "用GPU训练", ("zh", "en"), []),
        ([("en", "zh"), ("a", "b")], "b", ("zh", "en"), ["a"]),
        ([("en", "zh"), ("a", "b")], "en a", ("en", "zh"), ["b"]),
        ([("a", "b"), ("A", "c")], "a A", ("zh", "en"), ["b"]),
        ([("C++ (new)", "x")], "in C++ (new).", ("zh", "en"), ["x"]),
        ([], "text", ("zh", "en"), []),
    ],
)
def test_terms_are_found_whole_longest_first_by_the_direction(entries, text, direction, terms):
    assert Glossary(entries).forced(text, direction, BOTH) == terms


def test_a_model_without_languages_reads_a_glossary_from_left_to_right():
    assert Glossary({"网络": "network"}).forced("网络 network", None, []) == ["network"]


def test_a_glossary_line_with_one_column_is_told_by_file_and_line(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("\ufeff网络\tnetwork\ta comment\r\n\r\n篮球\tball\r\n", encoding="utf-8")
    assert Glossary.read(path).forced("篮球网络", ("zh", "en"), BOTH) == ["ball", "network"]
    for bad in ("alone", "alone\t", "\tonly"):
        path.write_text(f"a\tb\n{bad}\n", encoding="utf-8")
        with pytest.raises(UserError, match=r"terms.tsv:2: expected a term, a tab and its translation"):
            Glossary.read(path)


def test_banned_words_are_not_written(translator):
    texts, options = ["我爱打篮球。", "The cat sat", "我"], {"beam_size": 1, "max_new_tokens": 8}
    free = [r for r in translator.translate(texts, details=True, **options) if not r["untranslated"]]
    assert free
    for record in free:
        word = record["translation"].split()[0]
        assert word not in translator.translate(record["source"], banned=[word], **options).split()


def test_a_translation_that_goes_round_in_circles_is_tried_again(translator, monkeypatch):
    t, asked = translator.tokenizer, []

    def fake(model, source_BS, source_mask_BS, config, request):
        asked.append(request)
        ids = tuple(t.encode("The cat" if NoRepeatNgram(3) in request.processors else "cat " * 5))
        return [[Hypothesis(ids, -1.0, (-1.0,), True)] for _ in source_BS]

    monkeypatch.setattr(engine, "search", fake)
    record = translator.translate("我爱", details=True)
    assert (record["translation"], record["repetition"], len(asked)) == ("The cat", False, 2)
    assert translator.translate("我爱", no_repeat_ngram=2, details=True)["repetition"] and len(asked) == 3


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"temperature": 0.8, "beam_size": 4}, ["--beam-size 4", "--temperature 0.8"]),
        ({"top_k": 5, "n_best": 2}, ["--n-best 2", "sampling"]),
        ({"temperature": -1}, ["--temperature -1", "must be 0"]),
        ({"top_p": 0.0}, ["--top-p 0.0", "at most 1"]),
        ({"top_p": 1.5}, ["--top-p 1.5"]),
        ({"top_k": 0}, ["--top-k 0"]),
        ({"min_p": 2.0}, ["--min-p 2.0"]),
        ({"typical_p": 0.0}, ["--typical-p 0.0"]),
        ({"beam_groups": 2}, ["--beam-groups 2", "--beam-size 5"]),
        ({"diversity": math.nan}, ["--diversity nan"]),
        ({"repetition_penalty": 0.0}, ["--repetition-penalty 0.0"]),
        ({"no_repeat_ngram": 0}, ["--no-repeat-ngram 0"]),
        ({"beam_size": 100_000}, ["--beam-size 100000", "512"]),
    ],
)
def test_impossible_options_are_told_by_their_flags(options, parts):
    with pytest.raises(UserError) as told:
        Decoding(**options)
    assert all(part in str(told.value) for part in parts)


def test_an_option_of_sampling_asks_for_it_and_temperature_0_is_greedy():
    assert Decoding().sampling is None and Decoding().search.beam_size == 5
    assert Decoding(seed=1).sampling is None
    assert Decoding(top_k=4).sampling is not None and Decoding(top_k=4).search.beam_size == 1
    assert Decoding(temperature=0).sampling is None and Decoding(temperature=0).search.beam_size == 1
    assert Decoding(temperature=0, beam_size=4).search.beam_size == 4


def test_tags_go_around_words_and_come_through_once_and_nested(translator, seen):
    line = "The <b>cat <i>sat</i></b> on<br/> the mat."
    record = translator.translate(line, beam_size=2, n_best=2, max_new_tokens=6, no_repeat_ngram=2, details=True)
    assert seen == [("<2zh>", "The cat sat on the mat.")] and record["source"] == line
    plain = translator.translate("The cat sat on the mat.", beam_size=2, max_new_tokens=6, no_repeat_ngram=2)
    for candidate in record["n_best"]:
        tags = re.findall("<[^>]*>", candidate["translation"])
        assert sorted(tags) == ["</b>", "</i>", "<b>", "<br/>", "<i>"]
        assert [tag for tag in tags if tag != "<br/>"] == ["<b>", "<i>", "</i>", "</b>"]
    assert re.sub("<[^>]*>", "", record["translation"]).split() == plain.split()
    seen.clear()
    assert translator.translate("Hello <name>", beam_size=1, max_new_tokens=2).count("<name>") == 1
    assert "X1" in seen[0][1]


def test_alignments_are_pairs_of_words_from_the_layers_and_heads_asked_for(translator):
    texts, options = ["我爱打篮球。", "", "The cat sat"], {"beam_size": 1, "max_new_tokens": 6, "no_repeat_ngram": 2}
    records = translator.translate(texts, alignments=True, details=True, **options)
    for text, record in zip(texts, records, strict=True):
        pairs = [tuple(map(int, pair.split("-"))) for pair in record["alignment"].split()]
        assert all(s < len(words(text)) and t < len(words(record["translation"])) for s, t in pairs)
    assert records[0]["alignment"] and records[1]["alignment"] == ""
    t = translator.tokenizer
    (expected,) = align_texts(
        translator.model,
        t,
        [(texts[0], records[0]["translation"])],
        [[t.language_ids["en"]]],
        [[t.language_ids["zh"]]],
        layers=[0],
        heads=[1],
    )
    record = translator.translate(
        texts[0], alignments=True, alignment_layers=[0], alignment_heads=[1], details=True, **options
    )
    assert record["alignment"] == to_pharaoh(expected.links)
    with pytest.raises(UserError, match="--alignment-layers 99"):
        translator.translate("我爱", alignments=True, alignment_layers=[99], **options)


@pytest.mark.parametrize(
    "text", ["<b>我爱</b>打<i>篮球</i>。", "The <b>cat</b> sat.", "我爱打篮球。", "", "THE CAT SAT"]
)
@pytest.mark.parametrize("way", [{}, {"temperature": 1.5, "seed": 4}])
def test_a_translation_told_in_pieces_is_the_translation(translator, text, way):
    options = {**way, "max_new_tokens": 9}
    pieces = list(translator.stream(text, **options))
    assert "".join(pieces) == translator.translate(text, beam_size=1, **options)
    assert "<" not in text or len(pieces) == 1

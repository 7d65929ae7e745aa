"""The routes: what each gives, and what a mistake is told."""

from __future__ import annotations

import base64
import json
import shutil
import time

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

from glassformer.api import DEFAULT_MODEL, find_model
from glassformer.explore.app import build_app
from glassformer.explore.models import spelled_out
from glassformer.families import build
from glassformer.header import Translation
from glassformer.store import save_model
from glassformer.text.tokenizer import Tokenizer
from tests.explore.helpers import LINES, floats
from tests.randomised import randomise

TEXT = "我喜欢打篮球。"


def error(response, status: int) -> str:
    """The one line of a refusal."""
    assert response.status_code == status, response.text
    told = response.json()
    assert list(told) == ["error"] and "\n" not in told["error"] and "Traceback" not in told["error"]
    return told["error"]


def test_models_are_listed_those_given_first(client, models) -> None:
    cards = client.get("/api/models").json()
    assert [card["name"] for card in cards] == [*models, "zh-en", "teaching"]
    by_name = {card["name"]: card for card in cards}
    assert by_name["zh-en"]["directions"] == [["zh", "en"], ["en", "zh"]] and by_name["zh-en"]["example"]
    assert [by_name[name]["kind"] for name in ("translator", "writer", "masked")] == [
        "encoder-decoder",
        "decoder",
        "encoder",
    ]
    assert by_name["classes"]["input"] == "image" and by_name["teaching"]["teaching"]
    assert not any(card["teaching"] for card in cards if card["name"] != "teaching")


def test_the_teaching_model_says_what_the_documents_say(client) -> None:
    card = next(card for card in client.get("/api/models").json() if card["teaching"])
    found = client.post("/api/runs", json={"model": card["name"], "text": card["example"]}).json()
    assert found["output"]["text"] == "I love NLP"
    assert [token["piece"] for token in found["source"]] == ["我", "爱", "自然", "语言", "处理", "</s>"]
    told = client.get("/api/models/teaching").json()
    assert told["config"]["d_model"] == 4
    assert len(told["config"]["encoder"]["blocks"]) == len(told["config"]["decoder"]["blocks"]) == 6


@pytest.mark.parametrize("name", ["translator", "writer", "masked", "classes", "zh-en"])
def test_an_architecture_is_the_models(client, name: str) -> None:
    told = client.get(f"/api/models/{name}").json()
    opened = client.app.state.models[name]
    assert told["parameters"] == opened.model.num_parameters()
    assert told["tree"]["parameters"] == told["parameters"]
    ids = {part["id"] for part in told["parts"]}
    assert all(edge["from"] in ids and edge["to"] in ids for edge in told["edges"])
    assert told["config"] == json.loads(json.dumps(spelled_out(opened.config)))
    for part in told["parts"]:
        if part["kind"] in ("self-attention", "cross-attention"):
            assert part["heads"] > 0 and part["causal"] == (part["stack"] == "decoder" and "cross" not in part["id"])


def test_weights_whole_and_by_the_row(client) -> None:
    opened = client.app.state.models["translator"]
    path = "/api/models/translator/weights/embed.weight"
    whole = floats(client.get(path))
    np.testing.assert_array_equal(whole, opened.model.embed.weight.numpy())
    np.testing.assert_array_equal(floats(client.get(path, params={"row": 7})), whole[7])
    assert "whole number from 0" in error(client.get(path, params={"row": 10**6}), 400)
    assert "no weight" in error(client.get("/api/models/translator/weights/nothing"), 404)
    table = floats(client.get("/api/models/translator/weights/encoder.position.weight"))
    np.testing.assert_array_equal(table, opened.model.encoder.position.weight.numpy())


def test_the_lens_of_the_last_layer_is_what_the_model_says(client) -> None:
    for name, stack in (("translator", "decoder"), ("writer", "decoder"), ("masked", "encoder")):
        found = client.post("/api/runs", json={"model": name, "text": TEXT, "max_new_tokens": 4}).json()
        told = client.get(f"/api/runs/{found['id']}/lens", params={"stack": stack}).json()
        logits = next(info["name"] for info in found["tensors"] if info["name"].endswith("logits"))
        values = torch.from_numpy(floats(client.get(f"/api/runs/{found['id']}/tensors/{logits}")).copy())
        best = values.log_softmax(-1).topk(5)
        last = told["layers"][-1]["positions"]
        assert [[each["token"]["id"] for each in row] for row in last] == best.indices.tolist()
        logprobs = [[each["logprob"] for each in row] for row in last]
        np.testing.assert_allclose(logprobs, best.values.numpy(), atol=1e-4)
        layers = len(getattr(client.app.state.models[name].model, stack).layers)
        assert len(told["layers"]) == layers + 1


def test_a_lens_is_refused_where_no_output_layer_reads_the_stack(client) -> None:
    found = client.post("/api/runs", json={"model": "translator", "text": TEXT, "max_new_tokens": 2}).json()
    assert "alone" in error(client.get(f"/api/runs/{found['id']}/lens?stack=encoder"), 400)
    assert "encoder and decoder" in error(client.get(f"/api/runs/{found['id']}/lens?stack=middle"), 400)


def test_worked_numbers_are_those_of_the_documents(client, shared) -> None:
    from glassformer.explore.worked import agrees

    told = {each["name"]: each for each in client.get("/api/worked").json()}
    assert all(agrees(each) for each in told.values())
    golden = json.loads((shared / "goldens/worked_examples.json").read_text(encoding="utf-8"))
    assert told["sinusoidal_positions"]["expected"] == golden["sinusoidal_positions"]["values"]
    assert told["softmax_self_attention"]["expected"] == golden["softmax_self_attention"]["weights"]
    assert told["causal_mask"]["expected"] == golden["causal_mask"]["row_I"]["weights"]
    assert told["causal_mask"]["inputs"]["after_mask"] == golden["causal_mask"]["row_I"]["after_mask"]
    assert told["cross_attention_scores"]["expected"] == golden["cross_attention"]["scores"][:2]
    assert told["cross_attention_weights"]["expected"] == golden["cross_attention"]["weights"]
    for name, row in golden["layer_norm"]["rows"].items():
        assert told[f"layer_norm {name}"]["expected"] == row["y"]
        assert told[f"layer_norm {name}"]["inputs"]["x"] == row["x"]
    assert told["output_layer"]["expected"] == golden["output_layer"]["softmax_over_these_five"]
    assert [step[1] for step in told["autoregression"]["computed"]] == golden["autoregression"]["next"]
    assert told["shift_right"]["computed"]["labels"] == golden["shift_right"]["labels"]
    assert told["batch_shapes"]["expected"]["token_ids"] == golden["batch_shapes"]["token_ids"]
    counts = golden["parameter_counts"]
    assert told["parameter_counts"]["computed"] == {name: counts[name] for name in ("gpt2-small", "gpt3-175b")}
    assert told["widths"]["computed"] == golden["widths"]


def test_a_wrong_number_would_be_seen() -> None:
    from glassformer.explore.worked import agrees, worked

    example = dict(next(each for each in worked() if each["name"] == "output_layer"))
    example["computed"] = [0.99, *example["computed"][1:]]
    assert not agrees(example)


def test_training_tells_its_steps_and_learns() -> None:
    from glassformer.explore.training import Lesson

    events = list(Lesson().events(steps=60, every=20, seconds=0))
    assert [event["step"] for event in events] == [0, 20, 40, 60] and events[-1]["steps"] == 60
    assert events[-1]["loss"] < events[0]["loss"] / 2 and events[-1]["dev_loss"] < events[0]["dev_loss"]
    last = events[-1]
    target = [token["id"] for token in last["decoder_input"]]
    assert target[0] == 1 and [token["id"] for token in last["labels"]] == [*target[1:], 2]
    assert len(last["loss_per_position"]) == len(last["predictions"]) == len(target)
    np.testing.assert_allclose(np.exp(-np.array(last["loss_per_position"])), last["label_probabilities"], atol=1e-5)
    cross = np.array(last["cross"])
    assert cross.shape == (len(target), len(last["source"]))
    np.testing.assert_allclose(cross.sum(1), 1, atol=1e-5)


def test_training_is_streamed(client, monkeypatch) -> None:
    from glassformer.explore import app as module
    from glassformer.explore.training import Lesson

    class Short(Lesson):
        def events(self, **options):
            return super().events(steps=4, every=2, seconds=0)

    monkeypatch.setattr(module, "Lesson", Short)
    for _ in range(2):  # one after the other may learn
        response = client.get("/api/training")
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
        assert [event["step"] for event in events] == [0, 2, 4]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"text": ""}, 400, "empty text"),
        ({"text": " \u3000\n"}, 400, "empty text"),
        ({}, 400, "empty text"),
        ({"text": "字" * 10_000}, 413, "10,000 characters"),
        ({"text": "字 " * 1000}, 413, "at most 512"),
        ({"text": "好", "beam_size": 17}, 400, "1 to 16"),
        ({"text": "好", "beam_size": 0}, 400, "1 to 16"),
        ({"text": "好", "max_new_tokens": 0}, 400, "1 or more"),
        ({"text": "好", "length_penalty": -1}, 400, "0 to 100"),
        ({"text": "好", "prefix": [10**6]}, 400, "outside the vocabulary"),
        ({"text": "好", "prefix": [2]}, 400, "</s>"),
        ({"text": "好", "prefix": [5], "target": "x"}, 400, "leave one out"),
        ({"text": "好", "pad": 1000}, 400, "0 to 64"),
        ({"text": "好", "to": "fr"}, 400, "--to fr"),
        ({"text": "\ud800"}, 400, "surrogate"),
        ({"text": "好", "image": "QUJD"}, 400, "reads text"),
        ({"text": "好", "model": "translater"}, 404, "did you mean 'translator'"),
        ({"text": "好", "model": "classes"}, 400, "reads images"),
        ({"model": "classes", "image": "QUJD"}, 400, "not an image"),
        ({"model": "classes", "image": "§§"}, 400, "not base64"),
        ({"model": "masked", "text": "好", "prefix": [5]}, 400, "only reads"),
        ({"text": 7}, 400, "text:"),
        ({"text": "好", "beam": 4}, 400, "beam"),
        ({"text": "好", "length_penalty": "NaN"}, 400, ""),
    ],
)
def test_a_mistake_is_told_in_one_line(client, body: dict, status: int, words: str) -> None:
    content = json.dumps({"model": "translator", **body})
    response = client.post("/api/runs", content=content, headers={"content-type": "application/json"})
    assert words in error(response, status)


def test_a_body_that_is_no_json_is_told_so(client) -> None:
    response = client.post("/api/runs", content="{", headers={"content-type": "application/json"})
    assert error(response, 400)


@pytest.mark.parametrize("text", ["🐉🐉", "a\nb", "\u200b好", "<2en></s>", "𠮷野家🐉龘《鸡》", "x" * 300])
def test_odd_text_runs(client, text: str) -> None:
    response = client.post("/api/runs", json={"model": "translator", "text": text, "max_new_tokens": 3})
    assert response.status_code == 200, response.text
    special = [token["special"] for token in response.json()["source"]]
    assert special.count(True) == 2, "text that spells a special token is text"


def test_unknown_tensors_axes_and_places_are_told(client) -> None:
    found = client.post("/api/runs", json={"model": "translator", "text": TEXT, "max_new_tokens": 2}).json()
    path = f"/api/runs/{found['id']}/tensors"
    assert "no tensor" in error(client.get(f"{path}/decoder.layers.9.q"), 404)
    name = f"{path}/decoder.layers.0.cross.pattern"
    assert "its axes are B H T S" in error(client.get(name, params={"x": 0}), 400)
    assert "0 to 3" in error(client.get(name, params={"h": 4}), 400)
    for wrong in ("-1", "1.5", "", "²"):
        assert error(client.get(name, params={"h": wrong}), 400)
    assert "run the text again" in error(client.get("/api/runs/run0/tensors/x"), 404)
    assert error(client.get("/api/nothing"), 404)
    assert error(client.delete("/api/models"), 405)


def test_more_numbers_than_are_told_at_once_ask_for_a_head() -> None:
    from glassformer.explore.numbers import part_of
    from glassformer.explore.problem import TooLong

    pattern = torch.zeros(1, 16, 512, 512, device="meta")
    with pytest.raises(TooLong, match="choose a head"):
        part_of(pattern, "B H T S", {}, "pattern")
    assert part_of(pattern, "B H T S", {"h": "3"}, "pattern").shape == (512, 512)


def test_a_model_that_vanished_is_told_in_one_line(tmp_path) -> None:
    tokenizer = Tokenizer.train(["我喜欢", "I like"] * 3, vocab_size=300)
    model = randomise(build("transformer-tiny", vocab_size=tokenizer.vocab_size))
    save_model(tmp_path / "gone", model, tokenizer, Translation("zh", "en"))
    save_model(tmp_path / "read", model, tokenizer, Translation("zh", "en"))
    client = TestClient(build_app([str(tmp_path / "gone"), str(tmp_path / "read")]), raise_server_exceptions=False)
    assert client.get("/api/models/read").status_code == 200
    shutil.rmtree(tmp_path / "gone")
    shutil.rmtree(tmp_path / "read")
    assert "is gone" in error(client.get("/api/models/gone"), 404)
    assert "is gone" in error(client.post("/api/runs", json={"model": "gone", "text": "我"}), 404)
    # What is in memory already goes on.
    assert client.post("/api/runs", json={"model": "read", "text": "我", "max_new_tokens": 2}).status_code == 200


def test_a_damaged_model_is_listed_with_its_problem(tmp_path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    client = TestClient(build_app([str(tmp_path / "broken")]), raise_server_exceptions=False)
    card = client.get("/api/models").json()[0]
    assert card["name"] == "broken" and "format_version" in card["problem"]
    assert "format_version" in error(client.get("/api/models/broken"), 400)


def test_two_models_of_one_name_are_told_apart(tmp_path, models) -> None:
    other = tmp_path / "translator"
    shutil.copytree(models["translator"], other)
    cards = TestClient(build_app([models["translator"], str(other), DEFAULT_MODEL])).get("/api/models").json()
    assert [card["name"] for card in cards] == ["translator", "translator-2", "zh-en", "teaching"]


def test_segments_end_where_the_tokenizer_does(client) -> None:
    texts = ["我喜欢打篮球。", "I like playing basketball, don't you?", "𠮷野家🐉龘", " two  blanks ", "unseen ζ wörds"]
    for name in ("translator", "masked", "zh-en", "teaching"):
        for text in texts:
            told = client.get("/api/segment", params={"model": name, "text": text, "side": "source"}).json()
            pieces = [piece for word in told["words"] for piece in word["steps"][-1]["pieces"]]
            tokenizer = client.app.state.models[name].tokenizer
            assert pieces == tokenizer.tokens(text) == [token["piece"] for token in told["tokens"]], (name, text)
            assert told["kind"] == {"masked": "wordpiece", "teaching": "words"}.get(name, "bpe")


def test_merges_are_applied_by_their_rank(client) -> None:
    told = client.get("/api/segment", params={"model": "zh-en", "text": "playing", "side": "source"}).json()
    for word in told["words"]:
        steps = word["steps"]
        assert "".join(steps[0]["pieces"]) == "".join(steps[-1]["pieces"])
        for before, after in zip(steps, steps[1:], strict=False):
            left, right = after["merged"]
            at = [pair for pair in zip(before["pieces"], before["pieces"][1:], strict=False)].index((left, right))
            assert after["pieces"] == [*before["pieces"][:at], left + right, *before["pieces"][at + 2 :]]


def test_unigram_takes_the_best_path() -> None:
    from glassformer.explore.segment import segment
    from glassformer.explore.tokens import Tokens

    tokenizer = Tokenizer.train([*LINES, "played plays player"], kind="unigram", vocab_size=330)
    tokens = Tokens(tokenizer)
    for text in (*LINES[:4], "🐉 unseen ζ", "basketplaying"):
        told = segment(tokens, text)
        assert told["kind"] == "unigram"
        assert [p for word in told["words"] for p in word["steps"][-1]["pieces"]] == tokenizer.tokens(text)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_sentencepiece_models_are_followed_by_their_scores(kind: str, byte_fallback: bool) -> None:
    import io

    import sentencepiece

    from glassformer.explore.segment import segment
    from glassformer.explore.tokens import Tokens
    from glassformer.text.sentencepiece import SentencePieceTokenizer

    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES * 3),
        model_writer=proto,
        model_type=kind,
        vocab_size=80 + 256 * byte_fallback,
        hard_vocab_limit=False,
        byte_fallback=byte_fallback,
        minloglevel=2,
    )
    tokenizer = SentencePieceTokenizer(proto.getvalue())
    tokens = Tokens(tokenizer)
    for text in (*LINES[:4], " two  blanks", "unseen ζζ 龘", "playinglike"):
        told = segment(tokens, text)
        assert [p for word in told["words"] for p in word["steps"][-1]["pieces"]] == tokenizer.tokens(text)
    told = segment(tokens, "playing")
    assert len(told["words"][0]["steps"]) > 3, "the way there is told, too"


def test_a_deep_model_and_64_tokens_are_told_within_a_second(tmp_path) -> None:
    tokenizer = Tokenizer.train(["我喜欢打篮球。", "I like playing basketball."] * 3, vocab_size=340)
    shape = dict(encoder_layers=6, decoder_layers=6, d_model=256, n_heads=4, d_ff=1024, dropout=0.0)
    model = build("transformer-small", vocab_size=tokenizer.vocab_size, **shape)
    save_model(tmp_path / "deep", model, tokenizer, Translation("zh", "en"))
    client = TestClient(build_app([str(tmp_path / "deep")]))
    client.get("/api/models/deep")
    text = target = "我喜欢打篮球。" * 31
    started = time.process_time()
    found = client.post("/api/runs", json={"model": "deep", "text": text, "target": target}).json()
    for layer in range(6):
        for part in ("mixer", "cross"):
            floats(client.get(f"/api/runs/{found['id']}/tensors/decoder.layers.{layer}.{part}.pattern"))
    client.get(f"/api/runs/{found['id']}/lens")
    spent = time.process_time() - started  # the forward pass is in it
    assert [len(found[side]) for side in ("source", "target")] == [63, 63]
    print(
        f"6 + 6 layers, 64 tokens: {spent:.2f} s of one core, {found['seconds']['forward']:.2f} s in the forward pass"
    )
    assert spent < 1.0


def test_the_page_is_served_where_it_is_built(tmp_path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>page")
    assert "page" in TestClient(build_app(static=tmp_path)).get("/").text
    assert "npm run build" in TestClient(build_app(static=tmp_path / "none")).get("/").text


def test_a_saved_page_holds_what_the_server_would_say(client, models, tmp_path, monkeypatch) -> None:
    from glassformer.explore import export

    (tmp_path / "page.html").write_text("<head><!--responses--></head>")
    monkeypatch.setattr(export, "STATIC", tmp_path)
    monkeypatch.setattr(export.Lesson, "events", lambda self, seconds: iter([{"step": 0, "text": "</script><!--"}]))
    page = export.write_page("我爱自然语言处理。", ["zh-en"], None, None)
    assert page.count("</script>") == 1 and page.count("<!--") == 0
    data = page.removeprefix("<head><script>window.__GLASSFORMER__ = ").removesuffix("</script></head>")
    told = json.loads(data.replace("<\\!--", "<!--"))["responses"]
    body = {"beam_size": 4, "from": "zh", "model": "zh-en", "text": "我爱自然语言处理。", "to": "en"}
    canonical = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    found = told[f"POST /api/runs {canonical}"]["json"]
    live = client.post("/api/runs", json=body).json()
    assert found["output"] == live["output"] and found["decoding"] == live["decoding"]
    for info in live["tensors"]:
        saved = told[f"GET /api/runs/{found['id']}/tensors/{info['name']}"]
        numbers = np.frombuffer(base64.b64decode(saved["base64"]), "<f4").reshape(saved["shape"])
        np.testing.assert_allclose(
            numbers, floats(client.get(f"/api/runs/{live['id']}/tensors/{info['name']}")), rtol=1e-4, atol=1e-5
        )
    assert told["GET /api/models"]["json"][0]["directions"] == [["zh", "en"]]
    assert told[f"GET /api/runs/{found['id']}/lens?stack=encoder"]["status"] == 400
    assert "GET /api/segment?model=zh-en&side=source&text=%E6%88%91%E7%88%B1" in "".join(told)
    assert len(page) < 15e6
    assert find_model("zh-en")

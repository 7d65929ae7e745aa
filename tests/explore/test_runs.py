"""Runs: every number that is told is the model's own, and the search that is shown is the one that translates."""

from __future__ import annotations

import json
import math
import threading

import numpy as np
import pytest
import torch

import glassformer as gf
from glassformer.explore.models import Models
from glassformer.explore.numbers import part_of
from glassformer.explore.reading import RunRequest
from glassformer.explore.runs import Gate, Runs
from glassformer.families import build, configure, presets
from glassformer.header import Framing
from glassformer.runtime.library import EngineUnavailable
from glassformer.store import save_model
from glassformer.text.tokenizer import Tokenizer
from tests.explore.helpers import LINES, floats, picture
from tests.randomised import randomise

TEXT = "我喜欢打篮球。"


def run(client, model: str = "translator", **request) -> dict:
    body = {"model": model, "text": TEXT, **request}
    response = client.post("/api/runs", json={key: value for key, value in body.items() if value is not None})
    assert response.status_code == 200, response.text
    return response.json()


def tensor(client, found: dict, name: str, **axes: int) -> np.ndarray:
    return floats(client.get(f"/api/runs/{found['id']}/tensors/{name}", params=axes))


@pytest.mark.parametrize("model", ["translator", "writer", "masked", "classes"])
def test_every_tensor_of_a_run_is_the_one_that_a_recorded_pass_gives(client, models, model: str) -> None:
    given = {"text": None, "image": picture()} if model == "classes" else {"max_new_tokens": 6}
    found = run(client, model, **given)
    opened = client.app.state.models[model]
    source = torch.tensor([[token["id"] for token in found["source"]]])
    with gf.record(opened.model) as trace, torch.no_grad():
        if model == "translator":
            opened.model(source, torch.tensor([[token["id"] for token in found["target"]]]))
        elif model == "writer":
            opened.model(torch.tensor([[token["id"] for token in found["target"]]]))
        elif model == "masked":
            opened.model(source)
        else:
            from glassformer.explore.reading import read

            opened.model(read(opened, RunRequest(model=model, image=given["image"]), 512).inputs)
    assert {info["name"] for info in found["tensors"]} == set(trace)
    parts = {part["id"] for part in client.get(f"/api/models/{model}").json()["parts"]}
    for info in found["tensors"]:
        value = trace[info["name"]]
        assert info["shape"] == list(value.shape) and len(info["axes"].split()) == value.dim()
        assert info["part"] in parts
        told = tensor(client, found, info["name"])
        expected = value[0] if info["axes"].startswith("B") else value
        np.testing.assert_allclose(told, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_axes_are_fixed_by_their_letters(client) -> None:
    found = run(client)
    name = "decoder.layers.1.cross.pattern"
    whole = tensor(client, found, name)
    np.testing.assert_array_equal(tensor(client, found, name, h=2), whole[2])
    np.testing.assert_array_equal(tensor(client, found, name, S=1, h=0), whole[0, :, 1])
    np.testing.assert_array_equal(tensor(client, found, name, h=1, t=0, s=2), whole[1, 0, 2])
    np.testing.assert_allclose(whole.sum(-1), 1, atol=1e-5)


def test_labels_logprobs_and_score_can_be_recomputed(client) -> None:
    found = run(client, beam_size=3, length_penalty=0.7)
    logits = torch.from_numpy(tensor(client, found, "head.logits").copy()).double()
    labels = [token["id"] for token in found["labels"]]
    logprobs = logits.log_softmax(-1)[range(len(labels)), labels].tolist()
    assert found["label_logprobs"] == pytest.approx(logprobs, abs=1e-5)
    assert [token["id"] for token in found["target"]][1:] == labels[: len(found["target"]) - 1]
    score = math.fsum(logprobs) / ((5 + len(labels)) / 6) ** 0.7
    assert found["output"]["score"] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_the_search_that_is_shown_is_the_one_that_translates(client, models, beam_size: int) -> None:
    found = run(client, beam_size=beam_size, **{"from": "zh", "to": "en"})
    translator = gf.load(models["translator"], engine="model")
    row = translator.read(TEXT, ("zh", "en"))
    from glassformer.decoding import Decoding

    best = translator.decode([row], Decoding(beam_size=beam_size), (), [gf_constraints()], 4000)[0][0]
    assert [token["id"] for token in found["source"]] == row.ids
    labels = [token["id"] for token in found["labels"]]
    assert labels == [*best.ids, *([2] if best.finished else [])]
    assert found["output"]["score"] == pytest.approx(best.score, abs=1e-4)
    decoding = found["decoding"]
    chosen = [node for node in decoding["nodes"] if node["fate"] == "best"]
    assert [node["token"]["id"] for node in chosen] == labels
    assert decoding["hypotheses"][0]["nodes"] == [node["id"] for node in chosen]


def gf_constraints():
    from glassformer.generate.constraints import Constraints

    return Constraints()


def test_sums_scores_and_fates_of_the_tree_can_be_recomputed(client) -> None:
    found = run(client, beam_size=4, length_penalty=1.5, max_new_tokens=8)
    decoding = found["decoding"]
    nodes = decoding["nodes"]
    for node in nodes:
        before = nodes[node["parent"]] if node["parent"] >= 0 else {"sum": 0.0, "step": -1}
        assert node["step"] == before["step"] + 1
        assert node["sum"] == pytest.approx(before["sum"] + node["logprob"], abs=1e-9)
        assert node["score"] == pytest.approx(node["sum"] / ((6 + node["step"]) / 6) ** 1.5)
    parents = {node["parent"] for node in nodes}
    for node in nodes:
        if node["fate"] in ("dropped", "finished"):
            assert node["id"] not in parents
    for step, told in enumerate(decoding["steps"]):
        kept = [node for node in nodes if node["step"] == step and node["fate"] != "dropped"]
        dropped = [node["sum"] for node in nodes if node["step"] == step and node["fate"] == "dropped"]
        assert len(kept) <= 4 and len(dropped) <= 4
        assert not dropped or max(dropped) <= min(node["sum"] for node in kept)
        for row in told["rows"]:
            logprobs = [each["logprob"] for each in row["candidates"]]
            assert logprobs == sorted(logprobs, reverse=True)
            known = {each["token"]["id"]: each["logprob"] for each in row["candidates"]}
            for node in nodes:
                if node["step"] == step and node["parent"] == row["node"] and node["token"]["id"] in known:
                    assert node["logprob"] == pytest.approx(known[node["token"]["id"]], abs=1e-5)
    scores = [each["score"] for each in decoding["hypotheses"]]
    assert scores == sorted(scores, reverse=True)


def test_what_a_step_costs_grows_without_a_cache_and_hardly_with_one(client) -> None:
    steps = run(client, max_new_tokens=8, beam_size=1)["decoding"]["steps"]
    assert [step["cache_tokens"] for step in steps] == list(range(1, len(steps) + 1))
    assert steps[0]["flops"] == steps[0]["flops_without_cache"]
    for place, step in enumerate(steps):
        assert step["flops_without_cache"] == sum(each["flops"] for each in steps[: place + 1])
    each = {b["cache_bytes"] - a["cache_bytes"] for a, b in zip(steps, steps[1:], strict=False)}
    assert each == {2 * 32 * 4 * 2}, "keys and values of 2 layers, d_model 32, float32"


def test_a_forced_prefix_is_gone_on_from(client) -> None:
    free = run(client, max_new_tokens=6)
    first = free["decoding"]["steps"][0]["rows"][0]["candidates"]
    other = next(each["token"]["id"] for each in first[1:] if not each["token"]["special"])
    found = run(client, prefix=[other], max_new_tokens=6)
    assert found["labels"][0]["id"] == other and found["target"][1]["id"] == other
    assert [node["forced"] for node in found["decoding"]["nodes"]].count(True) == 1
    assert found["decoding"]["nodes"][0]["forced"]
    step = found["decoding"]["steps"][0]
    assert step["rows"] == [{"node": -1, "candidates": step["rows"][0]["candidates"]}]
    told = [(each["token"]["id"], each["logprob"]) for each in step["rows"][0]["candidates"]]
    assert told == [(each["token"]["id"], pytest.approx(each["logprob"], abs=1e-4)) for each in first]


@pytest.mark.parametrize("pad", [0, 5])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_native_steps_search_as_the_module_does(models, beam_size: int, pad: int) -> None:
    asked = RunRequest(model="translator", text=TEXT, beam_size=beam_size, pad=pad, prefix=[7], max_new_tokens=20)
    native, module = Models([models["translator"]]), Models([models["translator"]])
    if isinstance(native["translator"].decodable, torch.nn.Module):
        pytest.skip("no native library; python -m glassformer.runtime.build makes it")
    module["translator"].decodable = module["translator"].model
    told = [Runs(each).make(asked).answer["decoding"] for each in (native, module)]
    for key in ("token", "parent", "step", "fate", "forced"):
        assert [node[key] for node in told[0]["nodes"]] == [node[key] for node in told[1]["nodes"]]
    sums = [[node["sum"] for node in each["nodes"]] for each in told]
    assert sums[0] == pytest.approx(sums[1], abs=2e-4)
    assert [each["text"] for each in told[0]["hypotheses"]] == [each["text"] for each in told[1]["hypotheses"]]


def test_what_the_native_engine_lacks_the_module_decodes(models, monkeypatch) -> None:
    def lacks(*args):
        raise EngineUnavailable("not this one")

    monkeypatch.setattr("glassformer.explore.models.packed", lacks)
    opened = Models([models["translator"]])["translator"]
    assert opened.decodable is opened.model
    writer = Models([models["writer"]])["writer"]
    assert writer.decodable is writer.model


def test_a_given_target_is_scored_as_the_command_scores_it(client, models) -> None:
    found = run(client, target="I like it.", to="en")
    score = gf.load(models["translator"], engine="model").score([(TEXT, "I like it.")], to="en")[0]
    assert found["label_logprobs"] == pytest.approx([each["logprob"] for each in score["tokens"]], abs=1e-4)
    assert found["output"]["score"] == pytest.approx(score["score"], abs=1e-4)
    assert found["decoding"] is None and found["labels"][-1]["special"]


def test_padding_is_shown_and_changes_nothing(client) -> None:
    plain, padded = run(client, max_new_tokens=5), run(client, max_new_tokens=5, pad=3)
    assert padded["source_mask"] == plain["source_mask"] + [False] * 3
    assert padded["output"] == {**plain["output"], "score": pytest.approx(plain["output"]["score"], abs=1e-4)}
    pattern = tensor(client, padded, "encoder.layers.0.mixer.pattern")
    assert (pattern[:, :, -3:] == 0).all()


def test_tokens_know_their_characters(client) -> None:
    found = run(client, text="I  like 𠮷野家🐉.")
    text = "I  like 𠮷野家🐉."
    for token in found["source"]:
        assert (token["span"] is None) == token["special"]
    covered = {at for token in found["source"] if token["span"] for at in range(*token["span"])}
    assert {at for at, character in enumerate(text) if not character.isspace()} <= covered
    written = found["output"]["text"]
    for token in found["labels"]:
        if token["span"]:
            assert 0 <= token["span"][0] <= token["span"][1] <= len(written)


def test_alignment_pairs_tokens_that_are_text(client) -> None:
    found = run(client)
    assert found["alignment"]
    for source, label in found["alignment"]:
        assert not found["source"][source]["special"] and not found["labels"][label]["special"]


def test_a_prompt_is_continued_as_generate_does(client, models) -> None:
    found = run(client, "writer", text="I like", max_new_tokens=5)
    assert found["output"]["text"] == gf.load(models["writer"], engine="model").generate("I like", max_new_tokens=5)
    prompt = [token["id"] for token in found["source"]]
    assert [token["id"] for token in found["target"]][: len(prompt)] == prompt
    assert len(found["decoding"]["steps"]) == 5
    assert len(run(client, "writer", text="I like", max_new_tokens=5, beam_size=3)["decoding"]["hypotheses"]) >= 1


def test_a_mask_is_guessed_from_the_models_own_logits(client) -> None:
    found = run(client, "masked", text="I like [MASK] basketball.")
    (mask,) = found["output"]["masks"]
    assert found["source"][mask["position"]]["piece"] == "[MASK]"
    logits = torch.from_numpy(tensor(client, found, "head.output.logits", t=mask["position"]).copy())
    best = logits.log_softmax(-1).topk(10)
    assert [each["token"]["id"] for each in mask["candidates"]] == best.indices.tolist()
    assert not found["target"] and not found["labels"] and found["decoding"] is None


def test_an_image_is_classified_patch_by_patch(client, models, tmp_path) -> None:
    import base64

    found = run(client, "classes", text=None, image=picture())
    rows, columns = found["image"]["grid"]
    assert len(found["source"]) == rows * columns + 1
    assert base64.b64decode(found["image"]["png"]).startswith(b"\x89PNG")
    (tmp_path / "image.png").write_bytes(base64.b64decode(picture()))
    labels = gf.load(models["classes"]).classify(tmp_path / "image.png")["probabilities"]
    told = {each["label"]: each["probability"] for each in found["output"]["labels"]}
    assert told == pytest.approx(labels, abs=1e-5)


def test_runs_of_several_threads_do_not_mix(client) -> None:
    texts = ["我喜欢", "I like playing", "爱", "basketball."]
    alone = [run(client, text=text, max_new_tokens=4) for text in texts]
    found: dict[str, dict] = {}

    def work(text: str) -> None:
        found[text] = run(client, text=text, max_new_tokens=4)

    threads = [threading.Thread(target=work, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text, one in zip(texts, alone, strict=True):
        for key in ("source", "target", "labels", "label_logprobs", "alignment", "decoding"):
            assert found[text][key] == one[key]
    assert len({each["id"] for each in found.values()}) == len(texts)


def test_old_runs_make_room(models) -> None:
    runs = Runs(Models([models["translator"]]), kept=2)
    ids = [runs.make(RunRequest(model="translator", text="我", max_new_tokens=2)).answer["id"] for _ in range(3)]
    with pytest.raises(gf.UserError, match="run the text again"):
        runs[ids[0]]
    assert runs[ids[1]] and runs[ids[2]]
    small = Runs(Models([models["translator"]]), kept=8, kept_bytes=1)
    ids = [small.make(RunRequest(model="translator", text="我", max_new_tokens=2)).answer["id"] for _ in range(2)]
    assert small[ids[1]], "the newest is kept however large it is"
    with pytest.raises(gf.UserError):
        small[ids[0]]


def test_too_many_at_once_are_told_to_wait() -> None:
    gate, inside, leave = Gate(waiting=0), threading.Event(), threading.Event()

    def hold() -> None:
        with gate():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)
    with pytest.raises(gf.UserError, match="waiting already") as refused, gate():
        pass
    assert refused.value.status == 503
    leave.set()
    thread.join()
    with gate():
        pass


def test_answers_are_plain_json(client) -> None:
    found = run(client, max_new_tokens=3)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("preset", sorted(name for name in presets() if name.endswith("-tiny")))
def test_a_model_of_every_family_runs(preset: str, tmp_path) -> None:
    tokenizer = Tokenizer.train(LINES, vocab_size=330)
    config = configure(preset)
    if config.embed.type == "tokens":
        config = configure(preset, vocab_size=tokenizer.vocab_size)
    model = randomise(build(config))
    text = config.embed.type == "tokens"
    framing = Framing.of(tokenizer, config.kind)
    save_model(tmp_path / preset, model, tokenizer if text else None, framing=framing if text else None)
    runs = Runs(Models([str(tmp_path / preset)]))
    given = {"text": "I like playing"} if text else {"image": picture()}
    found = runs.make(RunRequest(model=preset, max_new_tokens=3, **given))
    answer = found.answer
    json.dumps(answer, allow_nan=False)
    assert {info["name"] for info in answer["tensors"]} == set(found.opened.manifest.tensors)
    for info in answer["tensors"]:
        value = found.tensor(info["name"])
        assert part_of(value, info["axes"], {}, info["name"]).isfinite().all() or "scores" in info["name"]
    if config.kind != "encoder":
        assert 1 <= len(answer["decoding"]["steps"]) <= 3
        # Step by step with a state, and all at once: the same numbers.
        first = len(answer["source"]) - 1 if config.kind == "decoder" else 0
        best = answer["decoding"]["steps"][0]["rows"][0]["candidates"][0]
        logprobs = found.tensor("head.logits")[0, first].log_softmax(-1)
        assert best["logprob"] == pytest.approx(float(logprobs[best["token"]["id"]]), abs=1e-3)

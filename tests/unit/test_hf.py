"""A Hugging Face directory's files: shards, wrappers, tokenizers, and whatever is wrong with them in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer as gf
from glassformer.errors import UserError
from glassformer.header import Framing
from glassformer.interop import hf
from glassformer.store import load_model, save_model
from glassformer.text.tokenizer import Tokenizer
from tests.randomised import ids, randomise

LINES = ["the cat sat on the mat 一二三", "a b c d e f g"] * 4


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES, vocab_size=290)


@pytest.fixture
def model(tokenizer: Tokenizer) -> Any:
    return randomise(gf.build("gpt2-tiny", vocab_size=tokenizer.vocab_size + 2)).eval()


@pytest.fixture
def folder(tmp_path: Path, model: Any, tokenizer: Tokenizer) -> Path:
    hf.save(tmp_path / "hf", model, tokenizer, Framing((1,), (2,), None, (2, 5), "{{ messages[0].content }}"))
    return tmp_path / "hf"


def rewrite(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(ids(64, 2, 9))


def test_what_was_written_is_read_with_its_tokenizer_and_framing(folder: Path, model: Any, tokenizer: Tokenizer):
    loaded = hf.load(folder)
    assert torch.equal(logits(loaded.model), logits(model))
    assert loaded.tokenizer.hash == tokenizer.hash
    assert loaded.framing == Framing((1,), (), None, (2, 5), "{{ messages[0].content }}")
    assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())


def test_a_model_of_ours_keeps_its_framing(tmp_path: Path, folder: Path):
    loaded = hf.load(folder)
    save_model(tmp_path / "m", loaded.model, loaded.tokenizer, framing=loaded.framing)
    assert load_model(tmp_path / "m").framing == loaded.framing
    save_model(tmp_path / "m", loaded.model, loaded.tokenizer)
    assert load_model(tmp_path / "m").framing == Framing((1,), (2,), 1, (2,))


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module.", "module._orig_mod."])
def test_names_of_wrappers_are_taken_off(folder: Path, model: Any, wrapper: str):
    rewrite(folder, lambda tensors: {wrapper + name: tensor for name, tensor in tensors.items()})
    assert torch.equal(logits(hf.load(folder).model), logits(model))


def test_the_prefix_may_be_missing(folder: Path, model: Any):
    rewrite(folder, lambda tensors: {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()})
    assert torch.equal(logits(hf.load(folder).model), logits(model))


def test_shards_are_read_by_their_index(folder: Path, model: Any):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    os.remove(folder / "model.safetensors")
    index = {name: file for file, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert torch.equal(logits(hf.load(folder).model), logits(model))
    os.remove(folder / "two.safetensors")
    with pytest.raises(UserError, match=r"has no two\.safetensors"):
        hf.load(folder)


def test_half_precision_is_read_as_float32(folder: Path):
    rewrite(folder, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})
    assert {p.dtype for p in hf.load(folder).model.parameters()} == {torch.float32}


def test_float32_weights_stay_memory_mapped(folder: Path):
    """No second copy: the parameters lie within the mapping of the file."""
    model = hf.load(folder).model
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("the system tells no memory maps")
    spans = [line.split()[0].split("-") for line in maps.read_text().splitlines() if str(folder) in line]
    place = model.embed.weight.data_ptr()
    assert any(int(low, 16) <= place < int(high, 16) for low, high in spans)


def test_every_missing_and_every_leftover_tensor_is_listed(folder: Path):
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        del tensors["transformer.wpe.weight"], tensors["transformer.h.1.ln_2.bias"]
        return tensors | {"transformer.surprise": torch.zeros(1), "score.weight": torch.zeros(1)}

    rewrite(folder, change)
    with pytest.raises(UserError) as caught:
        hf.load(folder)
    told = str(caught.value)
    assert "2 missing" in told and "2 left over" in told and "\n" not in told
    for name in ("transformer.wpe.weight", "transformer.h.1.ln_2.bias", "transformer.surprise", "score.weight"):
        assert name in told


def truncated(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-40])


def pickled(folder: Path) -> None:
    os.rename(folder / "model.safetensors", folder / "pytorch_model.bin")


def small_vocabulary(folder: Path) -> None:
    lines = ["一丁七万丈三上下不与丐丑专且世丙业丛东丝" * 9, *LINES]
    Tokenizer.train(lines, vocab_size=320, min_frequency=1).save(folder)


def no_json(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "gpt2", ')


def broken_index(folder: Path) -> None:
    os.remove(folder / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text("[]")


@pytest.mark.parametrize(
    "harm, said",
    [
        (truncated, "model.safetensors: damaged or not a safetensors file"),
        (pickled, "pytorch_model.bin: a pickle"),
        (small_vocabulary, "its tokenizer has .* pieces, but the embedding only"),
        (no_json, "config.json"),
        (broken_index, "index.json: expected an object"),
        (lambda folder: os.remove(folder / "model.safetensors"), "has no model.safetensors"),
    ],
)
def test_a_damaged_directory_is_told_in_one_line(folder: Path, harm: Any, said: str):
    harm(folder)
    with pytest.raises(UserError, match=said) as caught:
        gf.load(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_a_directory_that_exists_is_not_written_over(folder: Path, model: Any):
    with pytest.raises(UserError, match="exists already"):
        hf.save(folder, model)


@pytest.mark.parametrize(
    "files, kind, around",
    [
        ({"vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n"}, "encoder", ((2,), (3,))),
        ({"vocab.json": '{"a": 0, "b": 1, "<|endoftext|>": 2}', "merges.txt": ""}, "decoder", ((), ())),
        ({"vocab.json": '{"<s>": 0, "</s>": 1, "a": 2}', "merges.txt": ""}, "encoder-decoder", ((0,), (1,))),
        ({"vocab.json": '{"<s>": 0, "</s>": 1, "a": 2}', "merges.txt": ""}, "encoder", ((0,), (1,))),
    ],
)
def test_what_stands_around_a_text_follows_the_kind_of_tokenizer(
    tmp_path: Path, files: dict[str, str], kind: str, around: tuple[Any, Any]
):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    framing = hf.read_framing(tmp_path, {}, hf.read_tokenizer(tmp_path), kind)
    assert (framing.before, framing.after) == around


@pytest.mark.parametrize(
    "kind, told, around",
    [
        ("decoder", {}, ((1,), ())),
        ("decoder", {"add_bos_token": False}, ((), ())),
        ("encoder-decoder", {}, ((), (2,))),
        ("decoder", {"add_eos_token": True}, ((1,), (2,))),
    ],
)
def test_what_stands_around_a_text_of_sentencepiece(
    shared: Path, tmp_path: Path, kind: str, told: dict[str, bool], around: tuple[Any, Any]
):
    model = shared / "data/checkpoints/tokenizers/torchtune/m.model"
    (tmp_path / "tokenizer.model").write_bytes(model.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    framing = hf.read_framing(tmp_path, {}, hf.read_tokenizer(tmp_path), kind)
    assert (framing.before, framing.after) == around

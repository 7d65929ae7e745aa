"""A MODEL directory: what is saved comes back, and whatever is wrong with it is told in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from glassformer.errors import UserError
from glassformer.header import unwritable_ids
from glassformer.store import (
    Translation,
    atomic_directory,
    load_model,
    recover_directories,
    save_model,
)
from glassformer.text.tokenizer import Tokenizer
from tests.randomised import random_model

BOTH = Translation(source="zh", target="en", both_directions=True)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["一二三 one two three"] * 4, vocab_size=280, languages=("zh", "en"))


@pytest.fixture(scope="module")
def model(tokenizer):
    return random_model(vocab_size=tokenizer.vocab_size + 3)


@pytest.fixture
def saved(tmp_path, model, tokenizer) -> Path:
    save_model(tmp_path / "model", model, tokenizer, BOTH)
    return tmp_path / "model"


def test_a_model_comes_back_bit_for_bit(saved, model, tokenizer):
    loaded = load_model(saved)
    assert loaded.translation == BOTH and loaded.tokenizer.hash == tokenizer.hash
    assert loaded.model.config == model.config and not loaded.model.training
    assert loaded.model.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.model.state_dict().items())


def test_half_precision_is_stored_in_half_the_space_and_read_as_float32(saved, model, tokenizer):
    save_model(saved.parent / "half", model, tokenizer, dtype=torch.float16)
    stored = load_file(saved.parent / "half" / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float16}
    for name, value in load_model(saved.parent / "half").model.state_dict().items():
        assert value.dtype == torch.float32 and torch.equal(value, model.state_dict()[name].half().float())


@pytest.mark.parametrize("tie", [True, False])
def test_a_tied_matrix_is_stored_once_and_untied_ones_stay_apart(tmp_path, tokenizer, tie):
    model = random_model(vocab_size=tokenizer.vocab_size, tie=tie)
    save_model(tmp_path / "m", model, tokenizer)
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert sum(value.numel() for value in stored.values()) == model.num_parameters()
    assert ("head.weight" in stored) == (not tie)
    loaded = load_model(tmp_path / "m").model
    assert loaded.num_parameters() == model.num_parameters()
    if not tie:
        assert not torch.equal(loaded.head.weight, loaded.embed.weight)


def edit_config(saved: Path, **values) -> None:
    file = saved / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def edit_weights(saved: Path, edit) -> None:
    weights = load_file(saved / "model.safetensors")
    edit(weights)
    save_file(weights, saved / "model.safetensors")


def other_tokenizer(saved: Path) -> None:
    # The same pieces under other ids: the size is right, the meaning is not.
    Tokenizer.train(["一二三 one two three"] * 4, vocab_size=280, languages=("en", "zh")).save(saved)


def flip_length(saved: Path) -> None:
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


MISTAKES = {
    "no config": (lambda d: (d / "config.json").unlink(), "no config.json"),
    "config not JSON": (lambda d: (d / "config.json").write_text("{"), "config.json: not valid JSON"),
    "no version": (lambda d: (d / "config.json").write_text("{}"), "no format_version, but .* reads version 1"),
    "config a list": (lambda d: (d / "config.json").write_text("[]"), "no format_version"),
    "newer version": (lambda d: edit_config(d, format_version=99), "format version 99, but .* reads version 1"),
    "unknown key": (lambda d: edit_config(d, translatoin=None), "translatoin'; did you mean 'translation'"),
    "another tokenizer": (other_tokenizer, "not the one this model was trained with"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "tokenizer"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "no model.safetensors"),
    "cut weights": (flip_length, "model.safetensors: damaged"),
    "empty weights": (lambda d: (d / "model.safetensors").write_bytes(b""), "model.safetensors: damaged"),
    "one missing": (lambda d: edit_weights(d, lambda w: w.pop("embed.weight")), "lacks embed.weight and has nothing"),
    "one too many": (
        lambda d: edit_weights(d, lambda w: w.update(extra=torch.zeros(1))),
        "lacks nothing and has extra left over",
    ),
    "wrong shape": (
        lambda d: edit_weights(d, lambda w: w.update({"embed.weight": torch.zeros(2, 3)})),
        r"embed.weight has shape \[2, 3\], but config.json says",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_wrong_with_a_directory_is_told_in_one_line(saved, mistake):
    spoil, message = MISTAKES[mistake]
    spoil(saved)
    with pytest.raises(UserError, match=message) as caught:
        load_model(saved)
    assert "\n" not in str(caught.value) and str(saved) in str(caught.value)


def test_saving_replaces_a_model_and_nothing_else(saved, model, tokenizer):
    other = random_model(vocab_size=tokenizer.vocab_size, seed=5)
    save_model(saved, other, tokenizer)
    assert torch.equal(load_model(saved).model.embed.weight, other.embed.weight)
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds notes.txt, which saving a model here would delete"):
        save_model(saved, model, tokenizer)
    with pytest.raises(UserError, match="a file, but a model is saved as a directory"):
        save_model(saved / "notes.txt", model, tokenizer)
    assert (saved / "notes.txt").read_text() == "mine"
    assert os.listdir(saved.parent) == ["model"]


def test_a_block_that_fails_leaves_the_old_directory_as_it_was(tmp_path):
    path = tmp_path / "d"
    with atomic_directory(path) as scratch:
        (scratch / "a").write_text("old")
    with pytest.raises(ValueError), atomic_directory(path) as scratch:
        (scratch / "a").write_text("half of the n")
        raise ValueError
    assert (path / "a").read_text() == "old" and os.listdir(tmp_path) == ["d"]


@pytest.mark.parametrize("fatal", [1, 2])
def test_a_rename_that_fails_leaves_the_old_directory_as_it_was(tmp_path, monkeypatch, fatal):
    path, rename, calls = tmp_path / "d", os.replace, []
    path.mkdir()
    (path / "a").write_text("old")

    def failing(source, target):
        calls.append(source)
        if len(calls) == fatal:
            raise OSError("the disk is gone")
        rename(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError), atomic_directory(path) as scratch:
        (scratch / "a").write_text("new")
    assert (path / "a").read_text() == "old" and os.listdir(tmp_path) == ["d"]


def test_what_a_kill_between_two_renames_hid_is_put_back(tmp_path):
    for name, content in {".best.7.old": "best", ".step-4.7.old": "stale", "step-4": "new", ".last.7.tmp": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(content)
    recover_directories(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["best", "step-4"]
    assert (tmp_path / "best" / "a").read_text() == "best" and (tmp_path / "step-4" / "a").read_text() == "new"


def test_a_full_disk_keeps_its_number(tmp_path, monkeypatch, model, tokenizer):
    from safetensors import SafetensorError

    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("glassformer.store.save_file", full)
    with pytest.raises(OSError) as caught:
        save_model(tmp_path / "m", model, tokenizer)
    assert caught.value.errno == 28 and "model.safetensors" in caught.value.filename
    assert os.listdir(tmp_path) == []


def test_ids_that_no_translation_holds(tokenizer):
    ids = set(unwritable_ids(tokenizer, tokenizer.vocab_size + 2))
    size = tokenizer.vocab_size
    assert ids == {0, 1, 3, *tokenizer.language_ids.values(), size, size + 1}
    assert tokenizer.eos_id not in ids


def test_a_source_is_tagged_only_where_the_goal_is_not_known(tokenizer):
    assert BOTH.tag("en", tokenizer) == [tokenizer.language_ids["en"]]
    assert Translation(source="zh", target="en").tag("en", tokenizer) == []

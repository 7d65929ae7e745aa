"""Averaging checkpoints: the mean, and nothing else changed."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
from safetensors.torch import load_file

from glassformer.cli.main import main
from glassformer.errors import UserError
from glassformer.store import Translation, load_model, save_model
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.average import average
from tests.randomised import random_model

TEXT = ["一二三 one two three"] * 4


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXT, vocab_size=280)


def save(path, tokenizer, seed=0, dtype=torch.float32, translation=None, **overrides):
    save_model(path, random_model(vocab_size=285, seed=seed, **overrides), tokenizer, translation, dtype)
    return path


@pytest.mark.parametrize("copies", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_averaging_copies_is_the_identity_bit_for_bit(tmp_path, tokenizer, copies, dtype):
    one = save(tmp_path / "one", tokenizer, dtype=dtype)
    average([one] * copies, tmp_path / "mean")
    assert sorted(os.listdir(one)) == sorted(os.listdir(tmp_path / "mean"))
    assert all((one / f).read_bytes() == (tmp_path / "mean" / f).read_bytes() for f in os.listdir(one))


def test_the_mean_of_different_checkpoints(tmp_path, tokenizer):
    paths = [save(tmp_path / str(seed), tokenizer, seed=seed) for seed in range(3)]
    assert main(["average", *map(str, paths), "-o", str(tmp_path / "mean")]) == 0
    stored = [load_file(path / "model.safetensors") for path in paths]
    mean = load_model(tmp_path / "mean").model
    assert "head.weight" not in mean.state_dict()  # tied, as they were
    for name, value in mean.state_dict().items():
        expected = sum(weights[name].double() for weights in stored) / 3
        assert torch.equal(value, expected.float())


def test_checkpoints_of_different_runs_are_refused_by_name(tmp_path, tokenizer):
    one = save(tmp_path / "one", tokenizer)
    others = {
        "config": save(tmp_path / "wide", tokenizer, d_ff=16),
        "tokenizer": save(tmp_path / "words", Tokenizer.train([*TEXT, "四四"], vocab_size=280)),
        "translation": save(tmp_path / "way", tokenizer, translation=Translation(source="zh", target="en")),
        "store": save(tmp_path / "half", tokenizer, dtype=torch.float16),
    }
    for what, other in others.items():
        with pytest.raises(UserError, match=what) as caught:
            average([one, other], tmp_path / "mean")
        assert str(one) in str(caught.value) and str(other) in str(caught.value)
    assert not (tmp_path / "mean").exists()


def test_a_whole_run_is_never_replaced(tmp_path, tokenizer, capsys):
    one = save(tmp_path / "run" / "step-1", tokenizer)
    shutil.copytree(one, tmp_path / "run" / "step-2")
    assert main(["average", str(one), str(tmp_path / "run" / "step-2"), "-o", str(tmp_path / "run")]) == 2
    assert "step-1, which saving a model here would delete" in capsys.readouterr().err
    assert main(["average", str(tmp_path / "run"), "-o", str(tmp_path / "mean")]) == 2
    assert "not a model directory" in capsys.readouterr().err

"""Vectors of texts: what they are pooled from, their order and their independence of one another."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer as gf
from glassformer.config import ModelConfig
from glassformer.embedder import Embedder, Settings
from glassformer.engines.model import ModelEngine
from glassformer.errors import UserError
from glassformer.header import Framing
from glassformer.text.tokenizer import Tokenizer
from tests.randomised import randomise

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs", "run", "by", "我", "爱", "你"]
MAX_LEN = 24


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS)] * 3, vocab_size=400)


def embedder(tokenizer: Tokenizer, settings: Settings | None = None, **overrides: Any) -> Embedder:
    model = gf.build("roberta-tiny", vocab_size=tokenizer.vocab_size, max_len=MAX_LEN, **overrides)
    randomise(model, 3)
    return Embedder(ModelEngine(model), tokenizer, Framing.of(tokenizer, "encoder"), settings)


def texts(n: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(8))) for _ in range(n)]


@torch.no_grad()
def alone(embedder: Embedder, text: str, pooling: str, normalise: bool) -> np.ndarray:
    """The vector of one text, by the definition."""
    ids = [1, *embedder.tokenizer.encode(text), 2]
    (hidden_TD,) = embedder.model.hidden(torch.tensor([ids])).numpy().astype(np.float64)
    vector = {"mean": sum(hidden_TD) / len(ids), "cls": hidden_TD[0], "last": hidden_TD[-1]}[pooling]
    return vector / np.sqrt((vector**2).sum()) if normalise else vector


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalise", [True, False])
def test_a_vector_is_what_pooling_says_whatever_stands_beside_its_text(
    tokenizer: Tokenizer, pooling: str, normalise: bool
) -> None:
    maker, some = embedder(tokenizer), ["", "   ", *texts(20)]
    expected = np.stack([alone(maker, text, pooling, normalise) for text in some])
    for batch_size in (1, 3, 100):
        found = maker.embed(some, pooling=pooling, normalise=normalise, batch_size=batch_size)
        assert found.dtype == np.float32 and found.shape == (22, 32)
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 if normalise else 1e-5)
    order = random.Random(1).sample(range(22), 22)
    shuffled = maker.embed([some[i] for i in order], pooling=pooling, normalise=normalise)
    np.testing.assert_allclose(shuffled, found[order], rtol=0, atol=3e-6 if normalise else 1e-5)


def test_one_text_gives_one_vector_and_none_give_none(tokenizer: Tokenizer) -> None:
    maker = embedder(tokenizer)
    assert maker.embed("the cat").shape == (32,)
    assert maker.embed([]).shape == (0, 32)
    np.testing.assert_array_equal(maker.embed("the cat"), maker.embed(["the cat"])[0])


def test_records_come_one_by_one_in_order_and_lose_no_text(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.embedder.READ_AHEAD", 3)
    maker, some = embedder(tokenizer), texts(8)
    records = list(maker.records(iter(some)))
    assert [record["text"] for record in records] == some
    np.testing.assert_allclose([record["embedding"] for record in records], maker.embed(some), atol=1e-6)


def test_a_long_text_is_cut_with_a_note_and_a_warning(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    maker, long = embedder(tokenizer), "the cat " * 40
    ids = tokenizer.encode(long)
    assert len(ids) > MAX_LEN
    with caplog.at_level(logging.WARNING):
        records = list(maker.records(["a", long, "b", long]))
    assert [record["truncated"] for record in records] == [False, True, False, True]
    assert caplog.messages == [f"text 2 and 1 more: cut to the model's limit of {MAX_LEN} tokens"]
    with torch.no_grad():
        hidden = maker.model.hidden(torch.tensor([[1, *ids[: MAX_LEN - 2], 2]])).mean(1)
    np.testing.assert_allclose(records[1]["embedding"], torch.nn.functional.normalize(hidden)[0], atol=1e-6)


def test_what_cannot_be_embedded_is_told_in_one_line(tokenizer: Tokenizer) -> None:
    maker = embedder(tokenizer)
    for options, told in (
        (dict(pooling="max"), "--pooling max: must be one of mean, cls, last"),
        (dict(batch_size=0), "--batch-size 0: must be 1 or more"),
    ):
        with pytest.raises(UserError, match=told):
            maker.embed(["a"], **options)
    with pytest.raises(UserError, match="text 2: expected a string, got int"):
        maker.embed(["a", 3])  # type: ignore[list-item]
    with pytest.raises(UserError, match=r"no tokenizer.*tokenizer.json"):
        Embedder(maker.engine, None).embed(["a"])


def test_a_text_without_any_token_has_no_direction() -> None:
    tokenizer = Tokenizer.train(["a b"], vocab_size=300)
    maker = embedder(tokenizer)
    bare = Embedder(maker.engine, tokenizer, Framing())
    found = bare.embed(["", "a"])
    assert not found[0].any() and found[1].any()


def test_a_pooling_head_says_how_vectors_are_made(tokenizer: Tokenizer) -> None:
    maker = embedder(tokenizer, head=dict(type="pool", pool="first", normalise=False))
    assert maker.settings == Settings("cls", False)
    np.testing.assert_allclose(maker.embed("the cat"), alone(maker, "the cat", "cls", False), atol=1e-5)
    with torch.no_grad():
        head = maker.model(torch.tensor([[1, *tokenizer.encode("the cat"), 2]]))
    np.testing.assert_allclose(maker.embed("the cat"), head[0], atol=1e-6)


def sentence_transformer(folder: Path, modes: dict[str, bool], *more: str) -> Path:
    (folder / "1_Pooling").mkdir(parents=True)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *((f"2_{kind}", kind) for kind in more)]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 7}))
    return folder


def test_a_sentence_transformer_says_how_vectors_are_made(tmp_path: Path) -> None:
    mean, cls = "pooling_mode_mean_tokens", "pooling_mode_cls_token"
    assert Settings.read(tmp_path) is None
    assert Settings.read(sentence_transformer(tmp_path / "a", {mean: True, cls: False}, "Normalize")) == Settings(
        "mean", True, 7
    )
    assert Settings.read(sentence_transformer(tmp_path / "b", {mean: False, cls: True})) == Settings("cls", False, 7)
    for folder, told in (
        (sentence_transformer(tmp_path / "c", {mean: True, cls: True}), "and pooling_mode_cls_token cannot be"),
        (sentence_transformer(tmp_path / "d", {mean: True}, "Dense"), "type Dense cannot be"),
    ):
        with pytest.raises(UserError, match=told):
            Settings.read(folder)
    (tmp_path / "a/1_Pooling/config.json").unlink()
    with pytest.raises(UserError, match=r"config.json: missing"):
        Settings.read(tmp_path / "a")


def test_an_encoder_of_ours_is_saved_and_loaded_as_an_embedder(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from glassformer.store import save_model

    maker = embedder(tokenizer)
    save_model(tmp_path / "model", maker.model, tokenizer)
    again = gf.load(tmp_path / "model")
    assert isinstance(again, Embedder) and isinstance(again.model.config, ModelConfig)
    np.testing.assert_array_equal(again.embed(texts(5)), maker.embed(texts(5)))

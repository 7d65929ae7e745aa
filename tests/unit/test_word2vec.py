"""Word vectors as initial embeddings, from both forms that word2vec writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import glassformer as gf
from glassformer.cli.main import main
from glassformer.errors import UserError
from glassformer.interop import word2vec
from glassformer.text.vocabulary import listed

WORDS = ["</s>", "cat", "Dog", "我", "absent"]


def write(file: Path, vectors: np.ndarray, binary: bool) -> Path:
    head = f"{len(vectors)} {vectors.shape[1]}\n".encode()
    if binary:
        rows = [
            word.encode() + b" " + row.astype("<f4").tobytes() + b"\n" for word, row in zip(WORDS, vectors, strict=True)
        ]
    else:
        rows = [f"{word} {' '.join(map(str, row))} \n".encode() for word, row in zip(WORDS, vectors, strict=True)]
    file.write_bytes(head + b"".join(rows))
    return file


@pytest.mark.parametrize("binary", [False, True])
def test_pieces_get_the_vectors_of_the_words_they_spell(tmp_path: Path, binary: bool) -> None:
    vectors = np.random.default_rng(1).normal(size=(5, 32)).astype(np.float32)
    file = write(tmp_path / "vectors", vectors, binary)
    assert [word for word, _ in word2vec.read(file)] == WORDS
    for (_, read), row in zip(word2vec.read(file), vectors, strict=True):
        np.testing.assert_allclose(read, row, rtol=1e-6)
    tokenizer = listed(["<unk>", "▁cat", "dog", "cow", "我", "cat"])
    model = gf.build("transformer-tiny", vocab_size=6)
    before = model.embed.weight.detach().clone()
    assert str(word2vec.initialise_(model, tokenizer, file)) == "4 of 6 pieces have a word vector"
    after = model.embed.weight.detach()
    torch.testing.assert_close(after[[0, 3]], before[[0, 3]], rtol=0, atol=0)
    expected = torch.from_numpy(vectors[[1, 2, 3, 1]])
    ratio = after[[1, 2, 4, 5]] / expected
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio))
    torch.testing.assert_close(after[[1, 2, 4, 5]].norm(dim=1).mean(), before[[1, 2, 4, 5]].norm(dim=1).mean())


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    file = write(tmp_path / "vectors", np.ones((5, 4), np.float32), True)
    tokenizer, model = listed(["<unk>", "cat"]), gf.build("transformer-tiny", vocab_size=2)
    with pytest.raises(UserError, match="vectors of 4 numbers, but the model has d_model 32"):
        word2vec.initialise_(model, tokenizer, file)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match="truncated: 4 of 5"):
        list(word2vec.read(file))
    file.write_bytes(b"no header\ncat 1 2\n")
    with pytest.raises(UserError, match=":1: expected two numbers"):
        list(word2vec.read(file))
    file.write_bytes(b"2 2\ncat 1 2\ndog 1 x\n")
    with pytest.raises(UserError, match=":3: expected a word and 2 numbers"):
        list(word2vec.read(file))


def training(folder: Path, **model: str) -> Path:
    (folder / "text.txt").write_text("the cat and the dog\n" * 20)
    lines = [f"  {key}: {value}" for key, value in {"preset": "gpt2-tiny", **model}.items()]
    data = f"data: {{train: {folder / 'text.txt'}, document: line}}"
    train = f"train: {{output: {folder / 'run'}, steps: 1, warmup: 0, lr: 1.0e-12, workers: 1, precision: fp32}}"
    config = folder / "config.yaml"
    config.write_text("\n".join(["model:", *lines, "tokenizer: {vocab_size: 300}", data, train]) + "\n")
    return config


def test_a_config_names_the_vectors_that_tokens_begin_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = np.random.default_rng(1).normal(size=(5, 32)).astype(np.float32)
    file = write(tmp_path / "words.vec", vectors, False)
    assert main(["train", str(training(tmp_path, embeddings=str(file)))]) == 0
    assert f"{file}: 4 of " in capsys.readouterr().err  # </s>, dog and ▁dog, ▁cat
    opened = gf.load(tmp_path / "run/last")
    row = opened.model.embed.weight[opened.tokenizer.token_to_id("▁cat")].detach().numpy()
    assert np.dot(row, vectors[1]) / np.linalg.norm(row) / np.linalg.norm(vectors[1]) == pytest.approx(1, abs=1e-5)
    file.unlink()  # what is trained needs it no more
    assert main(["train", str(training(tmp_path, embeddings=str(file))), "--resume"]) == 0


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"embedings": "words.vec"}, "model.embedings: unknown; did you mean 'embeddings'?"),
        ({"embeddings": "none.vec"}, "none.vec: cannot be read"),
        (
            {"embeddings": "words.vec", "d_model": "16"},
            "vectors of 32 numbers, but the model has d_model 16; set d_model",
        ),
        ({"embeddings": "7"}, "expected the path of a file"),
        ({"preset": "vit-tiny", "embeddings": "words.vec"}, "the model reads images"),
    ],
)
def test_vectors_that_do_not_fit_are_told_before_the_text_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: dict, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "words.vec", np.ones((5, 32), np.float32), True)
    config = training(tmp_path, **model)
    if "did you" not in says and "expected" not in says:
        (tmp_path / "text.txt").write_bytes(b"\xff")  # whoever reads it complains
    assert main(["train", str(config)]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1, err

"""Word vectors as initial embeddings, from both forms that word2vec writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import glassformer as gf
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

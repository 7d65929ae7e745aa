"""Labels of texts, pairs and images: what they are read from, their order and their independence of one another."""

from __future__ import annotations

import gzip
import json
import random
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import processors as post

import glassformer as gf
from glassformer.classifier import Classifier
from glassformer.cli.main import main
from glassformer.data.images import read_csv, read_idx, read_image
from glassformer.engines.model import ModelEngine
from glassformer.errors import UserError
from glassformer.header import Framing
from glassformer.store import save_model
from glassformer.text.pairs import encode_pair
from glassformer.text.tokenizer import Tokenizer
from tests.randomised import randomise

WORDS = ["the", "cat", "sat", "on", "a", "mat", "two", "dogs", "我", "爱", "你"]
LABELS = ["good", "bad", "neither"]
MAX_LEN = 24


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS)] * 3, vocab_size=400)


def reader(tokenizer: Tokenizer, labels: list[str] | None = None, **overrides: Any) -> Classifier:
    head = dict(type="classifier", labels=labels or LABELS, hidden="tanh")
    sizes = dict(d_model=16, n_heads=2, d_ff=16, n_layers=2, max_len=MAX_LEN, vocab_size=tokenizer.vocab_size)
    model = randomise(gf.build("bert-tiny", head=head, **{**sizes, **overrides}), 4).eval()
    return Classifier(ModelEngine(model), tokenizer, Framing.of(tokenizer, "encoder"))


def viewer(**overrides: Any) -> Classifier:
    model = randomise(gf.build("vit-tiny", **{"labels": LABELS, "channels": 3, **overrides}), 5).eval()
    return Classifier(ModelEngine(model))


def texts(n: int) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(8))) for _ in range(n)]


def check(record: Any, logits: torch.Tensor, labels: list[str] = LABELS) -> None:
    expected = dict(zip(labels, logits.double().softmax(-1).tolist(), strict=True))
    assert record["probabilities"] == pytest.approx(expected, abs=1e-5)
    assert list(record["probabilities"]) == sorted(expected, key=expected.__getitem__, reverse=True)
    assert record["label"] == max(expected, key=expected.__getitem__)
    assert record["probability"] == record["probabilities"][record["label"]]


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@torch.no_grad()
def test_texts_and_pairs_get_the_labels_that_each_would_get_alone(tokenizer: Tokenizer, batch_size: int) -> None:
    classifier, some = reader(tokenizer), texts(12)
    inputs: list[Any] = [*some, *zip(some, reversed(some), strict=True), ""]
    records = classifier.classify(inputs, batch_size=batch_size)
    for given, record in zip(inputs, records, strict=True):
        if isinstance(given, tuple):
            first, second = (tokenizer.encode(text) for text in given)
            row, types = [1, *first, 2, *second, 2], [0] * (len(first) + 2) + [1] * (len(second) + 1)
        else:
            row = [1, *tokenizer.encode(given), 2]
            types = [0] * len(row)
        check(record, classifier.model(torch.tensor([row]), None, torch.tensor([types]))[0])
        assert record["truncated"] is False
    check(classifier.classify(some[0]), classifier.model(torch.tensor([[1, *tokenizer.encode(some[0]), 2]]))[0])


@torch.no_grad()
def test_long_texts_and_pairs_are_cut_and_say_so(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    classifier, long = reader(tokenizer), "the cat " * 40
    records = classifier.classify(["a", long, (long, "a cat"), ("a", long)])
    assert [record["truncated"] for record in records] == [False, True, True, True]
    assert caplog.messages == [f"text 2 and 2 more: cut to the model's limit of {MAX_LEN} tokens"]
    ids = tokenizer.encode(long)
    check(records[1], classifier.model(torch.tensor([[1, *ids[: MAX_LEN - 2], 2]]))[0])
    short = tokenizer.encode("a cat")
    row = [1, *ids[: MAX_LEN - 3 - len(short)], 2, *short, 2]
    types = [0] * (MAX_LEN - 1 - len(short)) + [1] * (len(short) + 1)
    check(records[2], classifier.model(torch.tensor([row]), None, torch.tensor([types]))[0])


@torch.no_grad()
def test_a_single_label_gets_its_sigmoid_and_a_model_of_one_segment_reads_pairs(tokenizer: Tokenizer) -> None:
    classifier = reader(tokenizer, ["relevant"], token_types=1)
    row = [1, *tokenizer.encode("the cat"), 2, *tokenizer.encode("sat"), 2]
    expected = classifier.model(torch.tensor([row]))[0, 0].sigmoid().item()
    record = classifier.classify(("the cat", "sat"))
    assert record["label"] == "relevant" and record["probability"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_pairs_stand_as_the_tokenizers_own_file_says(name: str, tmp_path: Path) -> None:
    """RoBERTa puts two `</s>` between them, and has one segment."""
    backend = Tokenizer.train([" ".join(WORDS)] * 3, vocab_size=400).backend
    sep, cls = ("</s>", 2), ("<s>", 1)
    kinds = {"bert": post.BertProcessing(sep, cls), "roberta": post.RobertaProcessing(sep, cls)}
    backend.post_processor = kinds[name]
    tokenizer = Tokenizer(backend)
    for first, second in [("the cat", "sat on a mat"), ("我", "爱"), ("a", "a")]:
        expected = backend.encode(first, second, add_special_tokens=True)
        row = encode_pair(tokenizer, first, second)
        assert (row.ids, row.types, row.cut) == (expected.ids, expected.type_ids, False)
        for limit in range(4 + (name == "roberta"), len(expected.ids)):
            cut = encode_pair(tokenizer, first, second, limit)
            assert len(cut.ids) == limit and cut.cut
    with pytest.raises(UserError, match="does not fit into 2 tokens"):
        encode_pair(tokenizer, "a", "b", 2)


def picture(path: Path, size: tuple[int, int] = (28, 28), mode: str = "RGB", seed: int = 0) -> Path:
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels, mode).save(path)
    return path


@pytest.mark.parametrize("overrides", [{}, dict(mean=[0.1, 0.2, 0.3], deviation=[0.5, 0.6, 0.7])])
@torch.no_grad()
def test_images_are_scaled_and_labelled_each_as_if_it_were_alone(tmp_path: Path, overrides: dict[str, Any]) -> None:
    classifier = viewer(**overrides)
    paths = [picture(tmp_path / f"{index}.png", seed=index) for index in range(5)]
    mean, deviation = (torch.tensor(overrides.get(key, [0.5] * 3))[:, None, None] for key in ("mean", "deviation"))
    for batch_size in (1, 2, 100):
        for path, record in zip(paths, classifier.classify(paths, batch_size=batch_size), strict=True):
            pixels = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) / 255
            check(record, classifier.model(((pixels - mean) / deviation)[None])[0])


def test_images_of_any_size_and_mode_are_read_as_theirs_reads_them(tmp_path: Path) -> None:
    scale = transformers.ViTImageProcessor(size=dict(height=16, width=24), do_normalize=False, use_fast=False)
    for mode, size in (("RGB", (50, 31)), ("L", (10, 40)), ("RGBA", (24, 16))):
        path = picture(tmp_path / f"{mode}.png", size, mode)
        expected = scale(Image.open(path).convert("RGB"), return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(read_image(path, 3, (16, 24)), expected, atol=1e-6)
    grey = read_image(tmp_path / "L.png", 1)
    np.testing.assert_array_equal(grey[0] * 255, np.array(Image.open(tmp_path / "L.png")))


def bad_images(folder: Path) -> list[Path]:
    good = picture(folder / "good.png", (64, 64)).read_bytes()
    files = {"text.png": b"not an image", "empty.png": b"", "cut.png": good[: len(good) // 2], "head.png": good[:20]}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [*(folder / name for name in files), folder / "absent.png", folder]


def test_what_is_no_image_is_told_in_one_line_and_loses_no_other(tmp_path: Path) -> None:
    classifier, good = viewer(), picture(tmp_path / "a.png")
    for bad in bad_images(tmp_path):
        with pytest.raises(UserError) as error:
            classifier.classify([good, bad])
        assert str(bad) in str(error.value) and "\n" not in str(error.value)
        first, failure, last = classifier.records([good, bad, good])
        assert str(bad) in failure["error"] and first == last
        assert first["probabilities"] == pytest.approx(classifier.classify(good)["probabilities"], abs=1e-6)


def test_idx_files_are_read_and_damaged_ones_are_told(tmp_path: Path) -> None:
    array = np.arange(24, dtype=">i4").reshape(2, 3, 4)
    data = bytes([0, 0, 12, 3]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    (tmp_path / "a.idx").write_bytes(data)
    np.testing.assert_array_equal(read_idx(tmp_path / "a.idx"), array)
    for bad in (data[:-1], data[:6], b"", b"\x1f\x8bxx", b"hello world"):
        (tmp_path / "bad").write_bytes(bad)
        with pytest.raises(UserError, match="bad: not a"):
            read_idx(tmp_path / "bad")


@pytest.mark.parametrize("named", [True, False])
def test_a_csv_of_digits_is_read_and_a_damaged_one_is_told(tmp_path: Path, named: bool) -> None:
    pixels, labels = np.random.default_rng(0).integers(0, 17, (5, 9)), ["3", "1", "4", "1", "5"]
    rows = [list(map(str, row)) for row in pixels]
    rows = [[label, *row] if named else [*row, label] for row, label in zip(rows, labels, strict=True)]
    lines = [*(["label," + ",".join(f"p{i}" for i in range(9))] if named else []), *map(",".join, rows)]
    for name, pack in (("a.csv", lambda data: data), ("a.csv.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack("\n".join(lines).encode()))
        images, told = read_csv(tmp_path / name)
        np.testing.assert_array_equal(images, pixels.reshape(5, 3, 3))
        assert told == labels
    for damaged, message in (
        ([*lines, "1,2"], r"bad:\d: 2 columns, but the first row has 10"),
        ([lines[0], lines[1].replace(",", ",x", 1)], "bad:2: could not convert"),
        ([line.partition(",")[2] if named else line.rpartition(",")[0] for line in lines], "bad"),
        ([], "0 pixels a row"),
    ):
        (tmp_path / "bad").write_text("\n".join(damaged))
        with pytest.raises(UserError, match=message):
            read_csv(tmp_path / "bad")


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any, stdin: str = "") -> tuple[int, Any, str]:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin.encode()), encoding="utf-8"))
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def test_the_command_labels_lines_of_text_and_pairs(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    classifier = reader(tokenizer)
    save_model(tmp_path / "model", classifier.model, tokenizer)
    command = ["classify", "-m", str(tmp_path / "model")]
    code, records, err = run(command, monkeypatch, capsys, "the cat\n\n我\t爱\n")
    assert (code, err) == (0, "") and [record["text"] for record in records] == ["the cat", "", "我\t爱"]
    for given, record in zip(["the cat", "", ("我", "爱")], records, strict=True):
        expected = classifier.classify(given)
        assert record["label"] == expected["label"]
        assert record["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
    code, records, _ = run([*command, "--top", "1", "a", "b"], monkeypatch, capsys)
    assert code == 0 and [len(record["probabilities"]) for record in records] == [1, 1]
    code, _, err = run(["embed", *command[1:], "a"], monkeypatch, capsys)
    assert code == 2 and "gives no vectors" in err and err.count("\n") == 1


def test_the_command_labels_images_and_goes_on_behind_what_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    classifier, good = viewer(), picture(tmp_path / "a.png")
    save_model(tmp_path / "model", classifier.model, None)
    command = ["classify", "-m", str(tmp_path / "model")]
    code, records, err = run(command, monkeypatch, capsys, f"{good}\n{tmp_path / 'absent'}\n{good}\n")
    assert code == 2 and [record["image"] for record in records] == [str(good), str(tmp_path / "absent"), str(good)]
    assert "error" in records[1] and records[0] == records[2] and records[0]["label"] in LABELS
    assert len(err.splitlines()) == 2 and "1 of 3 images could not be read" in err
    code, records, err = run([*command, "-i", str(good)], monkeypatch, capsys)
    assert (code, err) == (0, "") and records[0]["label"] in LABELS
    code, _, err = run([*command, "-i", str(tmp_path / "none")], monkeypatch, capsys)
    assert code == 2 and err.count("\n") == 1


def test_the_command_embeds_lines_in_order(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    model = randomise(gf.build("roberta-tiny", vocab_size=tokenizer.vocab_size, max_len=12), 1).eval()
    save_model(tmp_path / "model", model, tokenizer)
    embedder, lines = gf.load(tmp_path / "model"), ["the cat", "", "the " * 20]
    text = "".join(f"{line}\n" for line in lines)
    code, records, err = run(["embed", "-m", str(tmp_path / "model"), "--pooling", "cls"], monkeypatch, capsys, text)
    assert code == 0 and [record["text"] for record in records] == lines
    assert [record["truncated"] for record in records] == [False, False, True]
    np.testing.assert_array_equal([record["embedding"] for record in records], embedder.embed(lines, pooling="cls"))
    code, _, err = run(["classify", "-m", str(tmp_path / "model"), "a"], monkeypatch, capsys)
    assert code == 2 and "no labels" in err and err.count("\n") == 1

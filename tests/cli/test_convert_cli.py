"""`glassformer convert` and `gf.convert`: every target, what is refused, and that nothing half is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import glassformer as gf
from glassformer.cli import main as shell
from glassformer.header import Framing
from glassformer.interop import convert as converting
from glassformer.interop import hf
from glassformer.interop.sentence_transformers import Settings
from glassformer.store import save_model
from glassformer.text.vocabulary import listed
from tests.randomised import randomise


def complaint(capsys, *arguments: str) -> str:
    assert shell.main(["convert", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A Marian of Hugging Face's, written by us."""
    model = randomise(gf.build("marian-tiny", vocab_size=8), 4).eval()
    tokenizer = listed(["<pad>", "<unk>", "</s>", "a", "b", "c", "d", "e"])
    framing = Framing(after=(2,), start=0, ends=(2,), banned=(0,))
    hf.save(tmp_path / "theirs", model, tokenizer, framing)
    return tmp_path / "theirs"


def test_a_model_goes_from_format_to_format_and_says_the_same(theirs: Path, capsys, monkeypatch) -> None:
    folder, first = theirs.parent, gf.load(theirs)
    for source, to, ran in (
        ("theirs", "glassformer", "logits (3, 7, 8) of transformers and glassformer differ by at most"),
        ("glassformer", "ct2", "log-probabilities (3, 6) of glassformer and ctranslate2 differ by at most"),
        ("glassformer", "hf", "logits (3, 7, 8) of glassformer and transformers differ by at most"),
    ):
        assert shell.main(["convert", str(folder / source), str(folder / to), "--to", to]) == 0
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"{folder / to}: {ran}")
        again = gf.load(folder / to)
        answers = [each.translate(["abba", "c d"], beam_size=3, max_new_tokens=6) for each in (first, again)]
        assert answers[0] == answers[1]
    small = gf.convert(folder / "hf", folder / "int8", "ct2", quantization="int8")
    assert small.difference is not None and small.difference < 0.1
    monkeypatch.setattr(converting.importlib.util, "find_spec", lambda name: None)
    alone = gf.convert(folder / "hf", folder / "alone")
    assert "transformers is not installed" in str(alone) and alone.difference == 0
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_a_result_that_says_something_else_is_not_written(theirs: Path, monkeypatch, capsys) -> None:
    def spoilt(path, model, *rest, **options):
        with torch.no_grad():
            changed = gf.build(model.config)
            changed.load_state_dict(model.state_dict())
            changed.embed.weight.add_(0.1 * torch.randn_like(changed.embed.weight))
        save_model(path, changed, *rest, **options)

    monkeypatch.setattr(converting, "save_model", spoilt)
    assert "not written, since the result is another model" in complaint(capsys, theirs, theirs.parent / "out")
    assert [path.name for path in theirs.parent.iterdir()] == ["theirs"]


@pytest.mark.parametrize(("to", "package"), [("ct2", "ctranslate2"), ("onnx", "onnx")])
def test_what_has_to_be_installed_is_told(theirs: Path, capsys, monkeypatch, to: str, package: str) -> None:
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    assert "pip install 'glassformer[convert]'" in complaint(capsys, theirs, theirs.parent / "out", "--to", to)
    assert [path.name for path in theirs.parent.iterdir()] == ["theirs"]


def test_mistakes_are_one_line_and_leave_nothing(theirs: Path, tmp_path: Path, capsys) -> None:
    assert "--to onyx: expected one of glassformer, hf, ct2, onnx" in complaint(
        capsys, theirs, tmp_path / "o", "--to", "onyx"
    )
    assert "only --to ct2 has it" in complaint(capsys, theirs, tmp_path / "o", "--quantization", "int8")
    assert "expected one of float32" in complaint(
        capsys, theirs, tmp_path / "o", "--to", "ct2", "--quantization", "int3"
    )
    assert "exists already" in complaint(capsys, theirs, theirs)
    assert "no model" in complaint(capsys, tmp_path / "none", tmp_path / "o")
    assert "has no Hugging Face form" in complaint(capsys, "zh-en", tmp_path / "o", "--to", "hf")
    config = json.loads((theirs / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps({**config, "normalize_before": True}))
    assert "normalize_before True cannot be represented" in complaint(capsys, theirs, tmp_path / "o")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalise", [True, False])
def test_how_vectors_are_made_goes_along(tmp_path: Path, pooling: str, normalise: bool) -> None:
    model = randomise(gf.build("bert-tiny", d_model=16, n_heads=2, d_ff=16, vocab_size=8, max_len=32), 4).eval()
    tokenizer = listed(["<pad>", "<s>", "</s>", "<unk>", "a", "b", "c", "d"])
    hf.save(tmp_path / "theirs", model, tokenizer, Framing(before=(1,), after=(2,)))
    settings = Settings(pooling, normalise, 7)
    settings.write(tmp_path / "theirs", 16)
    # As sentence-transformers' own readers look for it.
    modules = json.loads((tmp_path / "theirs/modules.json").read_text())
    assert [each["type"].split(".")[-1] for each in modules] == ["Transformer", "Pooling", "Normalize"][: 2 + normalise]
    told = json.loads((tmp_path / "theirs/1_Pooling/config.json").read_text())
    assert [key for key, value in told.items() if value is True] == [
        {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}[pooling]
    ]
    first = gf.load(tmp_path / "theirs")
    texts = ["abba", "c d", "abcdabcdabcd"]
    for source, to in (("theirs", "glassformer"), ("glassformer", "hf")):
        gf.convert(tmp_path / source, tmp_path / to, to)
        assert Settings.read(tmp_path / to) == settings
        again = gf.load(tmp_path / to)
        assert again.limit == first.limit == 7
        torch.testing.assert_close(
            torch.tensor(again.embed(texts)), torch.tensor(first.embed(texts)), atol=1e-6, rtol=0
        )
    compared = gf.convert(tmp_path / "hf", tmp_path / "onnx", "onnx")
    assert "onnx does not keep how sentence-transformers pools" in str(compared)

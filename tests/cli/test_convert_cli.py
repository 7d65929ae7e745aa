"""`glassformer convert` and `gf.convert`: every target, what is refused, and that nothing half is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import glassformer as gf
from glassformer.cli import main as shell
from glassformer.header import Framing
from glassformer.interop import convert as converting
from glassformer.interop import hf
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

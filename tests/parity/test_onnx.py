"""ONNX graphs beside the module, under onnxruntime, at sizes other than those they were made with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import glassformer as gf
from glassformer.interop import onnx
from tests.randomised import ids, lengths_mask, randomise


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["t5-tiny", "bart-tiny", "llama-tiny", "bert-tiny"])
@torch.no_grad()
def test_a_graph_gives_the_logits_at_any_size(tmp_path: Path, preset: str) -> None:
    model = randomise(gf.build(preset), 1).eval()
    onnx.save(tmp_path / "out", model)
    for lengths, width in (([5], 3), ([9, 4, 1], 8), ([1], 1)):
        source, mask, target = ids(60, len(lengths), max(lengths)), lengths_mask(lengths), ids(60, len(lengths), width)
        seq2seq = model.config.kind == "encoder-decoder"
        given = [source, target, mask] if seq2seq else [source, mask]
        expected = model(*given)
        made = torch.from_numpy(onnx.run(tmp_path / "out", [each.numpy() for each in given]))
        real = slice(None) if seq2seq else mask
        torch.testing.assert_close(made[real], expected[real], rtol=1e-4, atol=1e-4)

"""The tokens of a question are global where attention has such, in training and in answering, as in `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import glassformer as gf
from glassformer.models.encoder import Encoder
from glassformer.store import save_model
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.config import load_config
from glassformer.train.objectives import build_objective
from tests.laws.test_objectives import run_config
from tests.randomised import ids, randomise

QUESTION, PASSAGE = "who sat on a mat ?", "the cat sat on a mat and two dogs saw the mat"
TOKENIZER = Tokenizer.train([QUESTION, PASSAGE] * 3, vocab_size=300)


def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What models are called with from now on."""
    calls: list[tuple[Any, ...]] = []
    forward = Encoder.forward
    monkeypatch.setattr(Encoder, "forward", lambda self, *args: calls.append(args) or forward(self, *args))
    return calls


@pytest.mark.parametrize("types", [0, 1, 2])
def test_an_answerer_tells_which_tokens_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: int) -> None:
    more = dict(vocab_size=TOKENIZER.vocab_size, head={"type": "span"}, token_types=types)
    save_model(tmp_path / "m", randomise(gf.build("longformer-tiny", **more)).eval(), TOKENIZER)
    answerer, calls = gf.load(tmp_path / "m", engine="model"), told(monkeypatch)
    found = answerer.classify([(QUESTION, PASSAGE), ("a mat ?", PASSAGE)], batch_size=2)
    ((ids_BT, _, types_BT, global_BT),) = calls
    asked = [1 + len(TOKENIZER.encode(text)) for text in ("a mat ?", QUESTION)]
    assert global_BT.sum(1).tolist() == asked and (types_BT is None) == (types == 0)
    for row, count in enumerate(asked):
        assert global_BT[row, :count].all() and ids_BT[row, count] == TOKENIZER.eos_id
    assert found[0] == answerer.answer(QUESTION, PASSAGE)


def test_training_tells_the_same(tmp_path: Path) -> None:
    config = run_config(tmp_path, "extractive-qa")
    for preset, inputs in (("longformer-tiny", 4), ("bert-tiny", 3)):
        sizes = dict(d_model=16, n_heads=2, d_ff=8, n_layers=1)
        objective = build_objective(load_config({**config, "model": {"preset": preset, **sizes}}), None)
        objective.prepare()
        batch = objective.batch(objective._examples, [0, 1])
        assert len(batch.inputs) == inputs
        if inputs == 4:
            assert (batch.inputs[3].sum(1) < batch.inputs[1].sum(1)).all() and batch.inputs[3][:, 0].all()


@torch.no_grad()
def test_what_theirs_makes_global_of_itself_gives_equal_logits(tmp_path: Path) -> None:
    sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    config = transformers.LongformerConfig(vocab_size=37, **sizes, attention_window=4, max_position_embeddings=70)
    model = randomise(transformers.LongformerForQuestionAnswering(config), 4).eval()
    model.save_pretrained(tmp_path)
    tokens = ids(30, 2, 40, seed=2) + 5
    tokens[:, 0] = 0
    tokens[:, [9, 10, 39]] = config.sep_token_id
    tokens[1, 9], tokens[1, 6] = 7, config.sep_token_id
    asked = torch.arange(40) < torch.tensor([[9], [6]])
    said, expected = gf.load(tmp_path).model(tokens, None, None, asked), model(tokens)
    both = torch.stack([expected.start_logits, expected.end_logits], -1)
    torch.testing.assert_close(said, both, rtol=1e-4, atol=1e-4)

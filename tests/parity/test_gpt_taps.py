"""minGPT's sorter: every intermediate of a real GPT, tap by tap."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import glassformer as gf
from glassformer.families import gpt2
from glassformer.models.build import build_model, model_of
from glassformer.weights import Transpose, import_weights

BLOCK = {
    "ln1": "mixer_residual.normed",
    "q": "mixer.q",
    "k": "mixer.k",
    "v": "mixer.v",
    "attSm": "mixer.pattern",
    "yProj": "mixer.result",
    "attnResid": "mixer_residual.sum",
    "ln2": "ffn_residual.normed",
    "fc": "ffn.pre",
    "gelu": "ffn.post",
    "mlp": "ffn.result",
    "mlpResid": "ffn_residual.sum",
}
TAPS = {
    "tok_emb": "decoder.embedded",
    "pos_emb": "decoder.positions",
    "x": "decoder.input",
    **{theirs: f"decoder.layers.0.{ours}" for theirs, ours in BLOCK.items()},
    **{f"block{index}": f"decoder.layers.{index}.ffn_residual.sum" for index in range(3)},
    "ln_f": "decoder.output",
    "lm_head": "head.logits",
}
"""Their names → ours."""


def tensor(data: dict[str, Any]) -> torch.Tensor:
    raw = np.frombuffer(base64.b64decode(data["data"]), np.dtype(data["dtype"].removeprefix("torch.")))
    return torch.from_numpy(raw.reshape(data["shape"]).copy())


@torch.no_grad()
def test_mingpt_gives_each_of_its_intermediates(shared: Path) -> None:
    folder = shared / "data/checkpoints/gpt-nano-llmviz"
    stored = json.loads((folder / "gpt-nano-sort-model.json").read_text())
    seen = json.loads((folder / "gpt-nano-sort-t0-partials.json").read_text())
    told = stored.pop("config")
    config = gpt2.gpt2(
        d_model=told["n_embd"],
        n_heads=told["n_head"],
        n_layers=told["n_layer"],
        vocab_size=told["vocab_size"],
        max_len=told["block_size"],
        tie=False,
    )
    # minGPT keeps matrices as nn.Linear does, GPT-2 as their transposes.
    rules = [replace(r, op=tuple(op for op in r.ops if not isinstance(op, Transpose))) for r in gpt2.rules(config)]
    expected = build_model(config, "meta", initialise=False).state_dict()
    weights = import_weights(rules, {name: tensor(data) for name, data in stored.items()}, expected)
    model = model_of(config, weights).eval()
    with gf.record(model) as trace:
        logits = model(tensor(seen["idx"]).long())
    for theirs, ours in TAPS.items():
        wanted = tensor(seen[theirs])
        torch.testing.assert_close(trace[ours], wanted.expand_as(trace[ours]), rtol=0, atol=1e-5, msg=theirs)
    z_BTD = trace["decoder.layers.0.mixer.z"].transpose(1, 2).flatten(2)
    torch.testing.assert_close(z_BTD, tensor(seen["y"]), rtol=0, atol=1e-5)
    torch.testing.assert_close(logits.softmax(-1), tensor(seen["probs"]), rtol=0, atol=1e-5)
    qkv = torch.cat([trace[f"decoder.layers.0.mixer.{n}"].transpose(1, 2).flatten(2) for n in "qkv"], -1)
    torch.testing.assert_close(qkv, tensor(seen["qkv"]), rtol=0, atol=1e-5)
    scores, below = trace["decoder.layers.0.mixer.scores"], torch.ones(11, 11).tril().bool()
    torch.testing.assert_close(scores[..., below], tensor(seen["att"])[..., below], rtol=0, atol=1e-5)

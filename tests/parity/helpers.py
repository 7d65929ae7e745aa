"""What every comparison with `transformers` does: in and out of its form, and how large a preset is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import glassformer as gf
from glassformer.families import FAMILIES
from glassformer.interop import hf
from glassformer.store import save_model
from tests.randomised import ids, lengths_mask

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCAB, LENGTHS = 37, [17, 12, 3]


@torch.no_grad()
def same_logits(ours: Any, model: Any, seed: int) -> None:
    """Ours and theirs say the same of a padded batch of random tokens, wherever it is not padding."""
    tokens, mask = ids(VOCAB, 3, max(LENGTHS), seed=seed), lengths_mask(LENGTHS)
    out = model(input_ids=tokens, attention_mask=mask.long())
    expected = out.logits if "logits" in out else out.last_hidden_state
    torch.testing.assert_close(ours(tokens, mask)[mask], expected[mask], rtol=1e-4, atol=1e-4)


def in_and_out(folder: Path, model: Any, seed: int, same: Callable[[Any, Any, int], None] = same_logits) -> Any:
    """Reads a model of theirs, writes it in their form and in ours, and compares each time; gives what they read back.

    Args:
        folder: An empty one.
        model: Theirs, in evaluation mode.
        seed: Of the batches.
        same: Compares one of ours with one of theirs on a batch of that seed.
    """
    model.save_pretrained(folder / "in")
    ours = gf.load(folder / "in").model
    same(ours, model, seed)
    hf.save(folder / "out", ours)
    again, told = type(model).from_pretrained(folder / "out", output_loading_info=True)
    assert not (told["missing_keys"] or told["unexpected_keys"] or told["mismatched_keys"])
    same(ours, again.eval(), seed + 1)
    save_model(folder / "model", ours, None)
    back = gf.load(folder / "model").model
    assert back.config == ours.config
    same(back, model, seed + 2)
    return again


def check_size(preset: str, parameters: int) -> None:
    """A preset has that many parameters, and so has their model of its exported config."""
    model = gf.build(preset, device="meta")
    assert model.num_parameters() == parameters
    (to_hf,) = (each.to_hf for each in FAMILIES if preset in each.presets)
    assert to_hf is not None
    data = to_hf(model.config)
    with torch.device("meta"):
        theirs = getattr(transformers, data["architectures"][0])(transformers.AutoConfig.for_model(**data))
    assert sum(parameter.numel() for parameter in theirs.parameters()) == parameters


@torch.no_grad()
def their_output(model: Any, **inputs: Any) -> dict[str, torch.Tensor]:
    """What a model of theirs says, whatever its head calls it, and what it pools, if it does."""
    out = model(**inputs)
    if "start_logits" in out:
        return {"output": torch.stack([out.start_logits, out.end_logits], -1)}
    found = {"output": out.logits if "logits" in out else out.last_hidden_state}
    return found | ({"pooled": out.pooler_output} if out.get("pooler_output") is not None else {})

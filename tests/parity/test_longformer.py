"""Longformer beside `transformers`: any window, length, global tokens and head, read and written."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import glassformer as gf
from glassformer.errors import UserError
from glassformer.families import family_of
from glassformer.interop import hf
from glassformer.weights import import_weights
from tests.parity.helpers import VOCAB, check_size, their_output
from tests.randomised import ids, lengths_mask, randomise

HEADS = ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]


def theirs(head: str, seed: int) -> Any:
    """A model of theirs of random sizes, whose every parameter is random."""
    rng = random.Random(f"{head} {seed}")
    n_heads, d_head = rng.choice([(1, 4), (2, 4), (3, 2)])
    layers = rng.randint(1, 3)
    windows: Any = [rng.choice([4, 8]) for _ in range(layers)]
    sizes: dict[str, Any] = dict(vocab_size=VOCAB, max_position_embeddings=70, hidden_size=n_heads * d_head)
    if head in HEADS[2:4]:
        sizes["num_labels"] = rng.randint(1, 4)
    if head == "ForMaskedLM":
        sizes["tie_word_embeddings"] = bool(seed % 2)
    config = transformers.LongformerConfig(
        **sizes,
        attention_window=windows if seed % 2 else windows[0],
        num_attention_heads=n_heads,
        num_hidden_layers=layers,
        intermediate_size=rng.choice([5, 8]),
        hidden_act=rng.choice(["gelu", "relu", "gelu_new", "silu"]),
        layer_norm_eps=rng.choice([1e-12, 1e-5, 1e-2]),
        type_vocab_size=rng.randint(1, 3),
    )
    return randomise(getattr(transformers, f"Longformer{head}")(config), rng.randrange(10**6)).eval()


@torch.no_grad()
def same(ours: Any, model: Any, seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randint(20, 60), rng.randint(1, 20), 1]
    # Their model takes the id of padding, 1, for padding wherever it stands.
    tokens, mask = ids(VOCAB - 2, 3, max(lengths), seed=seed) + 2, lengths_mask(lengths)
    tokens[~mask] = 1
    types = ids(model.config.type_vocab_size, *tokens.shape, seed=seed + 1)
    for density in (0.0, 0.1, 1.0):
        everywhere = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < density
        told = dict(attention_mask=mask.long(), token_type_ids=types, global_attention_mask=everywhere.long())
        expected = their_output(model, input_ids=tokens, **told)["output"]
        with gf.record(ours) as trace:
            traced = ours(tokens, mask, types, everywhere)
        out = ours(tokens, mask, types, everywhere)
        real = mask if expected.shape[:2] == mask.shape else slice(None)
        torch.testing.assert_close(out[real], expected[real], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(traced[real], expected[real], rtol=1e-4, atol=1e-4)
        pattern = trace["encoder.layers.0.mixer.pattern"]
        assert (pattern[~mask[:, None, None, :].expand_as(pattern)] == 0).all()
    if not isinstance(model, transformers.LongformerForQuestionAnswering):  # theirs looks for separators
        expected = their_output(model, input_ids=tokens, attention_mask=mask.long(), token_type_ids=types)["output"]
        torch.testing.assert_close(ours(tokens, mask, types)[real], expected[real], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("by_blocks", [False, True])
def test_any_model_of_theirs_comes_in_and_goes_out_with_equal_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, seed: int, by_blocks: bool
) -> None:
    if by_blocks:
        monkeypatch.setattr("glassformer.nn.blocks.pays", lambda *args: True)
        monkeypatch.setattr("glassformer.nn.blocks._size", lambda before, after: 5)
    model = theirs(head, seed)
    model.save_pretrained(tmp_path / "in")
    ours = gf.load(tmp_path / "in").model
    same(ours, model, seed)
    hf.save(tmp_path / "out", ours)
    again, told = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    # The id of a separate bias that nothing reads stands in no file of ours.
    assert {name for name in told["missing_keys"] if not name.endswith("lm_head.bias")} == set()
    assert not told["unexpected_keys"] and not told["mismatched_keys"]
    same(ours, again.eval(), seed + 1)


@torch.no_grad()
def test_a_text_of_thousands_of_tokens_is_equal_by_blocks() -> None:
    sizes = dict(vocab_size=VOCAB, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    config = transformers.LongformerConfig(**sizes, max_position_embeddings=2100, attention_window=[64, 32])
    model = randomise(transformers.LongformerModel(config), 3).eval()
    family = family_of("longformer")
    assert family is not None and family.from_hf is not None
    ours = gf.build(family.from_hf({**config.to_dict(), "architectures": ["LongformerModel"]})).eval()
    ours.load_state_dict(import_weights(family.rules(ours.config), _prefixed(model), ours.state_dict()))
    tokens = ids(VOCAB - 2, 1, 2001) + 2
    everywhere = torch.zeros_like(tokens).bool()
    everywhere[0, [0, 7, 1500]] = True
    expected = model(tokens, global_attention_mask=everywhere.long()).last_hidden_state
    torch.testing.assert_close(ours(tokens, global_BT=everywhere), expected, rtol=1e-4, atol=1e-4)


def _prefixed(model: Any) -> dict[str, torch.Tensor]:
    return {f"longformer.{name}": tensor for name, tensor in model.state_dict().items()}


BASE = dict(vocab_size=VOCAB, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (dict(attention_window=5), "attention_window 5 is not one even number"),
        (dict(attention_window=[4, 4, 4]), "one for each layer"),
        (dict(attention_window=["4", 4]), "not one even number"),
        (dict(hidden_act="mish"), "hidden_act 'mish'"),
        (dict(architectures=["LongformerForMultipleChoice"]), "LongformerForMultipleChoice"),
        (dict(is_decoder=True), "is_decoder True"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    family = family_of("longformer")
    assert family is not None and family.from_hf is not None
    with pytest.raises(UserError, match=named):
        family.from_hf({"model_type": "longformer", **BASE, **changed})


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (dict(dilation=2), "dilation is 2"),
        (dict(global_tokens="first"), "global_tokens is first"),
        (dict(head=dict(type="pool")), "no Hugging Face form|no architecture"),
    ],
)
def test_a_model_that_they_lack_is_not_written(tmp_path: Path, overrides: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        hf.save(tmp_path / "out", gf.build("longformer-tiny", **overrides))


def test_a_window_that_cannot_be_halved_is_refused_and_one_for_each_layer_is_taken() -> None:
    for window, says in ((5, "window 5 cannot be halved"), ((4, 2, 2), "3 numbers, but there are 2 layers")):
        with pytest.raises(UserError, match=says):
            gf.build("longformer-tiny", window=window)
    model = gf.build("longformer-tiny", window=(4, 8))
    assert [layer.mixer.config.reach for layer in model.encoder.layers] == [2, 4]


@pytest.mark.parametrize(
    ("preset", "parameters"), [("longformer-base", 148_659_456), ("longformer-large", 434_600_960)]
)
def test_presets_have_the_published_numbers_of_parameters(preset: str, parameters: int) -> None:
    check_size(preset, parameters)

"""BigBird beside `transformers`: any blocks, length and head, read and written; in training, its random blocks, too."""

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
from tests.parity.helpers import VOCAB, check_size, their_output
from tests.randomised import ids, lengths_mask, randomise

HEADS = ["Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification"]


def theirs(head: str, seed: int, **more: Any) -> Any:
    """A model of theirs of random sizes, whose every parameter is random, and which drops nothing out."""
    rng = random.Random(f"{head} {seed}")
    n_heads, d_head = rng.choice([(1, 4), (2, 4), (3, 2)])
    sizes: dict[str, Any] = dict(vocab_size=VOCAB, max_position_embeddings=120, hidden_size=n_heads * d_head)
    if head in HEADS[3:]:
        sizes["num_labels"] = rng.randint(1, 4)
    if head == "ForMaskedLM":
        sizes["tie_word_embeddings"] = bool(seed % 2)
    config = transformers.BigBirdConfig(
        **{
            **sizes,
            **dict(
                block_size=rng.choice([2, 3, 4]),
                num_random_blocks=rng.choice([1, 2]),
                num_attention_heads=n_heads,
                num_hidden_layers=rng.randint(1, 3),
                intermediate_size=rng.choice([5, 8]),
                hidden_act=rng.choice(["gelu", "relu", "gelu_new", "silu"]),
                layer_norm_eps=rng.choice([1e-12, 1e-5, 1e-2]),
                type_vocab_size=rng.randint(1, 3),
                use_bias=rng.random() < 0.5,
                rescale_embeddings=rng.random() < 0.5,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            ),
            **more,
        }
    )
    model = randomise(getattr(transformers, f"BigBird{head}")(config), rng.randrange(10**6)).eval()
    if head == "ForPreTraining":
        model.config.architectures = ["BigBirdForPreTraining"]
    return model


@torch.no_grad()
def expected_of(model: Any, **inputs: Any) -> torch.Tensor:
    """What theirs says; a short text makes it forget that it was sparse, so it is reminded."""
    base = getattr(model, "bert", model)
    base.set_attention_type(model.config.attention_type)
    if isinstance(model, transformers.BigBirdForPreTraining):
        return model(**inputs).prediction_logits
    return their_output(model, **inputs)["output"]


def lengths_of(config: Any) -> list[int]:
    """Below and above the length that is read whole, multiples of a block and not."""
    whole = (5 + 2 * config.num_random_blocks) * config.block_size
    return [1, whole - 1, whole, whole + 1, whole + config.block_size, whole + 2 * config.block_size + 1]


@torch.no_grad()
def same(ours: Any, model: Any, size: int, lengths: list[int], seed: int) -> None:
    for length in lengths:
        tokens = ids(VOCAB, 2, length, seed=seed)
        types = ids(model.config.type_vocab_size, *tokens.shape, seed=seed + 1)
        # A row as long in blocks: theirs sees a last block of padding as global, ours none of it.
        mask = lengths_mask([length, max(1, (length - 1) // size * size + 1)])
        expected = expected_of(model, input_ids=tokens, attention_mask=mask.long(), token_type_ids=types)
        real = mask if expected.shape[:2] == mask.shape else slice(None)
        with gf.record(ours):
            traced = ours(tokens, mask, types)
        torch.testing.assert_close(ours(tokens, mask, types)[real], expected[real], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(traced[real], expected[real], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("head", HEADS)
def test_any_model_of_theirs_comes_in_and_goes_out_with_equal_outputs(tmp_path: Path, head: str, seed: int) -> None:
    model = theirs(head, seed, attention_type="original_full" if seed == 2 else "block_sparse")
    model.save_pretrained(tmp_path / "in")
    ours = gf.load(tmp_path / "in").model
    size, lengths = model.config.block_size, lengths_of(model.config)
    same(ours, model, size, lengths, seed)
    if head == "ForPreTraining":
        return  # what tells the next sentence is left out
    hf.save(tmp_path / "out", ours)
    again, told = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert {name for name in told["missing_keys"] if "predictions.bias" not in name and "pooler" not in name} == set()
    assert not told["unexpected_keys"] and not told["mismatched_keys"]
    same(ours, again.eval(), size, lengths, seed + 1)


@pytest.mark.parametrize(
    ("length", "sizes"),
    [
        (40, dict(block_size=2, num_random_blocks=2)),
        (61, dict(block_size=3, num_random_blocks=1)),
        (1024, dict(block_size=64, num_random_blocks=3, max_position_embeddings=4096)),
        (1000, dict(block_size=64, num_random_blocks=3, max_position_embeddings=2048)),
        (3072, dict(block_size=64, num_random_blocks=3, max_position_embeddings=4096)),
    ],
)
@torch.no_grad()
def test_in_training_the_same_random_blocks_are_drawn(tmp_path: Path, length: int, sizes: dict[str, int]) -> None:
    model = theirs("Model", 1, **sizes, hidden_size=16, num_attention_heads=2, num_hidden_layers=2)
    for layer in model.encoder.layer:  # among thousands of keys, only a sharp look tells which ones there are
        layer.attention.self.query.weight.mul_(5)
        layer.attention.self.value.weight.mul_(5)
    model.save_pretrained(tmp_path)
    ours = gf.load(tmp_path).model
    tokens = ids(VOCAB, 1, length)
    quiet = expected_of(model, input_ids=tokens)
    expected = expected_of(model.train(), input_ids=tokens)
    assert not torch.allclose(expected, quiet, atol=1e-3)
    close = dict(rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.train()(tokens), expected, **close)
    torch.testing.assert_close(ours.eval()(tokens), quiet, **close)


BASE = dict(vocab_size=VOCAB, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (dict(attention_type="sparse"), "attention_type 'sparse'"),
        (dict(architectures=["BigBirdForQuestionAnswering"]), "BigBirdForQuestionAnswering"),
        (dict(architectures=["BigBirdForMultipleChoice"]), "BigBirdForMultipleChoice"),
        (dict(is_decoder=True), "is_decoder True"),
        (dict(block_size=0), "block"),
        (dict(num_blocks=3), "num_blocks"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    family = family_of("big_bird")
    assert family is not None and family.from_hf is not None
    with pytest.raises(UserError, match=named):
        family.from_hf({"model_type": "big_bird", **BASE, **changed})


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (dict(drawn="always"), "drawn is always"),
        (dict(head=dict(type="span")), "span|ForQuestionAnswering"),
        (dict(head=dict(type="pool")), "no Hugging Face form|no architecture"),
    ],
)
def test_a_model_that_they_lack_is_not_written(tmp_path: Path, overrides: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        hf.save(tmp_path / "out", gf.build("bigbird-tiny", **overrides))


@pytest.mark.parametrize(("preset", "parameters"), [("bigbird-base", 127_468_800), ("bigbird-large", 359_123_968)])
def test_presets_have_the_numbers_of_parameters_of_theirs(preset: str, parameters: int) -> None:
    check_size(preset, parameters)

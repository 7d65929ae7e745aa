"""Every part that a family may choose, in random combinations, against models written in loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.config import DynamicScaling, ModelConfig, RotaryConfig, T5BucketsConfig
from glassformer.nn import rotary
from glassformer.nn.bias import buckets
from tests.family_configs import SCALINGS, decoders, encoders, relatives
from tests.oracles import decoder_loops, encoder_loops, t5_loops
from tests.randomised import ids, lengths_mask, random_model

SEEDS = st.integers(0, 10**6)
TWO_LENGTHS = st.tuples(st.integers(1, 6), st.integers(1, 6))


def numbers(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


def near(actual: torch.Tensor, expected: object) -> None:
    np.testing.assert_allclose(actual.numpy(), np.array(expected), rtol=1e-4, atol=2e-5)


@settings(max_examples=40)
@given(decoders(), SEEDS, TWO_LENGTHS)
@torch.no_grad()
def test_a_decoder_equals_the_loops(config: ModelConfig, seed: int, lengths: tuple[int, int]) -> None:
    model = random_model(config, seed)
    tokens = ids(11, 2, max(lengths), seed=seed)
    mask = lengths_mask([*lengths])
    logits, weights = model(tokens, None if mask.all() else mask), numbers(model)
    for row, length in enumerate(lengths):
        near(logits[row, :length], decoder_loops.logits(config, weights, tokens[row, :length].tolist()))


@settings(max_examples=40)
@given(encoders(), SEEDS, TWO_LENGTHS, st.booleans())
@torch.no_grad()
def test_an_encoder_with_any_head_equals_the_loops(
    config: ModelConfig, seed: int, lengths: tuple[int, int], typed
) -> None:
    model = random_model(config, seed)
    width = max(lengths)
    tokens, types = ids(11, 2, width, seed=seed), ids(2, 2, width, seed=seed + 1) if typed else None
    mask = lengths_mask([*lengths])
    out, weights = model(tokens, None if mask.all() else mask, types), numbers(model)
    for row, length in enumerate(lengths):
        of = None if types is None else types[row, :length].tolist()
        expected = encoder_loops.output(config, weights, tokens[row, :length].tolist(), of)
        near(out[row, :length] if out.dim() == 3 else out[row], expected)


@settings(max_examples=25)
@given(relatives(), SEEDS, TWO_LENGTHS, TWO_LENGTHS)
@torch.no_grad()
def test_an_encoder_decoder_with_relative_positions_equals_the_loops(config, seed, sources, targets) -> None:
    model = random_model(config, seed)
    source, target = ids(11, 2, max(sources), seed=seed), ids(11, 2, max(targets), seed=seed + 1)
    mask = lengths_mask([*sources])
    logits, weights = model(source, target, None if mask.all() else mask), numbers(model)
    for row, (n, t) in enumerate(zip(sources, targets, strict=True)):
        expected = t5_loops.logits(config, weights, source[row, :n].tolist(), target[row, :t].tolist())
        near(logits[row, :t], expected)


@settings(max_examples=60)
@given(st.sampled_from([4, 8, 32]), st.integers(17, 200), st.booleans())
def test_buckets_of_far_distances(count: int, farthest: int, bidirectional: bool) -> None:
    config = T5BucketsConfig(buckets=count, max_distance=farthest, bidirectional=bidirectional)
    distance = torch.arange(-300, 301)
    said, expected = buckets(distance, config), torch.tensor([t5_loops.bucket(config, d) for d in distance.tolist()])
    # At a border float32 and float64 may round to either side.
    assert ((said - expected).abs() <= 1).all() and (said != expected).sum() <= 2
    assert said.min() >= 0 and said.max() < count


@pytest.mark.parametrize("scaling", [*SCALINGS, DynamicScaling(factor=2.0, original_max_len=16).to_dict()])
@pytest.mark.parametrize(("fraction", "base"), [(1.0, 10000.0), (0.5, 50.0)])
def test_angles_are_exact_far_out(scaling: dict | None, fraction: float, base: float) -> None:
    config = RotaryConfig.from_dict(dict(base=base, fraction=fraction, scaling=scaling))
    places, length = torch.tensor([0, 1, 77, 100_003]), 100_004
    cos, sin = rotary.tables(config, 16, places, length)
    for row, place in enumerate(places.tolist()):
        for pair in range(cos.shape[1]):
            step, factor = decoder_loops.frequency(config, int(16 * fraction), pair, length)
            near(cos[row, pair], np.cos(place * step) * factor)
            near(sin[row, pair], np.sin(place * step) * factor)

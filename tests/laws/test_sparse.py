"""Laws of sparse attention: equal to loops and to a dense mask, at any length, with padding and global tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.config import BlocksConfig, ModelConfig, SlidingConfig
from glassformer.errors import UserError
from glassformer.nn import blocks as blockwise
from glassformer.nn import mask as masks
from glassformer.nn import random_blocks
from glassformer.nn.block import build_mixer
from glassformer.nn.mixer import Context
from glassformer.nn.sparse import BlockAttention, SlidingAttention
from glassformer.trace.recorder import record
from tests.family_configs import blocks, sliding
from tests.oracles import sparse_loops
from tests.randomised import close, ids, random_model, randomise

SEEDS = st.integers(0, 10**6)
LENGTHS = st.sampled_from([1, 2, 5, 16, 23, 34])


@pytest.fixture(autouse=True)
def by_blocks() -> Iterator[None]:
    """Short texts go by blocks, too, and several of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "pays", lambda *args: True)
        patch.setattr(blockwise, "_size", lambda before, after: 4)
        yield


def text(length: int, seed: int, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, length, 8, generator=torch.Generator().manual_seed(seed))


@st.composite
def slidings(draw: st.DrawFn, causal: bool | None = None) -> SlidingAttention:
    causal = draw(st.booleans()) if causal is None else causal
    data = dict(sliding(draw, causal), reach=draw(st.sampled_from([0, 1, 3, 9, 50])), dilation=draw(st.integers(1, 4)))
    return randomise(build_mixer(SlidingConfig.from_dict(data), 8), draw(SEEDS))


@st.composite
def blockeds(draw: st.DrawFn) -> BlockAttention:
    data = dict(blocks(draw, False), block=draw(st.sampled_from([1, 2, 3])), random=draw(st.sampled_from([0, 1, 2])))
    return randomise(build_mixer(BlocksConfig.from_dict(data), 8), draw(SEEDS)).train(draw(st.booleans()))


def numbers(mixer: torch.nn.Module) -> dict[str, np.ndarray]:
    return {f"m.{name}": value.double().detach().numpy() for name, value in mixer.state_dict().items()}


def random_ones(mixer: BlockAttention, length: int) -> list[list[list[int]]]:
    """The random blocks of each head and block, for the loops."""
    config = mixer.config
    count = -(-length // config.block)
    if config.drawn == "training" and not mixer.training:
        return [[[0] * config.random] * count] * config.n_heads
    plan = random_blocks.drawn(config.seed, config.n_heads, count, config.random, config.block, config.plan_len)
    return [[[], *row, []] for row in plan.tolist()]


@settings(max_examples=40)
@given(slidings(), SEEDS, LENGTHS, st.data())
def test_a_sliding_window_equals_the_loops_with_any_tokens_global(mixer, seed: int, length: int, data) -> None:
    x, chosen = text(length, seed), data.draw(st.sets(st.integers(0, length - 1), max_size=4))
    mask = torch.tensor([[place in chosen for place in range(length)]])
    said = mixer(x, Context(global_BT=mask))
    everywhere = () if mixer.config.causal else chosen
    expected = sparse_loops.sliding(numbers(mixer), "m", mixer.config, x[0].tolist(), everywhere)
    close(said[0], torch.tensor(expected).float())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("drawn", ["always", "training"])
@pytest.mark.parametrize(("block", "count"), [(1, 0), (2, 1), (3, 1), (1, 2), (2, 2)])
def test_blocks_equal_the_loops_with_random_ones_counted_as_often_as_they_are_drawn(
    block: int, count: int, drawn: str, training: bool
) -> None:
    config = BlocksConfig.from_dict(dict(n_heads=2, block=block, random=count, drawn=drawn, seed=block))
    mixer = randomise(build_mixer(config, 8), count).train(training)
    whole = (5 + 2 * count) * block
    for length in (1, whole, whole + 1, whole + block, 34):
        x = text(length, length)
        chosen = random_ones(mixer, length) if length > whole else []
        expected = sparse_loops.blocks(numbers(mixer), "m", mixer.config, x[0].tolist(), chosen)
        close(mixer(x, Context())[0], torch.tensor(expected).float())


@settings(max_examples=60)
@given(st.one_of(slidings(), blockeds()), SEEDS, LENGTHS, st.data())
def test_sparse_equals_dense_with_a_mask_and_so_do_its_gradients(mixer, seed: int, length: int, data) -> None:
    density = data.draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    generator = torch.Generator().manual_seed(seed)
    real = torch.rand(3, length, generator=generator) < density if data.draw(st.booleans()) else None
    everywhere = torch.rand(3, length, generator=generator) < data.draw(st.sampled_from([0.0, 0.1, 1.0]))
    ctx = Context(mask_BS=real, global_BT=everywhere if data.draw(st.booleans()) else None)
    found = []
    for traced in (False, True):
        x = text(length, seed, 3).requires_grad_()
        mixer.zero_grad(set_to_none=True)
        if traced:
            with record(mixer) as trace:
                y = mixer(x, ctx)
        else:
            y = mixer(x, ctx)
        assert y.isfinite().all()
        y = y if real is None else y[real]  # what padding itself is given is nobody's
        y.sin().sum().backward()
        found.append([y.detach(), x.grad, *(p.grad for p in mixer.parameters())])
    for sparse, dense in zip(*found, strict=True):
        # Projections that no global token asks for have no gradient, or one of zero.
        some = next((each for each in (sparse, dense) if each is not None), None)
        if some is not None:
            close(*(torch.zeros_like(some) if each is None else each for each in (sparse, dense)), rtol=1e-3, atol=1e-4)
    assert set(trace) == {name for name, part in mixer.named_modules() if type(part).__name__ == "Tap"}
    total = trace["pattern"].sum(-1)
    close(total, torch.ones_like(total) if real is None else real.any(1)[:, None, None] * total.detach().round())


@settings(max_examples=60)
@given(st.one_of(slidings(), blockeds()), SEEDS, LENGTHS, st.integers(0, 9), st.integers(0, 9))
@torch.no_grad()
def test_padding_on_either_side_and_neighbours_in_a_batch_change_nothing(mixer, seed, length, left, right) -> None:
    x, other = text(length, seed), text(left + length + right, seed + 1, 3) * 30
    expected, wide = mixer(x, Context()), other
    wide[1, left : left + length] = x[0]
    real = torch.ones(3, left + length + right, dtype=torch.bool)
    real[1, :left] = real[1, left + length :] = False
    real[2] = False
    out = mixer(wide, Context(mask_BS=real))
    assert out.isfinite().all()
    close(out[1, left : left + length], expected[0], rtol=1e-3, atol=1e-4)


@settings(max_examples=30)
@given(slidings(causal=True), SEEDS, st.data())
@torch.no_grad()
def test_chunks_after_chunks_equal_the_whole(mixer: SlidingAttention, seed: int, data) -> None:
    x, state, start = text(60, seed, 2), mixer.init_state(), 0
    real = torch.arange(60) >= torch.tensor([[0], [data.draw(st.integers(0, 7))]])
    whole = mixer(x, Context(mask_BS=real))
    while start < 60:
        end = min(60, start + data.draw(st.sampled_from([1, 1, 2, 9, 30])))
        part = mixer(x[:, start:end], Context(start, mask_BS=real[:, :end]), state)
        close(part[real[:, start:end]], whole[:, start:end][real[:, start:end]])
        start = end


@torch.no_grad()
def test_the_first_real_token_is_global_unless_a_pass_says_otherwise() -> None:
    mixer = randomise(build_mixer(SlidingConfig(n_heads=2, reach=1), 8))
    x, real = text(9, 0), torch.arange(9)[None] >= 2
    first = torch.arange(9)[None] == 2
    close(mixer(x, Context(mask_BS=real)), mixer(x, Context(mask_BS=real, global_BT=first)))
    with record(mixer) as trace:
        mixer(x, Context(mask_BS=real))
    assert (trace["pattern"][0, 0, 2:, 2] > 0).all() and (trace["pattern"][0, 0, 2, 2:] > 0).all()
    assert (trace["pattern"][0, 0, 8] > 0).nonzero()[:, 0].tolist() == [2, 7, 8]


@torch.no_grad()
def test_a_window_wider_than_the_text_and_all_tokens_global_are_dense_attention() -> None:
    wide = randomise(build_mixer(SlidingConfig(n_heads=2, reach=99, global_tokens="none"), 8))
    near = randomise(build_mixer(SlidingConfig(n_heads=2, reach=1), 8))
    for mixer, everywhere in ((wide, None), (near, torch.ones(1, 20, dtype=torch.bool))):
        with record(mixer) as trace:
            mixer(text(20, 1), Context(global_BT=everywhere))
        assert (trace["pattern"] > 0).all()


@torch.no_grad()
def test_steps_beyond_what_a_tensor_holds_see_what_there_is() -> None:
    for steps, every in ((10**30, 1), (10**30, 10**30), (1, 10**30), (3, 4)):
        near = masks.band(7, 9, min(steps, 20), min(steps, 20), every=min(every, 20))
        assert torch.equal(masks.band(7, 9, steps, steps, every=every), near)
    most = 2**31 - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "pays", lambda *args: False)
        far = randomise(build_mixer(SlidingConfig(n_heads=2, reach=most, dilation=most, causal=True), 8))
        assert far(text(20, 1), Context()).isfinite().all()


@pytest.mark.parametrize("config", [SlidingConfig(n_heads=2, reach=3), BlocksConfig(n_heads=2, block=2, random=1)])
@pytest.mark.parametrize("traced", [False, True])
def test_in_few_bits_it_stays_close_and_scores_are_not_summed_in_few(config: Any, traced: bool) -> None:
    mixer, x = randomise(build_mixer(config, 8), 2), text(40, 3, 2)
    real = torch.arange(40) < torch.tensor([[40], [33]])
    expected = mixer(x, Context(mask_BS=real))
    with torch.autocast("cpu", dtype=torch.bfloat16), record(mixer) if traced else nullcontext():
        out = mixer(x, Context(mask_BS=real))
    assert out.dtype == torch.bfloat16
    close(out.float()[real], expected[real], rtol=0.05, atol=0.05)
    out.float().sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in mixer.parameters())


def test_time_and_what_is_kept_for_the_backward_pass_grow_with_the_length() -> None:
    for config in (SlidingConfig(n_heads=2, reach=4), BlocksConfig(n_heads=2, block=4, random=1)):
        mixer, kept = build_mixer(config, 8), []
        for length in (512, 1024):
            sizes: list[int] = []
            with torch.autograd.graph.saved_tensors_hooks(lambda x, s=sizes: s.append(x.numel()) or x, lambda x: x):
                mixer(text(length, 0), Context())
            kept.append(sum(sizes))
        assert kept[1] < 2.1 * kept[0]


def test_random_blocks_differ_by_layer_and_head_and_are_neither_near_nor_global() -> None:
    plan = random_blocks.drawn(3, 2, 20, 3, 64, 4096)
    assert plan.shape == (2, 18, 3) and not np.array_equal(plan[0], plan[1])
    assert not np.array_equal(plan, random_blocks.drawn(4, 2, 20, 3, 64, 4096))
    for head in plan:
        for block, row in enumerate(head, start=1):
            assert len(set(row)) == 3 and not set(row) & {0, block - 1, block, block + 1}


def test_random_blocks_are_seen_only_in_training_where_the_configuration_says_so() -> None:
    x = text(40, 5)
    for drawn, same in (("always", True), ("training", False)):
        mixer = randomise(build_mixer(BlocksConfig(n_heads=2, block=2, random=1, drawn=drawn), 8))
        assert torch.allclose(mixer.train()(x, Context()), mixer.eval()(x, Context())) == same


@pytest.mark.parametrize(
    ("side", "mixer", "says"),
    [
        ("decoder", dict(type="blocks", n_heads=2), "blocks sees later tokens; a decoder cannot"),
        ("decoder", dict(type="sliding", n_heads=2, reach=2), "self-attention is causal in the decoder"),
        ("encoder", dict(type="sliding", n_heads=2, reach=2, causal=True), "self-attention is causal in the decoder"),
        ("decoder", dict(type="sliding", n_heads=2, reach=2, causal=True, global_tokens="first"), "sees later ones"),
        ("encoder", dict(type="sliding", n_heads=2, reach=-1), "greater than or equal to 0"),
        ("encoder", dict(type="sliding", n_heads=2, reach=2, dilation=0), "greater than 0"),
        ("encoder", dict(type="sliding", n_heads=3, reach=2), "d_model 8 is not a multiple of n_heads 3"),
        ("encoder", dict(type="sliding", n_heads=2, window=4, reach=2), "unknown key"),
        ("encoder", dict(type="sliding", n_heads=2, reach=10**12), "less than or equal to 2147483647"),
        ("encoder", dict(type="blocks", n_heads=2, random=10**12), "less than or equal to 2147483647"),
        ("encoder", dict(type="blocks", n_heads=2, block=0), "greater than 0"),
        ("encoder", dict(type="blocks", n_heads=2, random=-1), "greater than or equal to 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(side: str, mixer: dict[str, Any], says: str) -> None:
    data = {"d_model": 8, "embed": dict(vocab_size=11), side: dict(blocks=[dict(mixer=mixer)])}
    with pytest.raises(UserError) as caught:
        ModelConfig.from_dict(data)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@torch.no_grad()
def test_an_encoder_is_told_which_tokens_are_global() -> None:
    stack = dict(blocks=[dict(mixer=dict(type="sliding", n_heads=2, reach=1))])
    model = random_model(ModelConfig.from_dict(dict(d_model=8, embed=dict(vocab_size=11), encoder=stack, head=None)))
    tokens, question = ids(11, 1, 12), torch.arange(12)[None] < 3
    other = tokens.clone()
    other[:, 2] = (other[:, 2] + 1) % 11
    changed = [(model(tokens, global_BT=g) != model(other, global_BT=g)).any(-1)[0] for g in (None, question)]
    assert changed[0].tolist() == [True, True, True, True] + [False] * 8, "the first token sees all, its neighbours it"
    assert changed[1].all()
    stack = dict(blocks=[dict(mixer=dict(n_heads=2))])
    plain = random_model(ModelConfig.from_dict(dict(d_model=8, embed=dict(vocab_size=11), encoder=stack, head=None)))
    with pytest.raises(UserError, match="no layer of this model has global tokens"):
        plain(tokens, global_BT=question)

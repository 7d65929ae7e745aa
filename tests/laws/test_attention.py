"""Laws of attention: every path against a loop over pairs of positions, and what masks promise."""

import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from glassformer.config import AttentionConfig
from glassformer.errors import UserError
from glassformer.nn import blocks, flex
from glassformer.nn import mask as masks
from glassformer.nn import tiled as tiles
from glassformer.nn.attend import Path, attend, attention_path
from glassformer.nn.attention import CrossAttention, SelfAttention
from glassformer.nn.mixer import Context
from glassformer.nn.tiled import tiled
from glassformer.trace.recorder import record
from tests.randomised import close, randomise

EVERY = ("fused", "tiled", "explicit")
PATHS = pytest.mark.parametrize("path", EVERY)


def loop_attention(q, k, v, allowed):
    """One query and one key at a time, in doubles; ``allowed(b, h, t, s)`` says which pairs may meet."""
    batch, heads, n_queries, size = q.shape
    out = torch.zeros(batch, heads, n_queries, v.shape[-1], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for t in range(n_queries):
                seen = [s for s in range(k.shape[2]) if allowed(b, h, t, s)]
                dots = [sum(float(x) * float(y) for x, y in zip(q[b, h, t], k[b, h, s], strict=True)) for s in seen]
                powers = [math.exp(value / math.sqrt(size)) for value in dots]
                for s, power in zip(seen, powers, strict=True):
                    out[b, h, t] += power / sum(powers) * v[b, h, s].double()
    return out.float()


@st.composite
def problems(draw):
    batch, heads, size = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    n_queries = draw(st.integers(1, 5))
    causal = draw(st.booleans())
    n_keys = n_queries + draw(st.integers(0, 3)) if causal else draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    q = torch.randn(batch, heads, n_queries, size, generator=generator)
    k, v = (torch.randn(batch, heads, n_keys, size, generator=generator) for _ in range(2))
    full = (batch, heads, n_queries, n_keys)
    shape = [full[i] if draw(st.booleans()) else 1 for i in range(3)] + [n_keys]
    density = draw(st.sampled_from([0.0, 0.3, 0.8]))
    mask = (torch.rand(shape, generator=generator) < density) if draw(st.booleans()) else None
    return q, k, v, mask, causal


@settings(max_examples=60)
@given(problems())
def test_all_paths_equal_the_loop_over_pairs(problem) -> None:
    q, k, v, mask, causal = problem
    offset = k.shape[2] - q.shape[2]
    spread = None if mask is None else mask.expand(*q.shape[:3], k.shape[2])

    def allowed(b, h, t, s):
        return (spread is None or bool(spread[b, h, t, s])) and (not causal or s <= t + offset)

    expected = loop_attention(q, k, v, allowed)
    for path in EVERY:
        close(attend(q, k, v, mask=mask, causal=causal, path=path), expected)


@settings(max_examples=30)
@given(problems())
def test_all_paths_have_equal_gradients(problem) -> None:
    *tensors, mask, causal = problem
    gradients = []
    for path in EVERY:
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        attend(*leaves, mask=mask, causal=causal, path=path).sin().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for fused, by_tiles, explicit in zip(*gradients, strict=True):
        assert fused.isfinite().all()
        close(fused, explicit)
        close(by_tiles, explicit)


@PATHS
@pytest.mark.parametrize("causal", [False, True])
def test_a_query_without_a_key_gets_zeros_and_passes_no_gradient(path: Path, causal: bool) -> None:
    q, k, v = (torch.randn(2, 2, 4, 3, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    mask[0, :, 2] = False
    out = attend(q, k, v, mask=mask, causal=causal, path=path)
    assert torch.equal(out[0, :, 2], torch.zeros(2, 3))
    assert (out[1] != 0).all()
    out[0, :, 2].sum().backward()
    for leaf in (q, k, v):
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))


@PATHS
def test_what_a_mask_hides_changes_nothing(path: Path) -> None:
    q, k, v = (torch.randn(2, 2, 5, 3) for _ in range(3))
    mask = torch.rand(2, 1, 1, 5) < 0.5
    before = attend(q, k, v, mask=mask, path=path)
    hidden = ~mask.transpose(-1, -2)
    after = attend(q, k + 1e3 * hidden, v - 1e3 * hidden, mask=mask, path=path)
    assert torch.equal(before, after)


@PATHS
def test_the_order_of_keys_does_not_matter(path: Path) -> None:
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
    order = torch.randperm(6)
    close(attend(q, k, v, path=path), attend(q, k[:, :, order], v[:, :, order], path=path))


@settings(max_examples=40)
@given(problems())
def test_the_pattern_is_a_distribution_over_the_allowed_keys_and_makes_the_output(problem) -> None:
    q, k, v, mask, causal = problem
    seen = {}

    def see(name):
        return lambda value: seen.setdefault(name, value)

    out = attend(q, k, v, mask=mask, causal=causal, path="explicit", see_scores=see("s"), see_pattern=see("p"))
    allowed = torch.ones(*q.shape[:3], k.shape[2], dtype=torch.bool) if mask is None else mask.expand(*seen["p"].shape)
    if causal:
        allowed = allowed & masks.causal(q.shape[2], k.shape[2])
    assert (seen["p"][~allowed] == 0).all()
    close(seen["p"].sum(-1), allowed.any(-1).float())
    close(seen["p"] @ v, out)
    close(seen["s"], torch.einsum("bhtk,bhsk->bhts", q, k) / q.shape[-1] ** 0.5)


@PATHS
def test_a_tap_may_replace_what_it_sees_only_on_the_explicit_path(path: Path) -> None:
    q, k, v = (torch.randn(1, 1, 3, 2) for _ in range(3))
    out = attend(q, k, v, path=path, see_pattern=torch.zeros_like)
    assert (out == 0).all() == (path == "explicit")


@PATHS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_result_keeps_the_dtype_and_stays_close_in_few_bits(path: Path, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 2, 5, 8) for _ in range(3))
    mask = torch.rand(2, 1, 5, 5) < 0.7
    out = attend(q.to(dtype), k.to(dtype), v.to(dtype), mask=mask, path=path)
    assert out.dtype == dtype
    close(out.float(), attend(q, k, v, mask=mask), rtol=0.05, atol=0.05)


@given(st.integers(1, 6), st.integers(0, 6))
def test_the_causal_mask_is_its_definition(n_queries: int, earlier: int) -> None:
    n_keys = n_queries + earlier
    expected = [[s <= t + earlier for s in range(n_keys)] for t in range(n_queries)]
    assert masks.causal(n_queries, n_keys).tolist() == expected


def test_masks_combine_as_booleans() -> None:
    a, b = torch.rand(2, 1, 1, 4) < 0.5, torch.rand(3, 4) < 0.5
    combined = masks.combine(None, a, None, b)
    assert combined is not None and combined.dtype == torch.bool
    assert torch.equal(combined, torch.logical_and(a, b))
    assert masks.combine(None, None) is None
    assert torch.equal(masks.padding(torch.tensor([[True, False]])), torch.tensor([[[[True, False]]]]))


@pytest.mark.parametrize("d_head", [None, 5])
def test_heads_are_independent_attentions_over_their_own_columns(d_head: int | None) -> None:
    config = AttentionConfig(n_heads=2, d_head=d_head)
    layer = randomise(CrossAttention(config, 8))
    size = d_head or 4
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    parts = []
    for head in range(2):
        own = slice(head * size, (head + 1) * size)
        q, k, v = layer.query(x)[..., own], layer.key(memory)[..., own], layer.value(memory)[..., own]
        scores = (q @ k.transpose(1, 2) / size**0.5).masked_fill(~mask[:, None], -math.inf)
        parts.append(scores.softmax(-1) @ v)
    expected = layer.out(torch.cat(parts, -1))
    close(layer(x, Context(memory_BSD=memory, memory_mask_BS=mask)), expected)


def test_recording_takes_the_explicit_path_with_the_same_result() -> None:
    layer = randomise(SelfAttention(AttentionConfig(n_heads=2, causal=True), 8))
    x = torch.randn(2, 4, 8)
    plain = layer(x, Context())
    with record(layer) as trace:
        recorded = layer(x, Context())
    close(recorded, plain)
    assert trace["pattern"].shape == (2, 2, 4, 4)
    assert (trace["pattern"].triu(1) == 0).all()


@st.composite
def long_problems(draw: st.DrawFn) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Lengths of one and of no multiple of anything, grouped keys, and everything that hides keys or adds to scores."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    groups, each, size, batch = (draw(st.integers(1, 2)) for _ in range(4))
    n_queries = draw(st.sampled_from([1, 2, 7, 16, 33]))
    n_keys = n_queries + draw(st.sampled_from([0, 0, 1, 5]))
    q = torch.randn(batch, groups * each, n_queries, size, generator=generator)
    k, v = (torch.randn(batch, groups, n_keys, size, generator=generator) for _ in range(2))
    full = (batch, groups * each, n_queries, n_keys)
    shapes = st.sampled_from([(batch, 1, 1, n_keys), (1, 1, n_queries, n_keys), full, (1, groups * each, n_queries, 1)])
    mask = torch.rand(draw(shapes), generator=generator) < draw(st.sampled_from([0.0, 0.5, 0.9]))
    bias_shape = draw(st.sampled_from([full, full[1:], (1, 1, 1, n_keys), (n_queries, 1)]))
    bias = torch.randn(bias_shape, generator=generator)
    options = dict(
        mask=mask if draw(st.booleans()) else None,
        causal=draw(st.booleans()),
        window=draw(st.sampled_from([None, 1, 3, 20])),
        scale=draw(st.sampled_from([None, 0.3])),
    )
    return [q, k, v, *([bias] if draw(st.booleans()) else [])], options


def run_backwards(tensors, attention, **options) -> list[torch.Tensor]:
    """What comes out, and the gradient of everything that goes in."""
    q, k, v, *bias = leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = attention(q, k, v, bias=bias[0] if bias else None, **options)
    out.sin().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@settings(max_examples=80)
@given(long_problems(), st.sampled_from([1, 2, 5, 16, 100]))
def test_tiles_of_any_size_change_neither_result_nor_gradients_of_the_bias_too(problem, tile: int) -> None:
    tensors, options = problem
    expected = run_backwards(tensors, attend, path="explicit", **options)
    for said, wanted in zip(run_backwards(tensors, tiled, tile=tile, **options), expected, strict=True):
        close(said, wanted, rtol=1e-3, atol=1e-4)


def test_tiles_that_nobody_sees_are_never_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    original = tiles._Problem.scores

    def counted(self, rows, cols):
        computed.append((rows.start, cols.start))
        return original(self, rows, cols)

    monkeypatch.setattr(tiles._Problem, "scores", counted)
    q, k, v = (torch.randn(1, 1, 64, 4) for _ in range(3))
    for options, expected in [
        ({}, 64),
        (dict(causal=True), 36),
        (dict(causal=True, window=8), 15),
        (dict(window=1), 8),
    ]:
        computed.clear()
        tiled(q, k, v, tile=8, **options)
        assert len(computed) == expected, options


def test_tiled_attention_keeps_no_scores_for_the_backward_pass() -> None:
    kept = {}
    for path in ("explicit", "tiled"):
        for length in (512, 1024):
            q, k, v = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))
            sizes: list[int] = []
            with torch.autograd.graph.saved_tensors_hooks(lambda x, s=sizes: s.append(x.numel()) or x, lambda x: x):
                attend(q, k, v, causal=True, path=path)
            kept[path, length] = sum(sizes)
    assert kept["tiled", 1024] == 2 * kept["tiled", 512] == 2 * 512 * 2 * (4 * 8 + 1)
    assert kept["explicit", 1024] > 3 * kept["explicit", 512]


@settings(max_examples=60)
@given(st.data())
def test_blocks_equal_the_dense_window_at_any_length(data: st.DataObject) -> None:
    window, block = data.draw(st.sampled_from([1, 2, 5, 9])), data.draw(st.sampled_from([1, 3, 4]))
    n_queries = data.draw(st.sampled_from([1, 2, 12, 17, 30]))
    n_keys = n_queries + data.draw(st.sampled_from([0, 0, 1, 6]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    q = torch.randn(2, 4, n_queries, 3, generator=generator)
    k, v = (torch.randn(2, 2, n_keys, 3, generator=generator) for _ in range(2))
    mask = torch.rand(2, 1, 1, n_keys, generator=generator) < data.draw(st.sampled_from([0.0, 0.4, 0.9]))
    options = dict(causal=data.draw(st.booleans()), window=window, mask=mask if data.draw(st.booleans()) else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_size", lambda before, after: block)
        said = run_backwards([q, k, v], attend, path="blocks", **options)
    for mine, dense in zip(said, run_backwards([q, k, v], attend, path="explicit", **options), strict=True):
        close(mine, dense)


def test_a_long_window_goes_by_blocks_of_itself_and_a_short_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(blocks, "banded", lambda *args, real=blocks.banded, **kw: seen.append(1) or real(*args, **kw))
    for length, expected in ((64, 0), (1024, 1)):
        seen.clear()
        q, k, v = (torch.randn(1, 1, length, 4) for _ in range(3))
        out = attend(q, k, v, causal=True, window=32)
        assert len(seen) == expected
        close(out, attend(q, k, v, causal=True, window=32, path="fused"))
        attend(q, k, v, causal=True, window=32, bias=torch.randn(length, length))
        attend(q[:, :, -1:], k, v, causal=True, window=32)
        assert len(seen) == expected


@pytest.mark.parametrize(("before", "after", "n_queries", "n_keys"), [(0, 0, 5, 5), (3, 0, 9, 12), (2, 2, 130, 140)])
def test_the_predicate_of_gpus_is_the_band(before: int, after: int, n_queries: int, n_keys: int) -> None:
    seen = flex.predicate(before, after, n_keys - n_queries)
    places = torch.meshgrid(torch.arange(n_queries), torch.arange(n_keys), indexing="ij")
    expected = masks.band(n_queries, n_keys, before, after)
    assert torch.equal(seen(torch.tensor(0), torch.tensor(0), *places), expected)
    q = torch.randn(1, 2, n_queries, 16)
    k, v = (torch.randn(1, 1, n_keys, 16) for _ in range(2))
    block_mask = create_block_mask(seen, None, None, n_queries, n_keys, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a CPU it says that it holds every score
        out = flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)
    close(out, attend(q, k, v, mask=expected, path="fused"))
    assert not flex.usable(q)


def test_where_no_kernel_can_be_compiled_blocks_take_over_and_say_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(flex, "_kernel", broken)
    monkeypatch.setattr(flex, "_failed", False)
    monkeypatch.setattr(flex, "usable", lambda q: not flex._failed)
    q, k, v = (torch.randn(1, 1, 600, 16) for _ in range(3))
    with pytest.warns(UserWarning, match="windows go by blocks: no compiler"):
        out = attend(q, k, v, causal=True, window=8)
    close(out, attend(q, k, v, causal=True, window=8, path="fused"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attend(q, k, v, causal=True, window=8)


def test_whole_models_take_the_path_that_is_chosen_and_a_recorder_still_sees_everything() -> None:
    layer, x = randomise(SelfAttention(AttentionConfig(n_heads=2, causal=True, window=3), 8)), torch.randn(2, 9, 8)
    plain = layer(x, Context())
    for path in ("auto", "fused", "blocks", "tiled", "explicit"):
        with attention_path(path):
            close(layer(x, Context()), plain)
            with record(layer) as trace:
                close(layer(x, Context()), plain)
            assert "pattern" in trace
    with pytest.raises(UserError, match="no attention path 'flash'; there are auto, fused"), attention_path("flash"):
        pass

"""Dropout: independent of position, right in expectation, repeatable from the generator's state."""

import pytest
import torch

from glassformer.nn import dropout
from glassformer.nn.dropout import Dropout

RATES = pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])


@RATES
def test_the_share_of_zeros_and_the_mean_are_right(rate: float) -> None:
    out = torch.cat([Dropout(rate)(torch.ones(100_000)) for _ in range(4)])
    # Four standard deviations of 400,000 draws.
    assert (out == 0).float().mean().item() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 400_000) ** 0.5)
    assert out.mean().item() == pytest.approx(1.0, abs=4 * (rate / (1 - rate) / 400_000) ** 0.5)


@RATES
def test_what_is_kept_is_divided_by_the_chance_to_be_kept(rate: float) -> None:
    x = torch.randn(7, 5, 3)
    out = Dropout(rate)(x)
    kept = out != 0
    assert 0 < kept.sum() < x.numel()
    torch.testing.assert_close(out[kept], x[kept] / (1 - rate))


def test_neighbours_are_dropped_independently() -> None:
    zero = (Dropout(0.3)(torch.ones(200_000)) == 0).double()
    for lag in (1, 2, 8, 512):
        correlation = torch.corrcoef(torch.stack([zero[:-lag], zero[lag:]]))[0, 1].item()
        assert abs(correlation) < 4 / 200_000**0.5


def test_evaluation_and_rate_zero_are_the_identity() -> None:
    x = torch.randn(4, 4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_a_seed_repeats_the_masks_and_calls_differ() -> None:
    layer, x = Dropout(0.5), torch.ones(1000)
    torch.manual_seed(3)
    first, second = layer(x), layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first) and torch.equal(layer(x), second)
    assert not torch.equal(first, second)
    torch.manual_seed(4)
    assert not torch.equal(layer(x), first)


def test_a_restored_generator_goes_on_where_it_stood() -> None:
    layer, x = Dropout(0.5), torch.ones(1000)
    layer(x)
    state = torch.get_rng_state()
    expected = [layer(x) for _ in range(3)]
    dropout._pool.cache_clear()  # another process has an empty cache
    torch.set_rng_state(state)
    assert all(torch.equal(layer(x), mask) for mask in expected)


def test_the_gradient_passes_where_the_value_passed() -> None:
    x = torch.randn(1000, requires_grad=True)
    out = Dropout(0.4)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach() / x.detach())


def test_tensors_near_the_pool_fall_back_and_small_ones_fit(monkeypatch) -> None:
    monkeypatch.setattr(dropout, "POOL", 64)
    dropout._pool.cache_clear()
    try:
        for size in (0, 1, 31, 32, 33, 64, 200):
            out = Dropout(0.5)(torch.ones(size))
            assert out.shape == (size,) and set(out.tolist()) <= {0.0, 2.0}
    finally:
        dropout._pool.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_dtype_is_kept(dtype: torch.dtype) -> None:
    out = Dropout(0.5)(torch.ones(100, dtype=dtype))
    assert out.dtype == dtype and set(out.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("around", [torch.inference_mode, lambda: torch.device("meta")], ids=["inference", "meta"])
def test_the_surroundings_of_the_first_call_do_not_stick(around) -> None:
    dropout._pool.cache_clear()
    ones = torch.ones(100)
    with around():
        Dropout(0.5)(ones)
    x = torch.ones(100, requires_grad=True)
    Dropout(0.5)(x).sum().backward()
    assert x.grad is not None and set(x.grad.tolist()) == {0.0, 2.0}

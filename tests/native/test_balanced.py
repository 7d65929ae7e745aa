"""int8 whose inputs are balanced: the same product, and a few large inputs no longer cost all the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glassformer.runtime import format as packed_format
from glassformer.runtime.arrays import EXTRAS, balanced, quantise
from glassformer.runtime.engine import NativeModel
from glassformer.runtime.library import kernel_sets
from glassformer.runtime.pack import FAITHFUL, cosine, pack_model, peaks
from tests.native.models import drawn, module_of, pack, weights_of
from tests.native.table import KernelSet, at
from tests.native.test_stacks import drawn as drawn_alone


@pytest.mark.parametrize("seed", range(8))
def test_a_balanced_product_is_the_product(seed):
    r = np.random.default_rng(seed)
    k = 16 * int(r.integers(1, 5))
    weight_NK, x_RK = r.normal(size=(32, k)), r.normal(size=(5, k)) * np.exp(2 * r.normal(size=k))
    x_RK[:, -3:] = weight_NK[:, -4:-1] = 0  # padding, and what nothing looks at
    wider_NK, factors, columns = balanced(weight_NK.astype(np.float32), np.abs(x_RK).max(0))
    assert wider_NK.shape == (32, k + EXTRAS) and len(columns) == EXTRAS
    wider_RK = np.concatenate([x_RK, x_RK[:, columns]], 1) * factors
    np.testing.assert_allclose(wider_RK @ wider_NK.T, x_RK @ weight_NK.T, rtol=1e-5, atol=1e-5)
    for name in kernel_sets():
        out_RK, rows = np.full((5, k + EXTRAS), np.nan, np.float32), x_RK.astype(np.float32)
        for row, out in zip(rows, out_RK, strict=True):
            KernelSet(name).table.balance(at(row), k, at(factors), at(columns), EXTRAS, at(out))
        np.testing.assert_allclose(out_RK, wider_RK, rtol=1e-6)


def test_two_large_inputs_cost_the_others_less():
    r = np.random.default_rng(0)
    weight_NK, x_RK = r.normal(size=(64, 256)).astype(np.float32), r.normal(size=(40, 256))
    x_RK[:, [5, 100]] *= 60

    def error(weight, x):
        q, scale = quantise(weight)
        step = np.abs(x).max(1, keepdims=True) / 127
        return np.linalg.norm((np.rint(x / step) * step) @ (q * scale[:, None]).T - x_RK @ weight_NK.T)

    wider, factors, columns = balanced(weight_NK, np.abs(x_RK).max(0))
    assert error(wider, np.concatenate([x_RK, x_RK[:, columns]], 1) * factors) < error(weight_NK, x_RK) / 2


def made(kind: str, seed: int, outliers: float = 1):
    """A random model, two of whose features are so much larger than the others, as some of trained ones are."""
    config = drawn(seed) if kind == "encoder-decoder" else drawn_alone(seed, kind, d_model=48)
    module = module_of(config, seed)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "residual.norm.weight" in name:
                weight[:2] *= outliers
    return config, module


# Of random models these are calm: most magnify the least difference.
CALM = [("encoder-decoder", 1), ("encoder-decoder", 8), ("encoder", 1), ("encoder", 3), ("decoder", 1), ("decoder", 7)]


@pytest.mark.parametrize("kind, seed", CALM)
def test_balanced_models_say_what_float32_says(kind, seed, tmp_path):
    config, module = made(kind, seed)
    exact, even = tmp_path / "exact", tmp_path / "even"
    found = peaks(pack(module, config, exact))
    assert all((peak_K > 0).any() for name, peak_K in found.items() if "qkv" in name)
    pack(module, config, even, "int8", found)
    assert cosine(exact, even) > 0.97
    # A row's result depends on no other, and on no team.
    one, two = NativeModel.open(even, threads=1), NativeModel.open(even, threads=3)
    sources = np.random.default_rng(seed).integers(3, 9, (11, 7)).tolist()
    if kind == "encoder":
        np.testing.assert_array_equal(one.encode(sources[3:4])[0], two.encode(sources)[3])
    else:
        told = two.start(sources).step(np.full((11, 2), 4))
        np.testing.assert_array_equal(one.start(sources[3:4]).step(np.full((1, 2), 4))[0], told[3])


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_with_outliers_balanced_models_stay_closer(kind, tmp_path):
    exact, plain, even, likeness = tmp_path / "exact", tmp_path / "plain", tmp_path / "even", []
    for seed in range(10):
        config, module = made(kind, seed, outliers=6)
        found = peaks(pack(module, config, exact))
        pack(module, config, plain, "int8")
        pack(module, config, even, "int8", found)
        likeness.append((cosine(exact, plain), cosine(exact, even)))
    was, now = np.mean(likeness, 0)
    assert now > was + 0.05


def test_packing_balances_where_plain_int8_is_not_faithful(tmp_path):
    taken = set()
    for seed in range(10):
        config, module = made("encoder", seed, outliers=6)
        exact, plain, file = tmp_path / "exact", tmp_path / "plain", tmp_path / "auto"
        pack(module, config, exact)
        pack(module, config, plain, "int8")
        pack_model(config, weights_of(module), "auto", file, "test")
        header = packed_format.read(file)[0]
        extras = header["model"]["encoder"]["layers"][0]["qkv"].get("extras", 0)
        if cosine(exact, plain) >= FAITHFUL:
            assert (header["precision"], extras) == ("int8", 0)
        elif header["precision"] == "int8":
            assert extras == EXTRAS and cosine(exact, file) >= FAITHFUL
        taken.add((header["precision"], extras))
    assert ("int8", EXTRAS) in taken, taken

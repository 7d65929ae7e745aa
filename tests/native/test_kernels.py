"""Every kernel of every instruction set that runs here, against plain numpy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glassformer.runtime import library
from glassformer.runtime.arrays import PANEL, to_bf16
from glassformer.runtime.support import ACTIVATIONS
from tests.native.table import KernelSet, Matrix, aligned

SEEDS = range(6)
KINDS = ["fp32", "bf16", "int8"]


@pytest.fixture(scope="module")
def sets(native_library) -> dict[str, KernelSet]:
    found = {name: KernelSet(name) for name in library.kernel_sets()}
    assert "portable" in found
    return found


@pytest.fixture
def each(sets):
    """Runs a check in every set, and says in which it failed."""

    def run(check) -> None:
        for name, kernels in sets.items():
            try:
                check(kernels)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None

    return run


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def floats(generator: np.random.Generator, *shape: int, spread: float = 1.0) -> np.ndarray:
    return aligned((generator.standard_normal(shape) * spread).astype(np.float32))


def widened(halves: np.ndarray) -> np.ndarray:
    """bfloat16 bits as float64."""
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def nearest_bf16(x: np.ndarray) -> np.ndarray:
    """To nearest, ties to even, by trying both neighbours (as float64)."""
    low = widened((x.view(np.uint32) >> 16).astype(np.uint16))
    high = widened((x.view(np.uint32) >> 16).astype(np.uint16) + np.uint16(1))
    below, above = np.abs(x - low), np.abs(high - x)
    even = (x.view(np.uint32) >> 16) % 2 == 0
    return np.where((below < above) | ((below == above) & even), low, high)


# --- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_prepared_rows_are_the_nearest_numbers_of_their_type(each, seed):
    r = rng(1, seed)
    rows, k, slack = int(r.integers(1, 6)), PANEL * int(r.integers(1, 20)), PANEL * int(r.integers(0, 3))
    x = floats(r, rows, k + slack, spread=10.0 ** r.integers(-6, 6))

    def check(kernels):
        assert np.array_equal(kernels.prepare("fp32", x, k)[0], x[:, :k])
        halves, _ = kernels.prepare("bf16", x, k)
        assert np.array_equal(widened(halves), nearest_bf16(x[:, :k].copy()))
        bytes_, scales = kernels.prepare("int8", x, k)
        assert np.allclose(scales, np.abs(x[:, :k]).max(1) / 127, rtol=1e-6, atol=0)
        q = signed(kernels, bytes_)
        assert np.abs(q - x[:, :k] / scales[:, None].astype(np.float64)).max() < 0.5001
        assert (np.abs(q).max(1) == 127).all()

    each(check)


def offset(kernels: KernelSet) -> int:
    """What a set adds to a quantised input, as it holds a zero."""
    zero, _ = kernels.prepare("int8", np.zeros((1, PANEL), np.float32), PANEL)
    return int(zero[0, 0])


def signed(kernels: KernelSet, inputs: np.ndarray) -> np.ndarray:
    return inputs.astype(np.uint8).view(np.int8).astype(np.int64) if offset(kernels) == 0 else inputs.astype(int) - 128


def test_int8_ties_go_to_even_and_rows_without_a_size_are_zero(each):
    # 127 makes the scale 1, so that the halves between lie exactly between two integers.
    ties = np.zeros((4, 16), np.float32)
    ties[0] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5, 63.5, 64.5, 0, -0.0, 1, -1, -127]
    ties[2] = 1e-36
    ties[3, 5] = np.float32(1e-45)

    def check(kernels):
        bytes_, scales = kernels.prepare("int8", ties, 16)
        assert signed(kernels, bytes_)[0].tolist() == np.rint(ties[0]).tolist()
        assert (signed(kernels, bytes_)[1:] == 0).all() and scales[1] == 0 and np.isfinite(scales).all()

    each(check)


def test_bf16_ties_go_to_even_and_infinity_stays(each):
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF808000, 0xBF818000, 0, 0x80000000], np.uint32)
    bits = np.concatenate(
        [bits, np.array([0x7F800000, 0xFF800000, 1, 0x7FFF, 0x8000, 0x8001, 0x7F7F0000, 9], np.uint32)]
    )
    wanted = [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0xBF80, 0xBF82, 0, 0x8000, 0x7F80, 0xFF80, 0, 0, 0, 1, 0x7F7F, 0]
    x = aligned(bits.view(np.float32)[None])
    each(lambda kernels: _equal(kernels.prepare("bf16", x, 16)[0][0], wanted))
    assert to_bf16(x[0]).tolist() == wanted
    nan = aligned(np.full((1, 16), np.nan, np.float32))
    each(lambda kernels: _equal(np.isnan(widened(kernels.prepare("bf16", nan, 16)[0])), True))


def _equal(actual, expected) -> None:
    assert np.array_equal(actual, np.broadcast_to(expected, np.shape(actual))), (actual, expected)


@pytest.mark.parametrize("place", [0, 7, 15, 16, 47])
def test_a_nan_or_an_infinity_among_the_inputs_reaches_every_output(each, place):
    r = rng(2, place)
    x = floats(r, 2, 48)
    x[1, place] = np.nan if place else np.inf

    def check(kernels):
        for kind in KINDS:
            y = kernels.product(matrix(r, kind, 32, 48)[0], kernels.prepare(kind, x, 48))
            assert np.isfinite(y[0]).all(), kind
            assert not np.isfinite(y[1]).any(), kind

    each(check)


# --- products --------------------------------------------------------------------------------------------------------


def matrix(r: np.random.Generator, kind: str, n: int, k: int) -> tuple[Matrix, np.ndarray, np.ndarray]:
    """A random one, with its values and its bias in float64."""
    bias = floats(r, n)
    if kind == "int8":
        q = r.integers(-127, 128, (n, k)).astype(np.int8)
        scale = r.uniform(1e-3, 2e-3, n).astype(np.float32)
        return Matrix(kind, q, bias, scale), q * scale[:, None].astype(np.float64), bias.astype(np.float64)
    weight = floats(r, n, k, spread=0.3)
    if kind == "fp32":
        return Matrix(kind, weight, bias), weight.astype(np.float64), bias.astype(np.float64)
    halves = to_bf16(weight)
    return Matrix(kind, halves, bias), widened(halves), bias.astype(np.float64)


def values_of(kernels: KernelSet, kind: str, prepared: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """What prepared inputs stand for, float64."""
    inputs, scales = prepared
    if kind == "int8":
        return signed(kernels, inputs) * scales[:, None].astype(np.float64)
    return widened(inputs) if kind == "bf16" else inputs.astype(np.float64)


ACTIVE = {
    0: lambda x: x,
    ACTIVATIONS["relu"]: lambda x: np.maximum(x, 0),
    ACTIVATIONS["gelu"]: lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    ACTIVATIONS["gelu-tanh"]: lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    ACTIVATIONS["silu"]: lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [*range(1, 21), 37])
def test_a_product_is_the_product(each, kind, rows):
    r = rng(3, rows, len(kind))
    n, k = PANEL * int(r.integers(1, 12)), PANEL * int(r.choice([1, 2, 3, 7, 33]))
    linear, weight, bias = matrix(r, kind, n, k)
    x = floats(r, rows, k, spread=2.0)

    def check(kernels):
        prepared = kernels.prepare(kind, x, k)
        exact = values_of(kernels, kind, prepared) @ weight.T + bias
        # A sum of k products is off by at most a few times √k roundings of its largest terms.
        size = np.abs(values_of(kernels, kind, prepared)) @ np.abs(weight).T + np.abs(bias)
        for activation, function in ACTIVE.items():
            y = kernels.product(linear, prepared, activation=activation)
            assert (np.abs(y - function(exact)) <= 4e-7 * size * math.sqrt(k) + 1e-6).all(), (kind, activation)

    each(check)


@pytest.mark.parametrize("seed", SEEDS)
def test_int8_sums_are_exact_at_the_ends_of_the_range(each, seed):
    r = rng(4, seed)
    n, k = 48, PANEL * int(r.choice([1, 4, 64, 256]))
    extremes = np.array([-127, 127, -126, 126, 1, 0])
    weight = r.choice(extremes[: 2 + seed], (n, k)).astype(np.int8)
    x = aligned(r.choice(extremes[: 2 + seed], (5, k)).astype(np.float32))
    x[:, 0] = 127  # so that the scale is 1
    linear = Matrix("int8", weight, np.zeros(n, np.float32), np.ones(n, np.float32))
    exact = x.astype(np.int64) @ weight.T.astype(np.int64)
    assert np.abs(exact).max() < 2**24  # so that float32 holds them
    each(lambda kernels: _equal(kernels.product(linear, kernels.prepare("int8", x, k)), exact))


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 300])
def test_int8_sums_are_exact_whichever_rows_have_a_negative_input(each, rows):
    # Where none has one, as behind a ReLU, a set may compute otherwise; and many rows come in chunks.
    r = rng(16, rows)
    n, k = PANEL * int(r.integers(1, 8)), PANEL * int(r.choice([1, 5, 40]))
    weight = r.integers(-127, 128, (n, k)).astype(np.int8)
    x = r.integers(0, 128, (rows, k)).astype(np.float32)
    x[:, 0] = 127  # so that the scale is 1
    lowest = np.flatnonzero(r.random(rows) < 0.3)
    x[lowest, r.integers(1, k, len(lowest))] = r.choice([-1, -127], len(lowest))
    linear = Matrix("int8", weight, np.zeros(n, np.float32), np.ones(n, np.float32))
    exact = x.astype(np.int64) @ weight.T.astype(np.int64)
    each(lambda kernels: _equal(kernels.product(linear, kernels.prepare("int8", aligned(x), k)), exact))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rows_bits_depend_on_no_other_row_and_on_no_range_of_panels(each, kind, seed):
    r = rng(5, seed)
    rows, n, k = 23, PANEL * int(r.integers(5, 14)), PANEL * int(r.integers(1, 20))
    linear, _, _ = matrix(r, kind, n, k)
    x, activation = floats(r, rows, k), int(r.integers(0, 5))

    def check(kernels):
        whole = kernels.product(linear, kernels.prepare(kind, x, k), activation=activation)
        for count in range(1, rows + 1):
            chosen = r.permutation(rows)[:count]
            first, last = sorted(r.choice(n // PANEL + 1, 2, replace=False).tolist())
            some = aligned(x[chosen])
            y = kernels.product(linear, kernels.prepare(kind, some, k), (first, last), activation, slack=PANEL)
            inside = slice(first * PANEL, last * PANEL)
            assert np.array_equal(y[:, inside].view(np.uint32), whole[chosen][:, inside].view(np.uint32)), count
            assert np.isnan(np.delete(y, np.r_[inside], 1)).all(), "wrote beside its panels"

    each(check)


def test_activations_keep_to_their_ends(each):
    x = aligned(np.array([-1e4, -100, -30, -9, -5, -1e-3, -0.0, 0, 1e-3, 5, 9, 30, 100, 1e4, 1e30, -1e30], np.float32))
    identity = Matrix("fp32", np.eye(16, dtype=np.float32), np.zeros(16, np.float32))
    # Each of the numbers alone in a row: 0 · 1e30 is 0, but not every sum of it.
    rows = aligned(np.diag(x))

    def check(kernels):
        for activation, function in ACTIVE.items():
            y = np.diag(kernels.product(identity, kernels.prepare("fp32", rows, 16), activation=activation))
            with np.errstate(over="ignore"):
                error = np.abs(y - function(x.astype(np.float64)))
            assert (error <= 4e-7 * np.abs(x) + 1e-6).all(), (activation, y)

    each(check)


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_layer_norm(each, seed):
    r = rng(6, seed)
    d = int(r.choice([1, 2, 15, 16, 17, 250, 1023]))
    width, eps = -(-d // PANEL) * PANEL, float(r.choice([1e-6, 1e-2]))
    x, gain, bias = (aligned(np.pad(floats(r, d, spread=s), (0, width - d))) for s in (3.0, 1.0, 1.0))
    x[:d] += 10 * r.standard_normal()
    plain = x[:d].astype(np.float64)
    exact = (plain - plain.mean()) / np.sqrt(plain.var() + eps) * gain[:d] + bias[:d]
    root = plain / np.sqrt((plain**2).mean() + eps) * gain[:d] + bias[:d]

    def check(kernels):
        y = kernels.layer_norm(x, d, gain, bias, eps)
        assert np.allclose(y[:d], exact, rtol=1e-4, atol=1e-4) and (y[d:] == 0).all()
        y_rms = kernels.layer_norm(x, d, gain, bias, eps, rms=True)
        assert np.allclose(y_rms[:d], root, rtol=1e-5, atol=1e-5) and (y_rms[d:] == 0).all()
        again = aligned(x)
        norm = library.Norm(gain=gain.ctypes.data, bias=bias.ctypes.data, eps=eps)
        kernels.table.layer_norm(again.ctypes.data, d, width, norm, again.ctypes.data)
        _equal(again, y)  # in place, too

    each(check)


@pytest.mark.parametrize("panels", [1, 2, 5])
def test_add(each, panels):
    r = rng(7, panels)
    x, y = floats(r, PANEL * panels + 16), floats(r, PANEL * panels)

    def check(kernels):
        sums = aligned(x)
        kernels.add(sums, y)
        _equal(sums[: len(y)], x[: len(y)] + y)
        _equal(sums[len(y) :], x[len(y) :])

    each(check)


@pytest.mark.parametrize("half", [1, 4, 8, 13, 32])
def test_turn_is_a_product_of_complex_numbers(each, half):
    r = rng(14, half)
    x, angles = floats(r, 2 * half + 5), r.uniform(-50, 50, half)
    turned = (x[:half] + 1j * x[half : 2 * half]) * np.exp(1j * angles)
    exact = np.concatenate([turned.real, turned.imag, x[2 * half :]])
    each(lambda kernels: _close(kernels.turn(x, angles), exact))


@pytest.mark.parametrize("activation", range(5))
def test_gate(each, activation):
    x = floats(rng(15, activation), 2 * 80, spread=3.0)
    exact = np.concatenate([ACTIVE[activation](x[:80].astype(np.float64)) * x[80:], x[80:]])
    each(lambda kernels: _close(kernels.gate(x, activation), exact))


def _close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(actual - expected).max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_embed_gives_the_row(each, kind):
    r = rng(8, len(kind))
    table, weight, _ = matrix(r, kind, 48, 80)

    def check(kernels):
        for id_ in (0, 1, 15, 16, 30, 47):
            assert np.allclose(kernels.embed(table, id_, 2.5), weight[id_] * 2.5, rtol=1e-6)

    each(check)


# --- attention -------------------------------------------------------------------------------------------------------


def attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    scores = q.astype(np.float64) @ keys.T.astype(np.float64)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ values.astype(np.float64)


@pytest.mark.parametrize("s", [1, 2, 15, 16, 17, 33, 100, 1000])
def test_attention_and_that_over_scattered_positions_are_attention(each, s):
    r = rng(9, s)
    size, stride = PANEL * int(r.choice([1, 2, 3, 4, 5, 8])), PANEL * 11
    n = int(r.integers(1, 12))
    q, keys, values = (floats(r, rows, stride, spread=w) for rows, w in ((n, 0.7), (s, 0.7), (s, 1.0)))
    exact = attention(q[:, :size], keys[:, :size], values[:, :size])
    # Each position's key and value lie together, somewhere.
    past = [np.concatenate([keys[j], values[j]]) for j in range(s)]
    past = [aligned(each_) for each_ in past]

    def check(kernels):
        transposed = kernels.transpose_keys(keys, size)
        wanted = np.pad(keys[:, :size], ((0, -s % PANEL), (0, 0))).reshape(-1, PANEL, size).transpose(0, 2, 1)
        _equal(transposed, wanted)
        together = kernels.attend(q, keys, values, size, slack=PANEL)
        assert np.isnan(together[:, size:]).all()
        assert np.allclose(together[:, :size], exact, atol=2e-5), np.abs(together[:, :size] - exact).max()
        for i in range(n):
            alone = kernels.attend(aligned(q[i : i + 1]), keys, values, size)[0]
            _equal(alone.view(np.uint32), together[i, :size].copy().view(np.uint32))
            scattered = kernels.attend_scattered(aligned(q[i, :size]), past, 0, stride)
            assert np.allclose(scattered, exact[i], atol=2e-5)

    each(check)


@pytest.mark.parametrize("rows", range(1, 14))
def test_an_attended_rows_bits_depend_on_no_other_row(each, rows):
    r = rng(10, rows)
    s, size = int(r.integers(1, 60)), PANEL * int(r.integers(1, 6))
    q, keys, values = floats(r, 13, size), floats(r, s, size), floats(r, s, size)

    def check(kernels):
        whole = kernels.attend(q, keys, values, size)
        chosen = r.permutation(13)[:rows]
        _equal(kernels.attend(aligned(q[chosen]), keys, values, size).view(np.uint32), whole[chosen].view(np.uint32))

    each(check)


def test_attention_with_huge_scores_picks_its_key_and_a_query_without_a_key_gets_zeros(each):
    q = aligned(np.full((3, 16), 100.0, np.float32))
    keys = aligned(np.arange(5, dtype=np.float32)[:, None] * np.ones(16, np.float32))
    values = floats(rng(11), 5, 16)
    each(lambda kernels: _equal(kernels.attend(q, keys, values, 16), values[4]))
    each(lambda kernels: _equal(kernels.attend(-q, keys, values, 16), values[0]))
    each(lambda kernels: _equal(kernels.attend(q, keys[:0], values[:0], 16), 0))


# --- choice ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_exponential_sum(each, seed):
    r = rng(12, seed)
    logits = floats(r, PANEL * int(r.integers(1, 40)), spread=float(r.choice([0.1, 3, 40])))
    logits[r.random(len(logits)) < 0.2] = -np.inf
    largest = logits.max()

    def check(kernels):
        most, total = kernels.exponential_sum(logits)
        assert most == largest
        exact = np.exp(logits.astype(np.float64) - largest).sum()
        assert abs(total - exact) <= 1e-5 * exact

    each(check)


def test_exponential_sum_of_nothing_of_nan_and_of_infinity(each):
    nothing = np.full(32, -np.inf, np.float32)
    each(lambda kernels: _equal(kernels.exponential_sum(nothing), (-np.inf, 0.0)))
    for place in range(32):
        for rest in (0.0, -np.inf):
            x = np.full(32, rest, np.float32)
            x[place] = np.nan
            each(lambda kernels, x=x: _equal(np.isnan(kernels.exponential_sum(x)[1]), True))
    infinite = np.zeros(32, np.float32)
    infinite[3] = np.inf
    each(lambda kernels: _equal(kernels.exponential_sum(infinite)[0], np.inf))


@pytest.mark.parametrize("seed", range(20))
def test_top_keeps_the_best_and_of_equals_the_lowest_id(each, seed):
    r = rng(13, seed)
    chunks = [floats(r, PANEL * int(r.integers(1, 9))) for _ in range(int(r.integers(1, 4)))]
    if seed % 2:  # many ties
        chunks = [aligned(np.round(chunk)) for chunk in chunks]
    chunks[0][r.random(len(chunks[0])) < 0.3] = -np.inf
    count = int(r.choice([1, 2, 5, 20, 512]))
    ranked = sorted((-x, id_) for id_, x in enumerate(np.concatenate(chunks).tolist()) if x > -np.inf)
    wanted = [(-x, id_) for x, id_ in ranked[:count]]
    each(lambda kernels: _same(kernels.top(chunks, count), wanted))


def _same(actual: list, expected: list) -> None:
    assert actual == expected

"""`glassformer bench`: its figures hang together, and its limits are limits. No test here asserts a time."""

from __future__ import annotations

import json
import random
import re

import pytest
import torch

from glassformer.cli import bench
from glassformer.cli import main as shell
from glassformer.families import build
from glassformer.models.describe import cost
from glassformer.runtime import limits
from glassformer.runtime.library import kernel_sets


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(bench, "CALLS", 2)
    monkeypatch.setattr(bench, "SECONDS", 0.0)
    monkeypatch.setattr(limits, "_SECONDS", 0.001)


@pytest.mark.parametrize("engine", ["native", "model"])
def test_every_figure_follows_from_the_time_of_a_sentence(quick, capsys, engine):
    assert shell.main(["bench", "translate", "--engine", engine, "--threads", "1", "--beam", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["engine"], answer["threads"]) == (engine, 1)
    assert answer["precision"] == {"native": "int8", "model": "fp32"}[engine]
    assert [(row["sentences"], row["beam_size"]) for row in answer["rows"]] == [(1, 1), (1, 2), (32, 1), (32, 2)]
    for row in answer["rows"]:
        assert row["sentences_per_second"] == pytest.approx(1000 / row["ms_per_sentence"])
        assert row["target_tokens_per_second"] == pytest.approx(20 * row["sentences_per_second"])
        assert row["share_of_limit"] > 0


def test_the_table_is_one_screen_of_plain_text(quick, capsys):
    assert shell.main(["bench", "translate", "-b", "1"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "" and "\x1b" not in out and max(map(len, lines)) <= 100 and len(lines) == 8
    assert "zh-en: native engine" in lines[0] and "1 sentence, greedy" in lines[4] and "limit:" in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train"], "bench train: cannot be measured yet; what can is translate"),
        (["translate", "--beam", "0"], "--beam-size 0: must be from 1 to 512"),
        (["translate", "--threads", "0"], "--threads 0: must be 1 or more"),
        (["translate", "-m", "nowhere"], "no model 'nowhere'"),
    ],
)
def test_a_mistake_is_one_line(quick, capsys, arguments, says):
    assert shell.main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1


def test_the_least_time_is_that_of_the_slower_of_reading_and_multiplying():
    model = build("transformer-tiny", vocab_size=300)
    spent = cost(model, 0)  # no keys: matrices alone
    sizes = {name: p.numel() for name, p in model.named_parameters() if p.dim() == 2}
    # The keys and values of what was read are projected once a sentence, too.
    encoder = sum(n for name, n in sizes.items() if re.match(r"encoder\.|.*cross\.(key|value)", name))
    decoder = sum(sizes.values()) - encoder  # its own matrices, and the embedding that is the output layer
    rng = random.Random(1)
    for _ in range(20):
        rows, beam, width = rng.randrange(1, 40), rng.randrange(1, 6), rng.choice([1, 2, 4])
        rate = rng.uniform(1e6, 1e12)
        endless = {"bytes_per_weight": width, "bytes_read_per_second": rate, "flops_per_second": float("inf")}
        assert bench.least_seconds(spent, endless, rows, beam) == pytest.approx(width * (encoder + 20 * decoder) / rate)
        endless = {"bytes_per_weight": width, "bytes_read_per_second": float("inf"), "flops_per_second": rate}
        flops = 2 * rows * (20 * encoder + 20 * beam * decoder)
        assert bench.least_seconds(spent, endless, rows, beam) == pytest.approx(flops / rate)
        both = {"bytes_per_weight": width, "bytes_read_per_second": rate, "flops_per_second": rate}
        assert bench.least_seconds(spent, both, rows, beam) * (1 + 1e-9) >= flops / rate


def test_a_limit_counts_the_work_of_every_thread(monkeypatch):
    """With a clock of one tick a try, a rate is the work of one call of all threads times the calls of a try."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(limits.time, "perf_counter", lambda: float(next(ticks)))
    for threads in (1, 2, 3):
        assert limits.read_rate(3 << 20, threads) == pytest.approx(3 << 20, rel=1e-3)
        for precision in limits.WIDTH:
            for kernels in kernel_sets():
                assert limits.product_rate(precision, threads, kernels) == 2 * 64 * 1024 * 512 * threads


def test_the_kernels_table_is_mirrored():
    """Its name is where the mirror looks for it, and its product multiplies."""
    import ctypes

    for kernels in kernel_sets():
        table = ctypes.cast(
            limits.native.library().gf_kernels(kernels.encode()), ctypes.POINTER(limits._Kernels)
        ).contents
        assert table.name.decode() == kernels
    weight_NK, x_RK = torch.randn(512, 1024), torch.randn(64, 1024)
    panels = weight_NK.view(32, 16, 1024).transpose(1, 2).contiguous()
    y_RN, bias_N = torch.zeros(64, 512), torch.zeros(512)
    linear = limits.native.Linear(weight=panels.data_ptr(), bias=bias_N.data_ptr(), n=512, k=1024)
    table.product(linear, x_RK.data_ptr(), None, 64, 0, 32, y_RN.data_ptr(), 512, 0)
    torch.testing.assert_close(y_RN, x_RK @ weight_NK.T, rtol=1e-4, atol=1e-3)

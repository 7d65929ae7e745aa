"""benchmarks/length.py: exponents, crossings and the table, and one short run of it."""

from __future__ import annotations

import pytest

from benchmarks import length
from benchmarks.length import LENGTHS, MIXERS, Row, crossing, main, run, slope, table
from benchmarks.length_plot import STYLES
from glassformer.nn.block import MIXERS as PARTS


def rows(mixer: str, power: float, factor: float) -> list[Row]:
    figures = [(n, factor * n**power) for n in LENGTHS]
    train = [Row(mixer=mixer, what="train", tokens=n, seconds=y, bytes=int(1e6 * y)) for n, y in figures]
    return [*train, Row(mixer=mixer, what="decode", tokens=100, seconds=0.001, bytes=2048)]


def test_the_exponent_of_a_power_is_found() -> None:
    for power in (0.0, 1.0, 2.5):
        assert slope([(n, 3.0 * n**power) for n in LENGTHS]) == pytest.approx(power)


def test_the_crossing_is_the_first_length_from_which_one_stays_faster() -> None:
    both = rows("linear", 1, 1000.0) + rows("quadratic", 2, 1.0)
    assert crossing(both, "linear", "quadratic") == 1024
    assert crossing(both, "quadratic", "linear") is None


def test_the_table_tells_the_longest_text_and_both_exponents() -> None:
    told = table(rows("linear", 1, 0.001))
    assert len(told) == 3 and "| 65,536 |" in told[2] and told[2].count("n^1.0") == 2 and "2 → 2" in told[2]


def test_every_mixer_is_measured_and_has_a_style() -> None:
    assert set(STYLES) == set(MIXERS)
    kinds = {mixer.get("type", "attention") for mixer in MIXERS.values()}
    assert kinds == {config.model_fields["type"].default for config in PARTS}


def test_a_short_run_measures_training_and_decoding(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("window", "attention, tiled", "sliding"):
        told = run(name, [256, 512], [10, 20], 60.0, 2**34)
        assert [row["tokens"] for row in told if row["what"] == "train"] == [256, 512]
        assert [row["tokens"] for row in told if row["what"] == "decode"] == ([10, 20] if name == "window" else [])
        assert all(row["seconds"] > 0 for row in told)
    with pytest.raises(SystemExit):
        main(["--mixers", "transformer"])
    assert "no mixer 'transformer'" in capsys.readouterr().err


def test_a_length_that_would_take_too_long_is_not_begun() -> None:
    assert [row["tokens"] for row in run("lstm", LENGTHS, [], 0.0, 2**34)] == [256]
    assert length._last(rows("quadratic", 2, 1.0)[:3], "seconds") == pytest.approx(4.0)

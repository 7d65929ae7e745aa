"""What a run says while it trains, where no terminal shows the last line."""

import io
import json
import sys

import pytest

from glassformer.train import progress
from glassformer.train.config import load_config


@pytest.fixture
def said(tmp_path, monkeypatch):
    """A run of 100 steps that ends a step each so many seconds; what it said, and what it logged."""

    def run(seconds: float, *, first: int = 1) -> tuple[list[int], list[int]]:
        (tmp_path / "pairs.tsv").write_text("zh\ten\n好\tgood\n", encoding="utf-8")
        data = {"train": str(tmp_path / "pairs.tsv"), "source": "zh", "target": "en"}
        model, tokenizer = {"preset": "transformer-tiny"}, {"vocab_size": 300}
        train = {"output": str(tmp_path), "steps": 100, "warmup": 1, "log_every": 40}
        config = load_config({"model": model, "tokenizer": tokenizer, "data": data, "train": train})
        now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: now)
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        reporter = progress.Reporter(tmp_path, config, first - 1)
        for step in range(first, 101):
            now += seconds
            figures = {"step": step, "epoch": 1, "loss": 1.0, "gradient_norm": 1.0, "lr": 1e-3, "seconds_left": 9}
            reporter.step(figures, tokens=10, seconds=seconds)
        reporter.close([], "done")
        lines = sys.stderr.getvalue().splitlines()
        logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text("utf-8").splitlines()]
        return [int(line.split()[1].split("/")[0]) for line in lines], [entry["step"] for entry in logged]

    return run


def test_the_first_step_tells_at_once_that_a_run_is_on_its_way(said):
    assert said(0.1) == ([1, 40, 80], [40, 80])


def test_so_does_the_first_after_a_resume(said):
    assert said(0.1, first=57)[0] == [57, 80]


def test_no_slow_run_is_silent_for_long(said):
    shown, logged = said(8.0)
    assert max(after - before for before, after in zip(shown, shown[1:], strict=False)) * 8.0 <= progress.QUIET + 8.0
    assert logged == [40, 80]

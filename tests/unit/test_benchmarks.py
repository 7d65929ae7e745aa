"""The benchmarks' machinery: order, ratios, and what is counted. No test here asserts a time."""

from __future__ import annotations

import json
import multiprocessing

import pytest
import torch

from benchmarks import run
from benchmarks.measure import System, Timing
from benchmarks.shapes import SHAPES, training_flops
from benchmarks.train import one_batch
from glassformer.families import build
from glassformer.models.describe import cost

FAKE = '''
"""A question whose systems write down that they were called."""
import os, time
from functools import partial
from pathlib import Path
from benchmarks.measure import Question, System

LOG = Path(__file__).with_suffix(".log")

def logged(setting, *, name, seconds):
    def call():
        time.sleep(seconds)
        with LOG.open("a") as log:
            log.write(f"{name} {os.getpid()} {os.environ['OMP_NUM_THREADS']}\\n")
    return call

def absent(setting):
    import a_package_that_nobody_has

def broken(setting):
    def call():
        raise ValueError("no such luck")
    return call

def fails_later(setting):
    calls = iter(range(4))
    return lambda: next(calls)

def systems(threads):
    system = lambda name, seconds, **more: System(name, partial(logged, name=name, seconds=seconds), **more)
    return [
        system("ours", 0.001, threads=threads),
        system("theirs", 0.05, threads=7, peer=True),
        System("absent", absent, peer=True),
        System("broken", broken, peer=True),
        System("fails later", fails_later),
    ]

QUESTION = Question(("tiny", "huge"), ("tiny",), systems, lambda setting: {"things": 10.0})
'''


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "fake_question.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_run_takes_turns_leaves_out_what_fails_and_writes_every_figure_down(fake, capsys):
    output = fake / "results" / "all.jsonl"
    arguments = ["fake_question", "--rounds", "3", "--round-seconds", "0", "--threads", "3", "--output", str(output)]
    assert run.main(arguments) == 0
    printed = capsys.readouterr()

    calls = [line.split() for line in (fake / "fake_question.log").read_text().splitlines()]
    turns = [name for name, _, _ in calls[-6:]]
    assert turns == ["ours", "theirs"] * 3
    processes = {name: {pid for n, pid, _ in calls if n == name} for name in ("ours", "theirs")}
    assert all(len(pids) == 1 for pids in processes.values())
    assert processes["ours"].isdisjoint(processes["theirs"])
    assert {(name, threads) for name, _, threads in calls} == {("ours", "3"), ("theirs", "7")}
    assert not multiprocessing.active_children()

    assert "absent: left out, the package a_package_that_nobody_has is not installed" in printed.err
    assert "broken: left out, ValueError: no such luck" in printed.err
    assert "fails later: left out, StopIteration" in printed.err
    assert "| ours | 1 × 3 |" in printed.out
    assert "| theirs (peer) | 1 × 7 |" in printed.out

    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["system"] for row in rows] == ["ours", "theirs"]
    for row in rows:
        assert len(row["rounds"]) == 3
        assert row["seconds"] == sorted(row["rounds"])[1]
        assert 1 < row["peak_memory_mib"] < 1000
        assert row["rates"]["things"] == pytest.approx(10.0 / row["seconds"])
    assert rows[0]["ratio"] == pytest.approx(rows[1]["seconds"] / rows[0]["seconds"])


def test_the_ratio_is_against_the_fastest_peer():
    def timing(peer: bool, *seconds: float) -> Timing:
        return Timing(System("any", one_batch, peer=peer), seconds, {}, 0.0)

    ours, slow, fast = timing(False, 9.0, 2.0, 1.0), timing(True, 8.0), timing(True, 5.0, 5.0, 99.0)
    assert run.ratio(ours, [slow, ours, fast]) == 2.5
    assert run.ratio(fast, [slow, ours, fast]) == 1.0
    assert run.ratio(ours, [ours]) is None


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["speed"], "question 'speed': cannot import speed; the questions are train, startup, gemm"),
        (["fake_question", "--setting", "big"], "--setting big: expected one of tiny, huge"),
        (["fake_question", "--systems", "us"], "--systems us: expected one of ours, theirs"),
        (["fake_question", "--rounds", "0"], "expected a whole number from 1 up"),
        (["fake_question", "--output", str(run.REPOSITORY / "docs/x.jsonl")], "lies inside the repository"),
    ],
)
def test_a_mistake_is_one_line(fake, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        run.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("size", SHAPES)
def test_the_counted_arithmetic_is_that_of_the_model(size):
    shape = SHAPES[size]
    model = build(shape.preset, device="meta", vocab_size=shape.vocab_size)
    each = cost(model, context=shape.length)
    forward = (each.flops_per_source + each.flops_per_target) * shape.sentences * shape.length
    assert training_flops(shape) == 3 * forward


def test_our_step_trains_on_the_tokens_it_is_credited_with():
    shape = SHAPES["tiny"]
    trainer = one_batch("tiny", "fp32")
    (rows,) = trainer._batches
    batch = trainer._batch(rows)
    assert batch.source_BS.shape == batch.labels_BT.shape == (shape.sentences, shape.length)
    assert batch.source_mask_BS is None
    assert batch.n_labels == shape.sentences * shape.length
    assert trainer.model.config.embed.vocab_size == shape.vocab_size

    # Matrices only: a bias of the keys has no gradient, since it shifts every score of a query alike.
    matrices = [parameter for parameter in trainer.model.parameters() if parameter.dim() > 1]
    before = [matrix.detach().clone() for matrix in matrices]
    trainer._step([rows])
    assert not any(torch.equal(a, b) for a, b in zip(before, matrices, strict=True))

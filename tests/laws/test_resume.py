"""The laws of stopping: a run that was killed and resumed ends as one that never stopped, and nothing is lost."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from glassformer.errors import UserError
from glassformer.store import load_model
from glassformer.train import checkpoint, loop
from glassformer.train.checkpoint import Checkpoints, read_checkpoint
from glassformer.train.loop import Outcome, Trainer, train
from tests.digits import training


def hard(folder: Path, **settings):
    """Everything that draws random numbers is on; 120 pairs both ways make an epoch of about ten batches."""
    return training(
        folder, **{"batch_tokens": 700, "bpe_dropout": 0.2, "bpe_dropout_until": 0.6, "save_every": 5, **settings}
    )


def files(directory: Path) -> dict[str, bytes]:
    """What has to be equal: weights, optimizer, random states, config and tokenizer."""
    names = ["model.safetensors", "config.json", "tokenizer.json", "training_state/state.safetensors"]
    return {name: (directory / name).read_bytes() for name in names}


def position(directory: Path) -> dict:
    progress = json.loads((directory / "training_state" / "progress.json").read_text())
    timed = ("seconds", "history")
    scores = [{k: v for k, v in h.items() if k not in ("minutes", "train_nll")} for h in progress["history"]]
    return {**{k: v for k, v in progress.items() if k not in timed}, "history": scores}


def assert_same_end(one: Path, other: Path) -> None:
    for name in ("last", "best"):
        assert files(one / name) == files(other / name)
        assert position(one / name) == position(other / name)


def stop_after(monkeypatch, step: int, how) -> None:
    """Makes a run in this process end after so many steps."""
    honest = Trainer._step

    def counting(self, batches):
        stops = honest(self, batches)
        return how() if self.progress.step == step else stops

    monkeypatch.setattr(Trainer, "_step", counting)


class Killed(BaseException):
    """As abrupt as a kill can be inside one process: nothing after it runs."""


def kill() -> bool:
    raise Killed


def train_until_killed(config) -> None:
    with pytest.raises(Killed):
        train(config)
    gc.collect()  # as a process's end would, lets go of the run folder


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_run_resumes_in_the_middle_of_an_epoch_and_ends_bit_equal(tmp_path, monkeypatch, optimizer):
    whole = train(hard(tmp_path / "whole", steps=16, optimizer=optimizer))
    assert whole == Outcome(tmp_path / "whole" / "run", 16, interrupted=False)
    with monkeypatch.context() as patch:
        stop_after(patch, 8, kill)
        train_until_killed(hard(tmp_path / "killed", steps=16, optimizer=optimizer))
    at = position(tmp_path / "killed" / "run" / "step-5")
    assert at["step"] == 5 and at["epoch"] == 0 and at["batch"] == 5
    assert train(hard(tmp_path / "killed", steps=16, optimizer=optimizer), resume=True).step == 16
    assert position(whole.run / "last")["epoch"] == 1  # segmented anew, without dropout
    assert_same_end(whole.run, tmp_path / "killed" / "run")
    logged = [json.loads(line) for line in (tmp_path / "killed" / "run" / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in logged if entry["kind"] == "dev"] == [4, 8, 12, 16]


def test_ctrl_c_saves_and_the_resumed_run_ends_bit_equal(tmp_path, monkeypatch, capsys):
    whole = train(hard(tmp_path / "whole", steps=9))
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        honest = Trainer._step
        patch.setattr(
            Trainer,
            "_step",
            lambda self, batches: (
                (self.progress.step == 2 and os.kill(os.getpid(), signal.SIGINT)) or honest(self, batches)
            ),
        )
        stopped = train(hard(tmp_path / "stopped", steps=9))
    assert stopped.interrupted and stopped.step == 3
    assert "stopped at step 3; saved" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is handler
    train(hard(tmp_path / "stopped", steps=9), resume=True)
    assert_same_end(whole.run, stopped.run)


def test_a_different_seed_ends_elsewhere(tmp_path):
    """Without this, the equalities above could hold because nothing depends on anything."""
    ends = [train(hard(tmp_path / str(seed), steps=2, seed=seed)).run / "last" for seed in (1, 2)]
    one, other = map(files, ends)
    assert one["tokenizer.json"] == other["tokenizer.json"]
    assert one["model.safetensors"] != other["model.safetensors"]


def test_a_damaged_checkpoint_is_passed_over_to_the_same_end(tmp_path, caplog, capsys):
    whole = train(hard(tmp_path / "a", steps=10)).run
    broken = tmp_path / "b"
    config = hard(broken, steps=10)
    shutil.copytree(whole, broken / "run")
    for name in ("model.safetensors", "training_state/state.safetensors"):
        file = broken / "run" / "step-10" / name
        content = file.read_bytes()
        file.unlink()  # rather than through the link that last holds
        file.write_bytes(content[:-9])
        train(config, resume=True)
        assert "resuming from an older checkpoint" in caplog.text
        assert files(whole / "last") == files(broken / "run" / "last")
        assert files(whole / "step-10") == files(broken / "run" / "step-10")
        caplog.clear()
    for step in Checkpoints(broken / "run", 3).steps():
        (broken / "run" / f"step-{step}" / "training_state" / "progress.json").write_text("{}x")
    with pytest.raises(UserError, match=r"step-10.training_state: missing or damaged"):
        train(config, resume=True)


@pytest.mark.parametrize("fatal", range(1, 6))
def test_a_kill_at_any_rename_of_a_save_loses_nothing(tmp_path, monkeypatch, fatal, whole_run):
    folder, rename, calls = tmp_path / "killed", os.replace, []

    def dying(source, target):
        if "run" in Path(target).parts and "step-8" in os.listdir(folder / "run") + [Path(target).name]:
            calls.append((Path(source).name, Path(target).name))
            if len(calls) == fatal:
                raise Killed
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        patch.setattr(shutil, "rmtree", lambda path, **_: None if calls else None)  # a kill cleans nothing up
        train_until_killed(training(folder, steps=8, eval_lines=0))
    train(training(folder, steps=8, eval_lines=0), resume=True)
    assert_same_end(whole_run, folder / "run")
    left = {name for name in os.listdir(folder / "run") if name.startswith(".")}
    assert left == {".lock"}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    return train(training(tmp_path_factory.mktemp("whole"), steps=8, eval_lines=0)).run


def scores(monkeypatch, by_step: dict[int, float], losses: dict[int, float] | None = None) -> None:
    """Makes every evaluation of a run return a given BLEU, and a given loss, else 1."""

    class Scored(loop.DevSet):
        def loss(self, model, autocast):
            return (losses or {}).get(Scored.progress.step, 1.0)

        def scores(self, model, loss, autocast):
            return {"bleu zh-en": by_step[Scored.progress.step]}

    honest = Trainer.__init__

    def remembering(self, *args, **kwargs):
        honest(self, *args, **kwargs)
        Scored.progress = self.progress

    monkeypatch.setattr(loop, "DevSet", Scored)
    monkeypatch.setattr(Trainer, "__init__", remembering)


def test_the_newest_few_and_the_best_are_kept(tmp_path, monkeypatch):
    scores(monkeypatch, {1: 1.0, 2: 9.0, 3: 3.0, 4: 4.0, 5: 5.0, 6: 9.0})
    run = train(training(tmp_path, steps=6, eval_every=1, save_every=1, keep=2)).run
    assert Checkpoints(run, 2).steps() == [5, 6]
    assert position(run / "last")["step"] == 6
    best = position(run / "best")
    assert best["step"] == best["best_step"] == 2 and best["best"] == 9.0  # an equal later score is not better
    assert load_model(run / "best").translation.both_directions
    assert "| 2 |" in (run / "report.md").read_text()


@pytest.mark.parametrize("killed_at", [3, 5])
def test_of_equal_scores_that_of_the_lower_loss_is_the_best_over_a_resume_too(tmp_path, monkeypatch, killed_at):
    # Step 1's loss is the lowest of all, but of a worse score; those of steps 3 and 6 are no lower than the best's.
    bleu, losses = [1.0, 9.0, 9.0, 9.0, 8.0, 9.0], [0.1, 2.0, 2.5, 1.5, 0.5, 1.5]
    scores(monkeypatch, dict(enumerate(bleu, 1)), dict(enumerate(losses, 1)))
    whole, parted = (
        training(tmp_path / name, steps=6, eval_every=1, save_every=1, patience=3) for name in ("whole", "parted")
    )
    run = train(whole).run
    history = position(run / "last")["history"]
    assert [figures["step"] for figures in history if figures["best"]] == [1, 2, 4]
    assert position(run / "best")["step"] == position(run / "last")["best_step"] == 4
    assert position(run / "last")["stale"] == 2
    with monkeypatch.context() as patch:
        stop_after(patch, killed_at, kill)
        train_until_killed(parted)
    assert_same_end(train(parted, resume=True).run, run)


def test_patience_counts_over_a_resume_and_a_finished_run_says_so(tmp_path, monkeypatch, capsys):
    scores(monkeypatch, {1: 5.0, 2: 4.0, 3: 6.0, 4: 5.0, 5: 5.0, 6: 5.0, 7: 7.0})
    config = training(tmp_path, steps=7, eval_every=1, save_every=2, patience=3)
    with monkeypatch.context() as patch:
        stop_after(patch, 5, kill)
        train_until_killed(config)
    assert train(config, resume=True).step == 6
    assert "no better evaluation in 3: stopped at step 6" in capsys.readouterr().err
    before = files(tmp_path / "run" / "last")
    assert train(config, resume=True) == Outcome(tmp_path / "run", 6, interrupted=False)
    assert "finished at step 6 already; raise train.steps or train.patience" in capsys.readouterr().err
    assert files(tmp_path / "run" / "last") == before
    assert position(tmp_path / "run" / "best")["step"] == 3


def test_what_a_resumed_run_may_change_and_what_not(tmp_path, capsys):
    config = training(tmp_path, steps=2)
    train(config)
    with pytest.raises(UserError, match=r"holds a run at step 2; --resume goes on, or choose another train\.output"):
        train(config)
    with pytest.raises(UserError, match=r"model\.dropout is 0\.3, and 0\.1 does not fit the checkpoints"):
        train(config, {"model.dropout": 0.1}, resume=True)
    capsys.readouterr()
    assert train(config, {"train.steps": 3, "train.lr": 5e-4}, resume=True).step == 3
    said = capsys.readouterr().err
    assert "train.steps is now 3, was 2" in said and "train.lr is now 0.0005, was 0.001" in said
    assert "other data" not in said
    with Path(config["data"]["train"]).open("a", encoding="utf-8") as file:
        file.write("九\tnine\n")
    train(config, {"train.steps": 4}, resume=True)
    said = capsys.readouterr().err
    assert "the text of data.train was changed since step 3" in said and "other data from step 3 on" in said
    with pytest.raises(UserError, match=r"nothing to resume: it has no checkpoint; leave --resume out"):
        train(config, {"train.output": str(tmp_path / "new")}, resume=True)


def test_a_run_starts_from_another_model(tmp_path):
    first = train(training(tmp_path / "a", steps=2)).run / "last"
    config = {**training(tmp_path / "b", steps=1), "model": {"from": str(first)}}
    second = train(config).run / "last"
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    before, after = (load_file(d / "model.safetensors") for d in (first, second))
    moved = max(float((before[name] - after[name]).abs().max()) for name in before)
    assert 0 < moved < 1e-2  # one step away
    with pytest.raises(UserError, match="was trained for .*but data says"):
        train(config, {"train.output": str(tmp_path / "c"), "data.both_directions": False})


def test_a_state_of_other_processes_is_refused(tmp_path, monkeypatch):
    config = training(tmp_path, steps=1)
    run = train(config).run
    honest = read_checkpoint(run / "last")
    two = checkpoint.Checkpoint(honest.loaded, honest.progress, honest.optimizer, honest.rng_states * 2)
    monkeypatch.setattr(Checkpoints, "newest", lambda self: two)
    with pytest.raises(UserError, match=r"trained by 2 processes, and this run has 1; set train\.workers to 2"):
        train(config, {"train.steps": 2}, resume=True)


def command(folder: Path, config: dict, *flags: str) -> list[str]:
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    return [sys.executable, "-m", "glassformer", "train", str(folder / "c.yaml"), *flags]


def wait_for(path: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 300
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "optimizer"), [(1, "adamw"), (2, "muon")])
def test_a_process_killed_from_outside_resumes_to_the_same_bits(tmp_path, workers, optimizer):
    settings = {"workers": workers, "optimizer": optimizer, "steps": 40, "save_every": 4, "eval_every": 20}
    config = hard(tmp_path, **settings)
    whole = hard(tmp_path, **settings, output=str(tmp_path / "whole"))
    process = subprocess.Popen(command(tmp_path, config), stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "run" / "step-8", process)
    process.kill()
    process.communicate()
    assert "step-40" not in os.listdir(tmp_path / "run")
    for _ in range(20):  # until the orphaned workers have noticed
        resumed = subprocess.run(command(tmp_path, config, "--resume"), capture_output=True, text=True)
        if "another training is writing here" not in resumed.stderr:
            break
        time.sleep(0.5)
    assert resumed.returncode == 0 and resumed.stdout == "", resumed.stderr
    subprocess.run(command(tmp_path, whole), check=True, capture_output=True)
    assert_same_end(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_every_worker_saves_and_exits_as_signals_do(tmp_path, number):
    config = hard(tmp_path, workers=2, steps=10_000, save_every=2, eval_every=10_000)
    process = subprocess.Popen(
        command(tmp_path, config), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(tmp_path / "run" / "step-2", process)
    os.killpg(process.pid, number)
    out, err = process.communicate()
    assert process.returncode == 128 + number and out == ""
    assert "Traceback" not in err and err.splitlines()[-1].endswith("--resume goes on"), err
    saved = read_checkpoint(tmp_path / "run" / "last").progress.step
    assert f"stopped at step {saved}; saved" in err

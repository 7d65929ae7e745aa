"""The training loop."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glassformer.data.batching import shard
from glassformer.data.collate import Batch, Labelled
from glassformer.errors import UserError
from glassformer.header import Framing
from glassformer.train.checkpoint import Checkpoints, Progress
from glassformer.train.config import TrainConfig, dump_config
from glassformer.train.dev import DevSet
from glassformer.train.distributed import World, best_precision, keep_freed_memory
from glassformer.train.launch import Stop, automatic_workers, launch, orphaned
from glassformer.train.objectives import build_objective, first_not_finite
from glassformer.train.optim import Optimizer, learning_rate
from glassformer.train.progress import Reporter
from glassformer.train.ready import data_bytes, ready
from glassformer.train.setup import check_resumed, gradient_buffer, own_run_folder

LOSS, NLL, LABELS, TOKENS, STOP = range(-5, 0)
"""Slots behind the gradients in the one buffer that the processes sum."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        run: The run folder.
        step: Steps done.
        interrupted: Whether a signal ended it before its time.
        signal: The number of that signal, or 0.
    """

    run: Path
    step: int
    interrupted: bool
    signal: int = 0


@dataclass(frozen=True)
class _Job:
    config: TrainConfig
    resume: bool


def train(
    config: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
) -> Outcome:
    """Trains a model.

    Args:
        config: A YAML file, or its content.
        overrides: Dotted keys to replace, such as ``{"train.lr": 1e-3}``.
        resume: Go on from the newest checkpoint of the run folder, exactly as if the run had never stopped.

    Raises:
        UserError: On a mistake in the config or the data, or a run folder that already holds a run.
    """
    resolved = ready(config, overrides, resume=resume)
    settings = resolved.train
    workers = automatic_workers(settings.batch_tokens) if settings.workers == "auto" else settings.workers
    outcome: Outcome = launch(_work, _Job(resolved, resume), workers)
    return outcome


def _work(job: _Job, stop: Stop) -> Outcome:
    world = World()
    with own_run_folder(Path(job.config.train.output)) if world.leads else nullcontext():
        return Trainer(job.config, world, stop, resume=job.resume).run()


class Trainer:
    """One process's share of a run; the run folder must be its own."""

    def __init__(self, config: TrainConfig, world: World, stop: Stop, *, resume: bool) -> None:
        keep_freed_memory()
        self.config, self.world, self.stop = config, world, stop
        settings = config.train
        self.run_dir = Path(settings.output)
        self.checkpoints = Checkpoints(self.run_dir, settings.keep)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = best_precision(self.device) if settings.precision == "auto" else _DTYPES[settings.precision]
        world.barrier()  # the run folder is this run's own, and mended
        resumed = self.checkpoints.newest() if resume else None
        self.progress = resumed.progress if resumed else Progress()
        self.reporter = Reporter(self.run_dir, config, self.progress.step) if world.leads else None
        for note in check_resumed(self.run_dir, config, resumed, world.size) if resumed else []:
            self._say(note)
        self.progress.data_bytes = data_bytes(config.data)

        self.objective = build_objective(config, resumed.loaded if resumed else None)
        for line in self.objective.told:
            self._say(line)
        self.model = self.objective.model.to(self.device).requires_grad_(True)
        own = self.objective.smoothing
        self.smoothing = own if settings.label_smoothing is None else settings.label_smoothing
        self.dev = DevSet(self.objective, world) if self.objective.dev else None

        self.buffer = gradient_buffer(self.model, -LOSS, world, self.device)
        self.gradients = self.buffer.flat
        self.optimizer = Optimizer(self.model, settings, world)
        torch.manual_seed(settings.seed * 1000 + world.rank)  # dropout differs between ranks, weights do not
        if resumed:
            self.optimizer.load_state(resumed.optimizer)
            torch.set_rng_state(resumed.rng_states[world.rank])
        self._epoch: Sequence[Any] = []
        self._batches: list[list[int]] = []
        self._recent_nll = self._recent_labels = 0.0
        self._clock = time.monotonic()

    def run(self) -> Outcome:
        """Trains to the end, to a signal, or until patience runs out; the last state is always saved."""
        settings, progress = self.config.train, self.progress
        saved = progress.step if progress.step else -1
        self.world.barrier()  # all have read the old config.yaml
        if self.world.leads:
            (self.run_dir / "config.yaml").write_text(dump_config(self.config), encoding="utf-8")
            if progress.step:
                self._point(progress.step)
        if self._finished():
            self._say(f"{self.run_dir}: finished at step {progress.step} already; raise train.steps or train.patience")
            return Outcome(self.run_dir, progress.step, interrupted=False)
        self._say(
            f"{self.model.num_parameters():,} parameters, {self.world.size} process(es), "
            f"{str(self.dtype).removeprefix('torch.')}, run folder {self.run_dir}"
        )
        self._begin_epoch()
        self._clock = time.monotonic()
        interrupted = False
        self.stop.begin()
        while not (interrupted or self._finished()):
            if orphaned():
                os._exit(1)
            if progress.batch >= len(self._batches):
                if progress.step == progress.epoch_began:
                    raise UserError("a whole epoch without one label to learn from; see data.train")
                progress.epoch, progress.batch, progress.epoch_began = progress.epoch + 1, 0, progress.step
                self._begin_epoch()
            before = progress.step
            interrupted = self._step(self._batches[progress.batch : progress.batch + settings.accumulate])
            if progress.step == before:
                continue
            better = False
            if self.dev and (progress.step % settings.eval_every == 0 or progress.step == settings.steps):
                better = self._evaluate(self.dev)
            if better or progress.step % settings.save_every == 0:
                self._save()
                saved = progress.step
        if saved != progress.step:
            self._save()
        self._end(interrupted)
        return Outcome(self.run_dir, progress.step, interrupted, self.stop.number if interrupted else 0)

    def _finished(self) -> bool:
        patience = self.config.train.patience
        return self.progress.step >= self.config.train.steps or (
            patience is not None and self.progress.stale >= patience
        )

    def _begin_epoch(self) -> None:
        settings, progress = self.config.train, self.progress
        dropped_out = progress.epoch_began < settings.bpe_dropout_until * settings.steps
        self._epoch = self.objective.sampled(settings.seed, progress.epoch, dropout=dropped_out)
        planned = self.objective.plan(self._epoch, settings.seed, progress.epoch)
        self._batches = planned.batches
        limit = self.objective.limit
        if not self._batches:
            raise UserError(f"every example is longer than {limit}; raise data.max_len or train.batch_tokens")
        if planned.dropped and progress.epoch == 0:
            self._say(f"dropped {planned.dropped:,} of {len(self._epoch):,} examples longer than {limit}")

    def _step(self, batches: list[list[int]]) -> bool:
        """Takes one optimizer step on some batches; says whether to stop."""
        settings, progress = self.config.train, self.progress
        self.model.train()
        self.gradients.zero_()
        sums = [0.0] * 5
        for rows in self._mine(batches):
            batch = self._batch(rows)
            with self._autocast():
                loss, nll = self.objective.loss(self.model, batch, self.smoothing)
            loss.backward()
            sums[LOSS] += float(loss.detach())
            sums[NLL] += float(nll)
            sums[LABELS] += batch.n_labels
            sums[TOKENS] += sum(sum(self.objective.lengths(self._epoch[row])) for row in rows)
        sums[STOP] = float(self.stop.is_set())
        self.gradients[LOSS:] = torch.tensor(sums)
        self.buffer.sum_()
        sums = self.gradients[LOSS:].tolist()
        self.gradients[LOSS:] = 0.0
        progress.batch += len(batches)
        labels = sums[LABELS]
        if not labels:
            self._say(f"skipped a batch without labels after step {progress.step}")
            return sums[STOP] > 0
        # Divided by all labels of the step, over batches and processes: equal to one big batch.
        norm = float(torch.linalg.vector_norm(self.gradients)) / labels
        if not math.isfinite(sums[LOSS] + norm):
            raise UserError(self._diverged(batches, sums[LOSS] / labels, norm))
        scale = min(1.0, settings.clip / max(norm, 1e-30)) if settings.clip is not None else 1.0
        self.gradients.mul_(scale / labels)
        rate = learning_rate(progress.step + 1, settings, self.model.config.d_model)
        self.optimizer.step(rate)
        progress.step += 1
        self._recent_nll += sums[NLL]
        self._recent_labels += labels
        self._report(sums[LOSS] / labels, norm, rate, int(sums[TOKENS]))
        return sums[STOP] > 0

    def _mine(self, batches: list[list[int]]) -> list[list[int]]:
        """This process's rows of some batches, where it has any."""
        shares = [shard(rows, self.world.rank, self.world.size) for rows in batches]
        return [rows for rows in shares if rows]

    def _batch(self, rows: list[int]) -> Batch | Labelled:
        return self.objective.batch(self._epoch, rows).to(self.device)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def _diverged(self, batches: list[list[int]], loss: float, norm: float) -> str:
        """Says which step and which part of the model first became infinite or NaN, on whichever process."""
        mine = [self._batch(rows) for rows in self._mine(batches)]
        found = self.world.gather(first_not_finite(self.model, mine, self._autocast()))
        where = next((name for name in found if name is not None), "the backward pass")
        return (
            f"step {self.progress.step + 1}: loss {loss:g}, gradient norm {norm:g}, first seen in {where}; "
            "lower train.lr, raise train.warmup, or set train.precision to fp32, and --resume"
        )

    def _say(self, message: str) -> None:
        if self.reporter:
            self.reporter.say(message)

    def _tick(self) -> float:
        """Counts the time since the last tick as training time."""
        now = time.monotonic()
        elapsed, self._clock = now - self._clock, now
        self.progress.seconds += elapsed
        return elapsed

    def _position(self) -> float:
        return round(self.progress.epoch + self.progress.batch / len(self._batches), 3)

    def _report(self, loss: float, norm: float, rate: float, tokens: int) -> None:
        elapsed, progress = self._tick(), self.progress
        if self.reporter:
            figures = {
                "step": progress.step,
                "epoch": self._position(),
                "loss": loss,
                "gradient_norm": norm,
                "lr": rate,
            }
            left = progress.seconds / progress.step * (self.config.train.steps - progress.step)
            self.reporter.step({**figures, "seconds_left": round(left)}, tokens, elapsed)

    def _evaluate(self, dev: DevSet) -> bool:
        """Scores the dev set; says whether this is the best yet."""
        progress = self.progress
        self.model.eval()
        loss = dev.loss(self.model, self._autocast())
        scores = dev.scores(self.model, loss, self._autocast())
        prefix = self.objective.chosen_by
        chosen = [value for name, value in scores.items() if prefix is not None and name.startswith(prefix)]
        score = sum(chosen) / len(chosen) if chosen else -loss
        # Of equal scores that of the lower loss is the better one: on a small dev set several are perfect.
        held = next((figures["dev_loss"] for figures in reversed(progress.history) if figures["best"]), math.inf)
        better = progress.best is None or (score, -loss) > (progress.best, -held)
        if better:
            progress.best, progress.best_step, progress.stale = score, progress.step, 0
        else:
            progress.stale += 1
        self._tick()
        figures: dict[str, Any] = {
            "step": progress.step,
            "epoch": self._position(),
            "minutes": round(progress.seconds / 60, 2),
            "train_nll": self._recent_nll / max(self._recent_labels, 1.0),
            "dev_loss": loss,
            **scores,
            "best": better,
        }
        self._recent_nll = self._recent_labels = 0.0
        progress.history.append(figures)
        if self.reporter:
            self.reporter.evaluation(figures)
        return better

    def _save(self) -> None:
        rng_states = self.world.gather(torch.get_rng_state())
        if self.world.leads:
            what, tokenizer = self.objective, self.objective.tokenizer
            plain = tokenizer and Framing.of(tokenizer, self.model.config.kind)
            framing = None if tokenizer is None or what.framing == plain else what.framing
            self.checkpoints.save(
                self.model, tokenizer, what.translation, framing, self.optimizer, self.progress, rng_states
            )
            self._point(self.progress.step)
        self.world.barrier()

    def _point(self, step: int) -> None:
        """Makes ``last``, and ``best`` where it is, the checkpoint of a step."""
        self.checkpoints.link("last", step)
        if self.dev is None or self.progress.best_step == step:
            self.checkpoints.link("best", step)

    def _end(self, interrupted: bool) -> None:
        if not self.reporter:
            return
        progress = self.progress
        ended = f"Ended at step {progress.step} of {self.config.train.steps} after {progress.seconds / 60:.1f} minutes."
        self.reporter.close(progress.history, ended)
        if interrupted:
            self._say(f"stopped at step {progress.step}; saved {self.run_dir / 'last'}; --resume goes on")
            return
        if progress.step < self.config.train.steps:
            self._say(f"no better evaluation in {progress.stale}: stopped at step {progress.step}")
        self._say(f"done: {self.run_dir / 'best'}")


_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

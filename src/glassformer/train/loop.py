"""The training loop."""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from glassformer.data.batching import shard
from glassformer.data.collate import Batch
from glassformer.errors import UserError
from glassformer.families import build
from glassformer.models.seq2seq import Seq2Seq
from glassformer.store import Translation, load_model
from glassformer.text.tokenizer import Tokenizer
from glassformer.trace.recorder import record
from glassformer.train.checkpoint import Checkpoints, Progress, load_state
from glassformer.train.config import TrainConfig, load_config
from glassformer.train.dev import DevSet
from glassformer.train.distributed import (
    GradientBuffer,
    Stop,
    World,
    best_precision,
    keep_freed_memory,
    launch,
    orphaned,
)
from glassformer.train.examples import Example, Examples, batch_of, make_tokenizer, plan, read_corpus
from glassformer.train.objectives import translation_loss
from glassformer.train.optim import build_optimizer, learning_rate
from glassformer.train.progress import Reporter

LOSS, NLL, STOP = -3, -2, -1
"""Slots behind the gradients in the one buffer that the processes sum."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        run: The run folder.
        step: Steps done.
        interrupted: Whether a signal ended it before its time.
    """

    run: Path
    step: int
    interrupted: bool


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
    resolved = load_config(config, overrides)
    run = Path(resolved.train.output)
    steps = Checkpoints(run, resolved.train.keep).steps()
    if steps and not resume:
        raise UserError(f"{run}: holds a run at step {steps[-1]}; --resume goes on, or choose another train.output")
    if resume and not steps:
        raise UserError(f"{run}: nothing to resume: it has no checkpoint; leave --resume out to start")
    outcome: Outcome = launch(_work, _Job(resolved, resume), resolved.train.workers)
    return outcome


def _work(job: _Job, stop: Stop) -> Outcome:
    return Trainer(job.config, World(), stop, resume=job.resume).run()


class Trainer:
    """One process's share of a run."""

    def __init__(self, config: TrainConfig, world: World, stop: Stop, *, resume: bool) -> None:
        keep_freed_memory()
        self.config, self.world, self.stop = config, world, stop
        settings = config.train
        self.run_dir = Path(settings.output)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._lock = self._own_run_folder() if world.leads else None
        self.checkpoints = Checkpoints(self.run_dir, settings.keep)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

        pairs = read_corpus(config.data.train, config.data)
        dev = read_corpus(config.data.dev, config.data) if config.data.dev else []
        resumed = self.checkpoints.directory(self.checkpoints.steps()[-1]) if resume else None
        start = resumed or (Path(config.model["from"]) if "from" in config.model else None)
        self.translation, self.tokenizer, self.model = self._model(start, pairs)
        assert self.tokenizer.pad_id is not None
        self.pad_id = self.tokenizer.pad_id
        self.model.to(self.device).requires_grad_(True)
        self.max_len = self._longest()
        self.examples = Examples(pairs, self.tokenizer, self.translation, settings.bpe_dropout)
        self.dev = (
            DevSet(dev, self.tokenizer, self.translation, world, lines=settings.eval_lines, max_len=self.max_len)
            if dev
            else None
        )

        self.buffer = self._gradient_buffer()
        self.gradients = self.buffer.flat
        self.optimizer = build_optimizer(self.model, settings)
        self.dtype = best_precision(self.device) if settings.precision == "auto" else _DTYPES[settings.precision]
        torch.manual_seed(settings.seed * 1000 + world.rank)  # dropout differs between ranks, weights do not
        self.progress = Progress()
        if resumed:
            self._resume(resumed)
        self.reporter = Reporter(self.run_dir, config) if world.leads else None
        self._epoch: list[Example] = []
        self._batches: list[list[int]] = []
        self._recent_nll, self._recent_labels = 0.0, 0
        self._recent_steps: deque[tuple[int, float]] = deque(maxlen=50)
        self._clock = time.monotonic()

    # -- setting up

    def _own_run_folder(self) -> IO[str]:
        lock = (self.run_dir / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{self.run_dir}: another training is writing here; choose another train.output") from None
        return lock

    def _model(self, start: Path | None, pairs: list[Any]) -> tuple[Translation, Tokenizer, Seq2Seq]:
        data = self.config.data
        translation = Translation(source=data.source, target=data.target, both_directions=data.both_directions)
        if start is not None:
            loaded = load_model(start)
            return translation, loaded.tokenizer, loaded.model
        tokenizer = make_tokenizer(self.config.tokenizer, pairs, translation)
        torch.manual_seed(self.config.train.seed)
        return translation, tokenizer, build(self.config.model_config_for(tokenizer.vocab_size))

    def _longest(self) -> int:
        config = self.model.config
        limits = [stack.position.max_len for stack in (config.encoder, config.decoder) if stack.position]
        return min([self.config.data.max_len, *limits])

    def _gradient_buffer(self) -> GradientBuffer:
        """One buffer for all gradients: zeroed, summed over processes, measured and clipped in one call each."""
        parameters = list(self.model.parameters())
        buffer = GradientBuffer(sum(p.numel() for p in parameters) + 3, self.world, self.device)
        offset = 0
        for parameter in parameters:
            parameter.grad = buffer.flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
        return buffer

    def _resume(self, directory: Path) -> None:
        self.progress, rng_states = load_state(directory, self.optimizer)
        if len(rng_states) != self.world.size:
            raise UserError(
                f"{directory}: was trained by {len(rng_states)} processes, this run has {self.world.size}; "
                f"set train.workers to {len(rng_states)}"
            )
        torch.set_rng_state(rng_states[self.world.rank])

    # -- the loop

    def run(self) -> Outcome:
        """Trains to the end, to a signal, or until patience runs out; the last state is always saved."""
        settings, progress = self.config.train, self.progress
        if self.world.leads:
            self._write_config()
            self._say(
                f"{self.model.num_parameters():,} parameters, {self.world.size} process(es), "
                f"{str(self.dtype).removeprefix('torch.')}, run folder {self.run_dir}"
            )
        interrupted = False
        saved = progress.step if progress.step else -1
        self._begin_epoch()
        self._clock = time.monotonic()
        while progress.step < settings.steps and not interrupted:
            if orphaned():
                os._exit(1)
            if progress.batch >= len(self._batches):
                progress.epoch, progress.batch, progress.epoch_began = progress.epoch + 1, 0, progress.step
                self._begin_epoch()
            interrupted = self._step(self._batches[progress.batch : progress.batch + settings.accumulate])
            if self.dev and (progress.step % settings.eval_every == 0 or progress.step == settings.steps):
                better = self._evaluate(self.dev)
                if better:
                    self._save()
                    saved = progress.step
                    if self.world.leads:
                        self.checkpoints.link("best", progress.step)
                if settings.patience and progress.stale >= settings.patience:
                    self._say(f"no better evaluation in {progress.stale}: stopping at step {progress.step}")
                    break
            if progress.step % settings.save_every == 0 and saved != progress.step:
                self._save()
                saved = progress.step
        if saved != progress.step:
            self._save()
        if not self.dev and self.world.leads:
            self.checkpoints.link("best", progress.step)
        if self.reporter:
            ended = f"Ended at step {progress.step} of {settings.steps} after {progress.seconds / 60:.1f} minutes."
            self.reporter.close(progress.history, ended)
        return Outcome(self.run_dir, progress.step, interrupted)

    def _begin_epoch(self) -> None:
        settings, progress = self.config.train, self.progress
        dropped_out = progress.epoch_began < settings.bpe_dropout_until * settings.steps
        self._epoch = self.examples.sampled(settings.seed, progress.epoch) if dropped_out else self.examples.plain()
        planned = plan(
            self._epoch,
            batch_tokens=settings.batch_tokens,
            seed=settings.seed,
            epoch=progress.epoch,
            max_len=self.max_len,
        )
        self._batches = planned.batches
        if not self._batches:
            raise UserError(
                f"no example fits: all are longer than data.max_len {self.max_len} "
                f"or train.batch_tokens {settings.batch_tokens}"
            )
        if planned.dropped and progress.epoch == 0:
            total = len(self._epoch)
            self._say(f"dropped {planned.dropped} of {total} examples longer than {self.max_len} tokens a side")

    def _step(self, batches: list[list[int]]) -> bool:
        """Takes one optimizer step on some batches; says whether to stop."""
        settings, progress = self.config.train, self.progress
        self.model.train()
        self.gradients.zero_()
        labels = sum(len(self._epoch[row].target) + 1 for rows in batches for row in rows)
        tokens = labels + sum(len(self._epoch[row].source) for rows in batches for row in rows)
        loss = nll = 0.0
        for rows in batches:
            mine = shard(rows, self.world.rank, self.world.size)
            if not mine:
                continue
            batch = self._batch(mine)
            with self._autocast():
                smoothed, plain = translation_loss(
                    self.model, batch, smoothing=settings.label_smoothing, pad_id=self.pad_id
                )
            # Divided by all labels of the step, over batches and processes: equal to one big batch.
            (smoothed / labels).backward()
            loss, nll = loss + float(smoothed.detach()), nll + float(plain)
        self.gradients[LOSS:] = torch.tensor([loss, nll, float(self.stop.is_set())])
        self.buffer.sum_()
        loss, nll, stops = self.gradients[LOSS:].tolist()
        self.gradients[LOSS:] = 0.0
        norm = float(torch.linalg.vector_norm(self.gradients))
        if not math.isfinite(loss + norm):
            raise UserError(self._diverged(batches, loss, norm))
        if settings.clip is not None and norm > settings.clip:
            self.gradients.mul_(settings.clip / norm)
        rate = learning_rate(progress.step + 1, settings, self.model.config.d_model)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        progress.step += 1
        progress.batch += len(batches)
        self._recent_nll += nll
        self._recent_labels += labels
        self._report(loss / labels, norm, rate, tokens)
        return stops > 0

    def _batch(self, rows: list[int]) -> Batch:
        return batch_of(self._epoch, rows, self.tokenizer).to(self.device)

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def _diverged(self, batches: list[list[int]], loss: float, norm: float) -> str:
        """Says which step and which part of the model first became infinite or NaN."""
        where = next((name for name, p in self.model.named_parameters() if not p.isfinite().all()), None)
        mine = shard(batches[0], self.world.rank, self.world.size)
        if where is None and mine:
            batch = self._batch(mine)
            with torch.no_grad(), self._autocast(), record(self.model) as trace:
                self.model(batch.source_BS, batch.target_BT, batch.source_mask_BS)
            where = next((name for name, value in trace.items() if not value.isfinite().all()), "the backward pass")
        return (
            f"step {self.progress.step + 1}: loss {loss:g}, gradient norm {norm:g}, first seen in {where}; "
            "lower train.lr, raise train.warmup, or set train.precision to fp32, and --resume"
        )

    # -- reporting, scoring, saving

    def _say(self, message: str) -> None:
        if self.world.leads and self.reporter:
            self.reporter.say(message)

    def _report(self, loss: float, norm: float, rate: float, tokens: int) -> None:
        now = time.monotonic()
        elapsed, self._clock = now - self._clock, now
        self.progress.seconds += elapsed
        if not self.reporter:
            return
        self._recent_steps.append((tokens, elapsed))
        recent, step, steps = self._recent_steps, self.progress.step, self.config.train.steps
        self.reporter.step(
            {
                "step": step,
                "epoch": round(self.progress.epoch + self.progress.batch / len(self._batches), 3),
                "loss": loss,
                "gradient_norm": norm,
                "lr": rate,
                "tokens_per_second": round(sum(t for t, _ in recent) / sum(s for _, s in recent), 1),
                "seconds_left": round(self.progress.seconds / step * (steps - step)),
            }
        )

    def _evaluate(self, dev: DevSet) -> bool:
        """Scores the dev set; says whether this is the best yet."""
        progress = self.progress
        self.model.eval()
        loss = dev.loss(self.model, self.config.train.batch_tokens, self._autocast())
        scores = dev.bleu(self.model, self._autocast())
        score = sum(scores.values()) / len(scores) if scores else -loss
        better = progress.best is None or score > progress.best
        if better:
            progress.best, progress.best_step, progress.stale = score, progress.step, 0
        else:
            progress.stale += 1
        figures: dict[str, Any] = {
            "step": progress.step,
            "epoch": round(progress.epoch + progress.batch / len(self._batches), 3),
            "minutes": round(progress.seconds / 60, 2),
            "train_nll": self._recent_nll / max(self._recent_labels, 1),
            "dev_loss": loss,
            **scores,
            "best": better,
        }
        self._recent_nll, self._recent_labels = 0.0, 0
        progress.history.append(figures)
        if self.reporter:
            self.reporter.evaluation(figures)
        progress.seconds += time.monotonic() - self._clock
        self._clock = time.monotonic()
        return better

    def _save(self) -> None:
        rng_states = self.world.gather(torch.get_rng_state())
        if self.world.leads:
            self.checkpoints.save(
                self.model, self.tokenizer, self.translation, self.optimizer, self.progress, rng_states
            )
        self.world.barrier()

    def _write_config(self) -> None:
        text = yaml.safe_dump(self.config.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True)
        (self.run_dir / "config.yaml").write_text(text, encoding="utf-8")


_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

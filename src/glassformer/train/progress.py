"""What a run says while it trains: a line on stderr, ``log.jsonl``, TensorBoard, and ``report.md`` at the end."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch

from glassformer.train.config import TrainConfig

ALWAYS = ("step", "epoch", "minutes", "train_nll", "dev_loss", "best")
"""Figures of every evaluation."""
RECENT = 50
"""Steps over which the speed is taken."""
QUIET = 30.0
"""Seconds without a line after which a log, which cannot be looked at like a terminal, gets one."""


class Reporter:
    """Writes a run's figures; only rank 0 has one.

    On a terminal the last line is kept up to date; elsewhere the first step gets a line of its own, every ``log_every``
    steps, and whatever step ends after ``QUIET`` seconds without one.

    Args:
        run: The run folder.
        config: Of the whole run.
        step: The step that training goes on from; what an interrupted run logged after it is taken back.
    """

    def __init__(self, run: Path, config: TrainConfig, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._run = run
        self._config = config
        self._log = _open_log(run / "log.jsonl", step)
        self._board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
        self._live = sys.stderr.isatty()
        self._shown = 0.0
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)

    def say(self, message: str) -> None:
        """Prints one line."""
        self._clear()
        print(message, file=sys.stderr, flush=True)

    def step(self, figures: dict[str, Any], tokens: int, seconds: float) -> None:
        """Reports a step.

        Args:
            figures: Its step, epoch, loss, gradient_norm, lr, and seconds_left.
            tokens: Source and target tokens that it read, without padding.
            seconds: Time that it took.
        """
        self._recent.append((tokens, seconds))
        speed = sum(t for t, _ in self._recent) / max(sum(s for _, s in self._recent), 1e-9)
        figures = {**figures, "tokens_per_second": round(speed, 1), "memory_mb": round(_memory())}
        due = figures["step"] % self._config.train.log_every == 0
        now = time.monotonic()
        if due or not self._shown or now - self._shown > (0.5 if self._live else QUIET):
            self._shown = now
            self._clear()
            print(self._line(figures), end="" if self._live else "\n", file=sys.stderr, flush=True)
        if due:
            self._write("step", figures)

    def evaluation(self, figures: dict[str, Any]) -> None:
        """Reports the dev figures of a step."""
        scores = "  ".join(f"{name} {figures[name]:.2f}" for name in _scores(figures))
        best = "  ← best so far" if figures["best"] else ""
        self.say(f"step {figures['step']:>6}  dev loss {figures['dev_loss']:.3f}  {scores}{best}".rstrip())
        self._write("dev", figures)

    def _write(self, kind: str, figures: dict[str, Any]) -> None:
        self._log.write(json.dumps({"kind": kind, **figures}) + "\n")
        self._log.flush()
        for name, value in figures.items():
            if name != "step" and isinstance(value, int | float):
                self._board.add_scalar(f"{kind}/{name}", value, figures["step"])

    def _line(self, figures: dict[str, Any]) -> str:
        left = time.strftime("%H:%M:%S", time.gmtime(figures["seconds_left"]))
        days = f"{figures['seconds_left'] // 86400} d " if figures["seconds_left"] >= 86400 else ""
        return (
            f"step {figures['step']:>6}/{self._config.train.steps}  loss {figures['loss']:.3f}  "
            f"{figures['tokens_per_second']:,.0f} tokens/s  lr {figures['lr']:.2e}  {days}{left} left  "
            f"{figures['memory_mb']:,} MB a process"
        )

    def _clear(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[2K")

    def close(self, history: list[dict[str, Any]], ended: str) -> None:
        """Writes ``report.md`` and closes the files."""
        rows = [
            f"| {h['step']} | {h['epoch']:.2f} | {h['minutes']:.1f} | {h['train_nll']:.3f} | {h['dev_loss']:.3f} | "
            + "".join(f"{h[name]:.2f} | " for name in _scores(h))
            for h in history
        ]
        names = _scores(history[-1]) if history else []
        head = ["step", "epoch", "minutes", "train NLL", "dev NLL", *names]
        table = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *(row.rstrip() for row in rows)]
        text = [f"# {self._run.name}", "", ended, "", *table, "", "The configuration is in `config.yaml`.", ""]
        (self._run / "report.md").write_text("\n".join(text), encoding="utf-8")
        self._clear()
        self._log.close()
        self._board.close()


def _scores(figures: dict[str, Any]) -> list[str]:
    """The names of an objective's own figures."""
    return [name for name in figures if name not in ALWAYS]


def _open_log(file: Path, step: int) -> Any:
    """Opens the log behind its last whole line of a step up to this one."""
    kept: list[str] = []
    if step and file.exists():
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):  # cut off by a kill
                continue
    stream = file.open("w", encoding="utf-8")
    stream.writelines(kept)
    stream.flush()
    return stream


def _memory() -> float:
    """The most memory that this process has held so far, on the GPU if it uses one; in MB."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)

"""What a run says while it trains: a line on stderr, ``log.jsonl``, TensorBoard, and ``report.md`` at the end."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from glassformer.train.config import TrainConfig


class Reporter:
    """Writes a run's figures; only rank 0 has one.

    On a terminal the last line is kept up to date; elsewhere every ``log_every`` steps get a line of their own.
    """

    def __init__(self, run: Path, config: TrainConfig) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._run = run
        self._config = config
        self._log = (run / "log.jsonl").open("a", encoding="utf-8")
        self._board = SummaryWriter(str(run / "tensorboard"))
        self._live = sys.stderr.isatty()
        self._shown = 0.0

    def say(self, message: str) -> None:
        """Prints one line."""
        self._clear()
        print(message, file=sys.stderr, flush=True)

    def step(self, figures: dict[str, Any]) -> None:
        """Reports a step: step, loss, tokens/s, learning rate, time left, memory."""
        due = figures["step"] % self._config.train.log_every == 0
        if self._live and (due or time.monotonic() - self._shown > 0.5):
            self._shown = time.monotonic()
            self._clear()
            sys.stderr.write(self._line(figures))
            sys.stderr.flush()
        if due:
            if not self._live:
                self.say(self._line(figures))
            self._write("step", figures)

    def evaluation(self, figures: dict[str, Any]) -> None:
        """Reports the dev figures of a step."""
        scores = "  ".join(f"{name} {value:.2f}" for name, value in figures.items() if name.startswith("bleu"))
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
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return (
            f"step {figures['step']:>6}/{self._config.train.steps}  loss {figures['loss']:.3f}  "
            f"{figures['tokens_per_second']:,.0f} tokens/s  lr {figures['lr']:.2e}  {left} left  {memory:,.0f} MB"
        )

    def _clear(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[2K")

    def close(self, history: list[dict[str, Any]], ended: str) -> None:
        """Writes ``report.md`` and closes the files."""
        rows = [
            f"| {h['step']} | {h['epoch']:.2f} | {h['minutes']:.1f} | {h['train_nll']:.3f} | {h['dev_loss']:.3f} | "
            + " | ".join(f"{value:.2f}" for name, value in h.items() if name.startswith("bleu"))
            + " |"
            for h in history
        ]
        names = [name for name in history[-1] if name.startswith("bleu")] if history else []
        head = ["step", "epoch", "minutes", "train NLL", "dev NLL", *names]
        table = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *rows]
        text = [f"# {self._run.name}", "", ended, "", *table, "", "The configuration is in `config.yaml`.", ""]
        (self._run / "report.md").write_text("\n".join(text), encoding="utf-8")
        self._log.close()
        self._board.close()

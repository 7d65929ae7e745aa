"""A translation task small enough to learn in a test: digits, spelled in Chinese and in English."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

ZH = "零一二三四五六七八九"
EN = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def pairs(count: int, longest: int = 6, seed: int = 0) -> list[tuple[str, str]]:
    """Random numbers of one digit or more, as (zh, en)."""
    rng = random.Random(seed)
    numbers = [[rng.randrange(10) for _ in range(rng.randint(1, longest))] for _ in range(count)]
    return [("".join(ZH[d] for d in number), " ".join(EN[d] for d in number)) for number in numbers]


def write_tsv(path: Path, rows: list[tuple[str, str]]) -> Path:
    """A TSV that names its columns."""
    path.write_text("zh\ten\n" + "".join(f"{zh}\t{en}\n" for zh, en in rows), encoding="utf-8")
    return path


def training(folder: Path, **train: Any) -> dict[str, Any]:
    """A tiny training config over files written to a folder; keyword arguments replace its ``train`` section's values.

    float32, because bfloat16 kernels are compiled anew for every shape, which is most of the time of a short run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "train": str(write_tsv(folder / "train.tsv", pairs(120))),
        "dev": str(write_tsv(folder / "dev.tsv", pairs(12, seed=1))),
    }
    settings = {
        "output": str(folder / "run"),
        "steps": 12,
        "batch_tokens": 300,
        "warmup": 4,
        "workers": 1,
        "precision": "fp32",
        "eval_every": 4,
        "eval_lines": 4,
        "save_every": 4,
    }
    return {
        "model": {"preset": "transformer-tiny", "dropout": 0.3},
        "tokenizer": {"vocab_size": 300},
        "data": {**data, "source": "zh", "target": "en", "both_directions": True},
        "train": {**settings, **train},
    }

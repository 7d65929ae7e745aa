"""Draws the results of `benchmarks.run --output` as ratios: ``python -m benchmarks.plot results.jsonl IMAGE``.

A bar is how many times as fast our fastest system of a setting was as the fastest peer's, both of one run; 1 is level.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OURS, GOAL, LEVEL = "#0072B2", "#D55E00", "#888888"
GOALS = {
    "translate base-greedy-b1": 4.0,
    "translate base-beam4-b1": 4.0,
    "translate small-greedy-b1": 3.0,
    "translate small-beam4-b1": 3.0,
    "translate base-greedy-b32": 1.6,
    "translate base-beam4-b32": 1.6,
    "translate small-greedy-b32": 1.5,
    "translate small-beam4-b32": 1.5,
    "translate real": 2.0,
    "generate gpt2": 1.2,
    "embed minilm": 1.3,
    "train small": 1.3,
    "train base": 1.45,
}
"""What we hold ourselves to; other questions, whose systems do not all do the same work, are not drawn."""

FEWER_BITS = "q4_0"
"""Peers of that name hold half of what ours read a token, and say something else."""


def best(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, str, float]]:
    """Of each setting in its newest run: its name, our fastest system, the fastest peer, the ratio of their times."""
    settings: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if FEWER_BITS in row["system"]:
            continue
        settings.setdefault(f"{row['question']} {row['setting']}", {})[row["system"]] = row
    found = []
    for name, systems in settings.items():
        ours = [row for row in systems.values() if not row["peer"] and row["system"].startswith("glassformer")]
        peers = [row for row in systems.values() if row["peer"]]
        if ours and peers:
            mine, theirs = (min(some, key=lambda row: row["seconds"]) for some in (ours, peers))
            found.append((name, mine["system"], theirs["system"], theirs["seconds"] / mine["seconds"]))
    return found


def draw(bars: Sequence[tuple[str, str, str, float]], path: Path) -> None:
    """Writes ``path.svg`` and ``path.png``."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "glassformer", "font.size": 9})
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(bars) + 1.2))
    for place, (name, mine, theirs, ratio) in enumerate(reversed(bars)):
        axes.barh(place, ratio, color=OURS, height=0.62)
        label = f"{ratio:.2f}× · {mine.removeprefix('glassformer ')} against {theirs}"
        axes.annotate(
            label, (max(ratio, GOALS[name]), place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8
        )
        axes.plot([GOALS[name]] * 2, [place - 0.42, place + 0.42], color=GOAL, linewidth=1.6)
    axes.axvline(1, color=LEVEL, linewidth=1, linestyle=(0, (3, 3)))
    axes.set_yticks(range(len(bars)), [name for name, *_ in reversed(bars)])
    axes.set_xlim(0, 1.45 * max(ratio for *_, ratio in bars))
    axes.set_xlabel("times as fast as the fastest peer (dashed: level; orange: our goal)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=110)


def main() -> None:
    """Reads results and draws them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("results", type=Path, help="what `benchmarks.run --output` appended to")
    parser.add_argument("image", type=Path, help="where .svg and .png are written, without the suffix")
    args = parser.parse_args()
    bars = [bar for bar in best(list(map(json.loads, args.results.read_text("utf-8").splitlines()))) if bar[0] in GOALS]
    if not bars:
        parser.error(f"{args.results}: no setting in it has both a system of ours and a peer")
    draw(bars, args.image)


if __name__ == "__main__":
    main()

"""Draws what `benchmarks.length` measured: four panels, log–log, in colours that the colour-blind can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.length import Figure, Row, crossing, curve

# Okabe and Ito 2008; a family of mixers shares a colour, and its members differ in line and marker.
STYLES: dict[str, tuple[str, str, str]] = {
    "attention": ("#000000", "-", "o"),
    "attention, tiled": ("#000000", "--", "s"),
    "attention, explicit": ("#000000", ":", "x"),
    "window": ("#0072B2", "-", "o"),
    "window, dense mask": ("#0072B2", ":", "x"),
    "sliding": ("#56B4E9", "-", "^"),
    "blocks": ("#56B4E9", "--", "s"),
    "retention": ("#009E73", "-", "D"),
    "mamba": ("#D55E00", "-", "o"),
    "mamba2": ("#D55E00", "--", "s"),
    "rwkv4": ("#CC79A7", "-", "o"),
    "rwkv5": ("#CC79A7", "--", "s"),
    "rwkv7": ("#CC79A7", ":", "^"),
    "lstm": ("#E69F00", "-", "v"),
}
PANELS: tuple[tuple[str, Figure, float, str, str], ...] = (
    ("train", "seconds", 1e3, "A training step: milliseconds", "tokens"),
    ("train", "bytes", 2**-20, "A training step: MiB at the peak", "tokens"),
    ("decode", "seconds", 1e3, "Decoding one token: milliseconds", "tokens before it"),
    ("decode", "bytes", 2**-10, "Decoding: KiB of state", "tokens before it"),
)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Writes ``path.svg`` and ``path.png``."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "glassformer", "font.size": 9})
    figure, grid = plt.subplots(2, 2, figsize=(11, 8))
    for axes, (what, key, unit, title, below) in zip(grid.flat, PANELS, strict=True):
        for mixer, (colour, line, marker) in STYLES.items():
            points = curve(rows, mixer, what, key)
            if points:
                xs, ys = zip(*((x, max(y, 1e-9) * unit) for x, y in points if y > 0), strict=True)
                axes.plot(xs, ys, line, color=colour, marker=marker, markersize=4, linewidth=1.4, label=mixer)
        axes.set(xscale="log", yscale="log", title=title, xlabel=below)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
            axis.set_minor_formatter(lambda value, _: "")
        axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    _slopes(grid[0, 0])
    _slopes(grid[0, 1])
    first = crossing(rows, "window", "attention")
    if first is not None:
        grid[0, 0].axvline(first, color="#0072B2", linewidth=0.8, linestyle=(0, (1, 3)))
        grid[0, 0].annotate(
            f"from {first:,.0f} tokens\na window is faster\nthan all keys",
            (first, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            va="top",
            color="#0072B2",
            fontsize=8,
        )
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=7, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(picture := path.with_suffix(".png"), dpi=110)
    with Image.open(picture) as image:  # flat colours need few
        image.convert("RGB").quantize(64).save(picture, optimize=True)


def _slopes(axes: Any) -> None:
    """Grey lines of what is linear and what is quadratic, through one point."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for power, name in ((1, "linear"), (2, "quadratic")):
        start = low * 1.6
        end = start * (right / left) ** power
        x = right if end <= high else left * (high / start) ** (1 / power)
        axes.plot([left, x], [start, start * (x / left) ** power], color="#aaaaaa", linewidth=0.8, zorder=0)
        axes.annotate(name, (x, min(end, high)), color="#888888", fontsize=8, ha="right", va="top")
    axes.set(xlim=(left, right), ylim=(low, high))

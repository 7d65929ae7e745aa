"""How do time and memory grow with the length of a text? For every mixer: ``python -m benchmarks.length``.

One layer of each mixer, equally wide, reads ever longer texts: a training step (forward and backward), with the peak of
memory that it adds to the process, until the next length would take longer than ``--seconds`` or more than
``--memory``. Then it decodes one token after 100 … 50,000 others, and tells what its state holds. A straight line of
slope 1 is linear, of slope 2 quadratic; the fitted slopes are printed, and drawn where matplotlib is installed
(``pip install glassformer[benchmark]``).

Each mixer runs in a process of its own, on one thread. Times are of the processor, so that neighbours on the machine
change little, and peaks of memory are the kernel's own count, so that this runs on Linux alone.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from glassformer.nn.attend import Path as AttentionPath

WIDTH, HEADS, SEEN = 64, 4, 128
"""Of every mixer: d_model, heads, and the keys that a token sees where it does not see all."""
LENGTHS = tuple(2**power for power in range(8, 17))
PLACES = (100, 1000, 10_000, 50_000)

_ATTENTION: dict[str, Any] = dict(n_heads=HEADS, causal=True)
_BLOCKS = dict(type="blocks", n_heads=HEADS, block=SEEN // 8, random=3)
MIXERS: dict[str, dict[str, Any]] = {
    "attention": _ATTENTION,
    "attention, tiled": _ATTENTION,
    "attention, explicit": _ATTENTION,
    "window": dict(_ATTENTION, window=SEEN),
    "window, dense mask": dict(_ATTENTION, window=SEEN),
    "sliding": dict(type="sliding", n_heads=HEADS, reach=SEEN // 2, global_tokens="first"),
    "blocks": _BLOCKS,
    "retention": dict(type="retention", n_heads=HEADS),
    "mamba": dict(type="mamba"),
    "mamba2": dict(type="mamba2", n_heads=2 * HEADS, d_head=WIDTH // HEADS, d_state=16),
    "rwkv4": dict(type="rwkv4"),
    "rwkv5": dict(type="rwkv5", n_heads=HEADS),
    "rwkv7": dict(type="rwkv7", n_heads=HEADS, decay_rank=16, rate_rank=16, gate_rank=16),
    "lstm": dict(type="lstm"),
}
"""Names → configurations of equal width; what stands behind a comma is the path that attention takes."""
PATHS: dict[str, AttentionPath] = {"tiled": "tiled", "explicit": "explicit", "dense mask": "fused"}

Figure = Literal["seconds", "bytes"]
"""What is told of a step."""


class Row(TypedDict):
    """One figure: ``seconds`` and ``bytes`` of a training step of so many tokens, or of a token after so many."""

    mixer: str
    what: str
    tokens: int
    seconds: float
    bytes: int


def model_of(name: str) -> Any:
    """One layer without a feed-forward part, which reads ids."""
    from glassformer.config import ModelConfig
    from glassformer.models.build import build_model

    mixer = MIXERS[name]
    side = "encoder" if mixer.get("type") in ("sliding", "blocks") else "decoder"
    stack = dict(blocks=[dict(mixer=mixer, order="pre")], final_norm={})
    head = None if side == "encoder" else {"type": "lm"}
    return build_model(
        ModelConfig.from_dict({"d_model": WIDTH, "embed": dict(vocab_size=256), side: stack, "head": head})
    )


def run(name: str, lengths: Sequence[int], places: Sequence[int], seconds: float, memory: float) -> list[Row]:
    """Every figure of one mixer."""
    import torch

    from glassformer.nn.attend import attention_path

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, path = model_of(name), PATHS.get(name.partition(", ")[2], "auto")
    with attention_path(path):
        rows = list(_training(name, model, lengths, seconds, memory))
        if model.config.kind == "decoder" and path == "auto":
            rows += _decoding(name, model.eval(), places)
    return rows


def _training(name: str, model: Any, lengths: Sequence[int], seconds: float, memory: float) -> list[Row]:
    import torch

    rows: list[Row] = []
    for length in lengths:
        ids = torch.randint(0, 256, (1, length))

        def step(ids: Any = ids) -> None:
            model.zero_grad(set_to_none=True)
            model.hidden(ids).square().mean().backward()

        if not rows:
            step()  # what is loaded at the first call is nobody's memory
        took, peak = _measured(step)
        rows.append(Row(mixer=name, what="train", tokens=length, seconds=took, bytes=peak))
        if took * _last(rows, "seconds") > seconds or peak * _last(rows, "bytes") > memory:
            break
    return rows


def _last(rows: Sequence[Row], key: Figure) -> float:
    """By how much the next length is likely to cost more, twice as long as the last."""
    if len(rows) < 2 or not rows[-2][key]:
        return 2.0
    return max(1.0, rows[-1][key] / rows[-2][key])


def _decoding(name: str, model: Any, places: Sequence[int]) -> list[Row]:
    import torch

    rows: list[Row] = []
    with torch.no_grad():
        state, at = model.start(torch.randint(0, 256, (1, 1))), 1
        for place in places:
            while at < place:
                chunk = min(512, place - at)
                model.step(torch.randint(0, 256, (1, chunk)), state)
                at += chunk
            times = []
            for _ in range(30):
                began = time.process_time()
                model.step(torch.randint(0, 256, (1, 1)), state)
                times.append(time.process_time() - began)
            at += len(times)
            took = sorted(times)[len(times) // 2]
            rows.append(Row(mixer=name, what="decode", tokens=place, seconds=took, bytes=state.nbytes))
    return rows


def _measured(call: Callable[[], None]) -> tuple[float, int]:
    """The shortest time of a few calls, and the most memory that one adds."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, so that it is asked for, and counted, anew
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _memory("VmRSS")
    times: list[float] = []
    while not times or (sum(times) < 0.3 and len(times) < 5):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times), max(0, _memory("VmHWM") - before)


def _memory(what: str) -> int:
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The exponent p of the power ``y = c·x^p`` that fits best (least squares of logarithms)."""
    xs, ys = ([math.log(max(value, 1e-12)) for value in axis] for axis in zip(*points, strict=True))
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / sum((x - x_mean) ** 2 for x in xs)


def curve(rows: Sequence[Row], mixer: str, what: str, key: Figure) -> list[tuple[float, float]]:
    """The points of one line."""
    return [(row["tokens"], row[key]) for row in rows if (row["mixer"], row["what"]) == (mixer, what)]


def crossing(rows: Sequence[Row], fast: str, slow: str) -> float | None:
    """The length from which one mixer trains faster than another for good, as the nearest measured; None if never."""
    mine, other = (dict(curve(rows, name, "train", "seconds")) for name in (fast, slow))
    shared = sorted(mine.keys() & other.keys())
    beaten = [length for length in shared if mine[length] >= other[length]]
    after = [length for length in shared if not beaten or length > beaten[-1]]
    return after[0] if after else None


def table(rows: Sequence[Row]) -> list[str]:
    """What was measured, as Markdown: the longest text, its time and memory, their exponents, and decoding."""
    places = [row["tokens"] for row in rows if row["what"] == "decode"]
    near, far_off = (f"{place:,}" for place in (min(places, default=0), max(places, default=0)))
    heads = ["mixer", "longest", "ms a training step", "MiB", "time ∝", "memory ∝"]
    heads += [f"ms a token at {near}", f"at {far_off}", "KiB of state"]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    for mixer in dict.fromkeys(row["mixer"] for row in rows):
        train = [row for row in rows if row["mixer"] == mixer and row["what"] == "train"]
        decode = [row for row in rows if row["mixer"] == mixer and row["what"] == "decode"]
        # Short texts are told by what every call costs.
        far = [row for row in train if row["tokens"] >= 1024][-4:]
        times, sizes = ([(row["tokens"], row[key]) for row in far] for key in ("seconds", "bytes"))
        powers = [f"n^{slope(points):.1f}" if len(points) > 1 else "–" for points in (times, sizes)]
        told = [f"{1e3 * decode[at]['seconds']:.2f}" if decode else "–" for at in (0, -1)]
        kept = f"{decode[0]['bytes'] / 1024:,.0f} → {decode[-1]['bytes'] / 1024:,.0f}" if decode else "–"
        last = train[-1]
        lines.append(
            f"| {mixer} | {last['tokens']:,} | {1e3 * last['seconds']:,.0f} | {last['bytes'] / 2**20:,.0f} | "
            f"{powers[0]} | {powers[1]} | {told[0]} | {told[1]} | {kept} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every mixer, prints the table, and draws it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.length", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--mixers", help="only these, by name, separated by semicolons")
    parser.add_argument("--most", type=int, default=LENGTHS[-1], help="longest text (default 65,536)")
    parser.add_argument("--places", type=int, default=PLACES[-1], help="last place to decode at (default 50,000)")
    parser.add_argument("--seconds", type=float, default=5.0, help="longest step (default 5)")
    parser.add_argument("--memory", type=float, default=2.0, help="most GiB that a step may add (default 2)")
    parser.add_argument("--output", type=Path, help="write the figures here, as JSON")
    parser.add_argument("--read", type=Path, help="draw these figures again, and measure nothing")
    parser.add_argument("--image", type=Path, help="draw to IMAGE.svg and IMAGE.png")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    lengths = [length for length in LENGTHS if length <= args.most]
    places = [place for place in PLACES if place <= args.places]
    if args.only:
        print(json.dumps(run(args.only, lengths, places, args.seconds, args.memory * 2**30)))
        return 0
    names = args.mixers.split(";") if args.mixers else list(MIXERS)
    if unknown := [name for name in names if name not in MIXERS]:
        parser.error(f"--mixers: no mixer {unknown[0]!r}; there are {'; '.join(MIXERS)}")
    rows: list[Row] = json.loads(args.read.read_text()) if args.read else []
    for name in () if args.read else names:
        own = ["--most", args.most, "--places", args.places, "--seconds", args.seconds, "--memory", args.memory]
        command = [sys.executable, "-m", "benchmarks.length", "--only", name, *map(str, own)]
        print(name, file=sys.stderr, flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        if done.returncode:
            print(f"{name}: not measured (exit {done.returncode})", file=sys.stderr)
            continue
        rows += json.loads(done.stdout)
    if args.output:
        args.output.write_text(json.dumps(rows, indent=1))
    print("\n".join(table(rows)))
    for fast, slow in (("window", "attention"), ("window", "window, dense mask"), ("sliding", "attention")):
        if (first := crossing(rows, fast, slow)) is not None:
            print(f"{fast} trains faster than {slow} from {first:,.0f} tokens", file=sys.stderr)
    if args.image:
        from benchmarks.length_plot import draw

        draw(rows, args.image)
    return 0 if rows else 1


if __name__ == "__main__":
    raise SystemExit(main())

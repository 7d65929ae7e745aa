"""Measures Glassformer beside its peers and prints a table: ``python -m benchmarks.run QUESTION``.

A figure means little away from its machine, so what a table claims is its last column: the time of the fastest peer
over the time of the system, both of one run. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.measure import Failed, Options, Question, System, Timing, measure

REPOSITORY = Path(__file__).resolve().parent.parent
PAIRS = REPOSITORY.parent / "shared/data/zh-en/test.tsv"
QUESTIONS = ("translate", "generate", "embed", "train", "startup", "gemm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one question in every setting asked for; 1 when nothing could be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("question", help=f"{', '.join(QUESTIONS)}, or any module with a QUESTION")
    parser.add_argument("--setting", action="append", help="a size, such as small; may be repeated")
    parser.add_argument("--systems", help="only these, by name, separated by commas")
    parser.add_argument("--all", action="store_true", help="the slow systems, too")
    parser.add_argument("--rounds", type=_positive, default=5, help="turns of each system (default 5)")
    parser.add_argument("--round-seconds", type=float, default=2.0, help="shortest length of a turn (default 2)")
    parser.add_argument("--threads", type=_positive, default=len(os.sched_getaffinity(0)), help="default: every core")
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="a TSV of real pairs, for the settings that need one")
    parser.add_argument("--lines", type=_positive, default=2000, help="how many of them (default 2000)")
    parser.add_argument("--model", default="zh-en", help="the MODEL that translates them (default zh-en)")
    parser.add_argument("--output", "--json", type=Path, help="append the results here, a JSON line each system")
    parser.add_argument("--list", action="store_true", help="name the settings and systems of the question, and end")
    args = parser.parse_args(arguments)

    question = _question(args.question, parser)
    options = Options(args.threads, args.pairs, args.lines, args.model)
    if args.list:
        for setting in question.settings:
            print(f"{setting}:", *(_listed(system) for system in question.systems(setting, options)), sep="\n  ")
        return 0
    settings = args.setting or question.default
    _known("--setting", settings, question.settings, parser)
    systems = {setting: question.systems(setting, options) for setting in settings}
    if args.systems:
        _known("--systems", wanted := args.systems.split(","), _names(systems), parser)
        systems = {setting: [each for each in every if each.name in wanted] for setting, every in systems.items()}
    elif not args.all:
        systems = {setting: [each for each in every if not each.slow] for setting, every in systems.items()}
    if args.output and args.output.resolve().is_relative_to(REPOSITORY):
        parser.error(f"--output {args.output}: lies inside the repository; figures of one machine are kept outside it")

    measured = 0
    for setting in settings:
        try:
            timings = measure(
                question,
                systems[setting],
                setting,
                options,
                rounds=args.rounds,
                round_seconds=args.round_seconds,
                say=_warn,
            )
        except Failed as error:
            _warn(f"{setting}: not measured, {error}")
            continue
        measured += len(timings)
        rates = question.rates(setting, options)
        rows = [_row(args.question, setting, timing, rates, timings) for timing in timings]
        print(f"\n{args.question}, {setting}: median of {args.rounds} interleaved rounds", end="\n\n")
        print("\n".join(table(rows)), flush=True)
        if args.output:
            _append(args.output, rows)
    print(f"\n{_cpu()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}", end="")
    print(f", commit {_commit() or 'unknown'}")
    return 0 if measured else 1


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 up")
    return int(text)


def _question(name: str, parser: argparse.ArgumentParser) -> Question:
    module = f"benchmarks.{name}" if name in QUESTIONS else name
    try:
        question = importlib.import_module(module).QUESTION
    except ModuleNotFoundError as error:
        parser.error(f"question {name!r}: cannot import {error.name}; the questions are {', '.join(QUESTIONS)}")
    assert isinstance(question, Question)
    return question


def _known(flag: str, names: Iterable[str], known: Sequence[str], parser: argparse.ArgumentParser) -> None:
    for name in names:
        if name not in known:
            parser.error(f"{flag} {name}: expected one of {', '.join(known)}")


def _names(systems: Mapping[str, Sequence[System]]) -> list[str]:
    return list(dict.fromkeys(system.name for every in systems.values() for system in every))


def _listed(system: System) -> str:
    return system.name + (" (with --all)" if system.slow else "")


def _warn(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def ratio(timing: Timing, timings: Sequence[Timing]) -> float | None:
    """How many times as fast as the fastest peer, from medians; ``None`` where no peer was measured."""
    peers = [other.median for other in timings if other.system.peer]
    return min(peers) / timing.median if peers else None


def _row(
    name: str, setting: str, timing: Timing, rates: Mapping[str, float], timings: Sequence[Timing]
) -> dict[str, Any]:
    system = timing.system
    return {
        "question": name,
        "setting": setting,
        "system": system.name,
        "peer": system.peer,
        "processes": system.processes,
        "threads": system.threads,
        "seconds": timing.median,
        "rounds": timing.seconds,
        "rates": {unit: amount / timing.median for unit, amount in rates.items()},
        "ratio": ratio(timing, timings),
        "figures": dict(timing.figures),
        "note": timing.note,
        "peak_memory_mib": timing.memory,
        "versions": dict(timing.versions),
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The rows of one setting as Markdown."""
    units = list(rows[0]["rates"]) if rows else []
    columns = list(dict.fromkeys(column for row in rows for column in row["figures"]))
    head = [
        "system",
        "processes × threads",
        "median",
        "range",
        *(f"{unit}/s" for unit in units),
        "× fastest peer",
        *columns,
        "memory",
        "versions",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        peer, note = " (peer)" if row["peer"] else "", f", {row['note']}" if row["note"] else ""
        cells = [
            row["system"] + peer + note,
            f"{row['processes']} × {row['threads']}",
            f"{row['seconds']:.4g} s",
            f"{min(row['rounds']):.4g}–{max(row['rounds']):.4g}",
            *(f"{row['rates'][unit]:,.0f}" for unit in units),
            "–" if row["ratio"] is None else f"{row['ratio']:.2f}",
            *(row["figures"].get(column, "–") for column in columns),
            f"{row['peak_memory_mib']:,.0f} MiB",
            ", ".join(f"{package} {version}" for package, version in row["versions"].items()) or "–",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _append(output: Path, rows: Iterable[dict[str, Any]]) -> None:
    when = datetime.now(UTC).isoformat(timespec="seconds")
    machine = {"cpu": _cpu(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({"when": when, "commit": _commit(), **machine, **row}, ensure_ascii=False) + "\n")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str | None:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())

"""`glassformer bench`: how fast a model runs here, and how near that is to the machine's limit."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import options
from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.models.describe import Cost
    from glassformer.translator import Translator

app = typer.Typer(add_completion=False)

LENGTH = 20
"""Tokens of each source, and of each target, which is not allowed to end before."""

BATCHES = (1, 32)
CALLS, SECONDS = 5, 1.0
"""A figure is the median of at least so many calls, which take at least so long."""


@app.command()
def bench(
    what: Annotated[str, typer.Argument(help="What to measure: translate.")],
    model: options.Model = "zh-en",
    beam_size: options.BeamSize = 5,
    engine: options.Engine = "auto",
    precision: options.Precision = "auto",
    threads: options.Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """How fast a model translates here: random sources of 20 tokens, targets of exactly 20, greedy and with a beam."""
    if what != "translate":
        raise UserError(f"bench {what}: cannot be measured yet; what can is translate")
    translator = options.open_translator(model, engine, precision, threads)
    answer = measured(translator, model, beam_size, threads)
    if as_json:
        print(json.dumps(answer, ensure_ascii=False, indent=2))
    else:
        _print(answer)


def measured(translator: Translator, model: str, beam_size: int, threads: int | None) -> dict[str, Any]:
    """Every figure, under the names of `--json`."""
    from glassformer.api import find_model
    from glassformer.models.build import build_model
    from glassformer.models.describe import cost
    from glassformer.store import read_header

    spent = cost(build_model(read_header(find_model(model)).model, device="meta", initialise=False), LENGTH)
    machine = _machine(translator, spent, threads)
    rows = []
    for sentences in BATCHES:
        for beam in dict.fromkeys((1, beam_size)):
            seconds = median(_timed(translator, sentences, beam))
            rows.append(
                {
                    "sentences": sentences,
                    "beam_size": beam,
                    "ms_per_sentence": 1000 * seconds / sentences,
                    "sentences_per_second": sentences / seconds,
                    "target_tokens_per_second": sentences * LENGTH / seconds,
                    "share_of_limit": least_seconds(spent, machine, sentences, beam) / seconds,
                }
            )
    return {"model": model, **machine, "source_tokens": LENGTH, "target_tokens": LENGTH, "rows": rows}


def least_seconds(spent: Cost, machine: dict[str, Any], sentences: int, beam_size: int) -> float:
    """The least time for a batch on a machine with these limits.

    The encoder is one pass over all source tokens, and then comes a step for each target token. A pass reads its
    weights once and multiplies them with every row; it takes the longer of the two.
    """

    def least(flops: int, rows: int) -> float:
        read = flops / 2 * machine["bytes_per_weight"] / machine["bytes_read_per_second"]
        return max(read, flops * rows / machine["flops_per_second"])

    encoder = least(spent.flops_per_source, sentences * LENGTH)
    return encoder + LENGTH * least(spent.flops_per_target, sentences * beam_size)


def _machine(translator: Translator, spent: Cost, threads: int | None) -> dict[str, Any]:
    """What computes, and the limits that are measured for it."""
    from glassformer.runtime.limits import WIDTH, read_rate

    engine = translator.engine
    if engine.name == "native":
        from glassformer.runtime.engine import _processors
        from glassformer.runtime.library import kernel_sets

        kernels, threads = kernel_sets()[0], threads or _processors()
    else:
        import torch

        kernels, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    # PyTorch's module keeps float32 weights in every precision.
    width = WIDTH["fp32" if engine.name == "model" else engine.precision]
    return {
        "engine": engine.name,
        "kernels": kernels,
        "precision": engine.precision,
        "threads": threads,
        "bytes_per_weight": width,
        "bytes_read_per_second": read_rate(spent.parameters * width, threads),
        "flops_per_second": _product_rate(engine.precision, threads),
    }


def _product_rate(precision: str, threads: int) -> float:
    """Of the native kernels, whichever engine computes; of PyTorch where there are none."""
    from glassformer.runtime.library import EngineUnavailable, kernel_sets
    from glassformer.runtime.limits import product_rate

    try:
        return product_rate(precision, threads, kernel_sets()[0])
    except EngineUnavailable:
        import torch

    n = 2048
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}[precision]
    multiply = torch._int_mm if precision == "int8" else torch.mm
    a, b = torch.ones(2, n, n, dtype=dtype)
    taken = []
    for _ in range(CALLS):
        start = time.perf_counter()
        multiply(a, b)
        taken.append(time.perf_counter() - start)
    return 2 * n**3 / min(taken)


def _timed(translator: Translator, sentences: int, beam_size: int) -> Iterator[float]:
    """Seconds of calls that search the same sources again and again, after one to warm up."""
    from glassformer.generate.config import SearchConfig
    from glassformer.generate.constraints import Constraints

    request = translator.request((), [Constraints()] * sentences)
    random_ids = random.Random(0)
    unwritable = set(request.banned_ids)
    pieces = [i for i in range(translator.engine.vocab_size) if i not in unwritable and i != request.eos_id]
    sources = [[*random_ids.choices(pieces, k=LENGTH - 1), request.eos_id] for _ in range(sentences)]
    endless = replace(request, banned_ids=[*request.banned_ids, request.eos_id])
    config = SearchConfig(beam_size=beam_size, max_new_tokens=LENGTH)
    translator.engine.decode(sources, config, endless)
    calls, begun = 0, time.perf_counter()
    while calls < CALLS or time.perf_counter() - begun < SECONDS:
        start = time.perf_counter()
        translator.engine.decode(sources, config, endless)
        yield time.perf_counter() - start
        calls += 1


def _print(answer: dict[str, Any]) -> None:
    from glassformer.cli.show import size

    threads = f"{answer['threads']} thread{'s' * (answer['threads'] > 1)}"
    print(f"{answer['model']}: {answer['engine']} engine, {answer['kernels']}, {answer['precision']}, {threads}")
    print(f"sources of {answer['source_tokens']} tokens, targets of {answer['target_tokens']}\n")
    print(f"{'':24}{'ms a sentence':>14}{'sentences/s':>14}{'target tokens/s':>18}{'of the limit':>15}")
    for row in answer["rows"]:
        many, beam = row["sentences"], row["beam_size"]
        name = f"{many} sentence{'s' * (many > 1)}, {'greedy' if beam == 1 else f'beam {beam}'}"
        print(
            f"{name:24}{row['ms_per_sentence']:14.2f}{row['sentences_per_second']:14,.0f}"
            f"{row['target_tokens_per_second']:18,.0f}{row['share_of_limit']:15.0%}"
        )
    reads, products = size(answer["bytes_read_per_second"]), answer["flops_per_second"] / 1e9
    print(f"\nlimit: reading the weights at {reads}/s, {answer['precision']} products at {products:,.0f} GFLOP/s")

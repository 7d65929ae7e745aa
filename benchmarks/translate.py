"""How fast is a translation? The native engine against CTranslate2 and Hugging Face, with the same weights and ids.

``SIZE-SEARCH-bN``: random weights, N sources of 20 tokens, and exactly 20 target tokens, since ``</s>`` is banned. It
says nothing of quality. ``real`` and ``real-greedy``: a real model on real sentences (``--model``, ``--pairs``,
``--lines``), all at once, as a file would be; BLEU stands beside the speed. ``WxT`` is W workers of T threads.

The searches are the same except for the length penalty: ours divides a sum of log-probabilities by ((5 + n) / 6)^α,
CTranslate2 by n^α. Theirs gets the α of the same slope at ``TYPICAL`` tokens.
"""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Call, Failed, Noted, Options, Question, System
from benchmarks.models import (
    ctranslate2_model,
    marian,
    random_model,
    write_ctranslate2_model,
    write_random_model,
)
from benchmarks.shapes import SHAPES

LENGTH = 20
"""Tokens of a random source, and of its target."""

SEARCHES = {"greedy": 1, "beam4": 4}
REAL = {"real": 5, "real-greedy": 1}
"""Setting → beam size; 5 is what ``glassformer translate`` does."""

IN_TORCH = (("torch", "fp32"), ("torch", "bf16"), ("torch", "int8"), ("model", "fp32"))
"""Our other engines: slow, and so only there with ``--all``."""

BOS, EOS = 1, 2
BATCH_TOKENS = 4000
"""The default of ``glassformer translate``: padded tokens times beam size."""

TYPICAL = 10
TRIED = 400
"""Sentences by which CTranslate2's batch size is chosen."""

Ids = list[list[int]]


@dataclass(frozen=True)
class Forced:
    """Random sources whose targets have a given length."""

    model: Path
    sources: Ids
    beam_size: int

    @classmethod
    def of(cls, setting: str) -> Forced:
        size, search, batch = setting.split("-")
        rng = random.Random(0)
        ids = range(4, SHAPES[size].vocab_size)
        sources = [rng.choices(ids, k=LENGTH) for _ in range(int(batch.removeprefix("b")))]
        return cls(random_model(size), sources, SEARCHES[search])


def native(setting: str, *, precision: str, threads: int, workers: int) -> Call:
    """The native engine's fused search over a batch."""
    from glassformer.runtime.cache import packed
    from glassformer.runtime.engine import NativeModel

    work = Forced.of(setting)
    model = NativeModel.open(packed(work.model, precision), threads=threads)

    def call() -> Ids:
        found = model.search(
            work.sources,
            limits=[LENGTH] * len(work.sources),
            bos_id=BOS,
            eos_id=EOS,
            banned_ids=[EOS],
            beam_size=work.beam_size,
            workers=workers,
        )
        return [list(of_one[0].ids) for of_one in found]

    return Noted(call, model.kernels)


def in_torch(setting: str, *, engine: str, precision: str, threads: int) -> Call:
    """Our engines on PyTorch, under our own search: what ``--engine torch`` and ``--engine model`` run."""
    import torch

    from benchmarks.models import read
    from glassformer.generate.config import Request, SearchConfig
    from glassformer.models.build import build_model

    torch.set_num_threads(threads)
    work = Forced.of(setting)
    config, weights = read(work.model)
    module = build_model(config)
    module.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
    name = {"model": "ModelEngine", "torch": "TorchEngine"}[engine]
    computes = getattr(importlib.import_module(f"glassformer.engines.{engine}"), name)(module, precision=precision)
    search = SearchConfig(beam_size=work.beam_size, max_new_tokens=LENGTH)
    request = Request(BOS, EOS, banned_ids=[EOS])
    return lambda: [list(of_one[0].ids) for of_one in computes.decode(work.sources, search, request)]


def ctranslate2(setting: str, *, precision: str, workers: int, threads: int) -> Call:
    """CTranslate2's translator over a batch, which several workers share."""
    work = Forced.of(setting)
    translator = _translator(work.model, precision, workers, threads)
    sources = [list(map(str, ids)) for ids in work.sources]

    def call() -> Ids:
        results = translator.translate_batch(
            sources,
            beam_size=work.beam_size,
            min_decoding_length=LENGTH,
            max_decoding_length=LENGTH,
            max_batch_size=-(-len(sources) // workers),
        )
        return [list(map(int, result.hypotheses[0])) for result in results]

    return call


def hugging_face(setting: str, *, precision: str, threads: int) -> Call:
    """Hugging Face's Marian, by ``generate``."""
    import torch

    torch.set_num_threads(threads)
    work = Forced.of(setting)
    model = marian(work.model)
    if precision == "bf16":
        model = model.bfloat16()
    sources_BS = torch.tensor(work.sources)
    mask_BS = torch.ones_like(sources_BS)

    def call() -> Ids:
        with torch.inference_mode():
            targets_BT = model.generate(
                input_ids=sources_BS,
                attention_mask=mask_BS,
                num_beams=work.beam_size,
                do_sample=False,
                min_new_tokens=LENGTH,
                max_new_tokens=LENGTH,
            )
        return [list(row[1:]) for row in targets_BT.tolist()]

    return call


def ours_on_text(setting: str, *, engine: str, precision: str, options: Options) -> Call:
    """Our decoding of sentences, batching included: what ``glassformer translate`` does between text and text."""
    from glassformer.api import load
    from glassformer.decoding import Decoding
    from glassformer.generate.constraints import Constraints

    translator = load(options.model, device="cpu", engine=engine, precision=precision, threads=options.threads)
    rows = [translator.read(text, direction) for text, direction in _texts(translator, options)]
    decoding = Decoding(beam_size=REAL[setting])
    constraints = [Constraints()] * len(rows)

    def call() -> Ids:
        found = translator.decode(rows, decoding, (), constraints, BATCH_TOKENS)
        return [list(of_one[0].ids) for of_one in found]

    return call


def ctranslate2_on_text(setting: str, *, precision: str, workers: int, threads: int, options: Options) -> Call:
    """CTranslate2 over the same ids, with the batch size that suited it best of those tried on some of them."""
    from glassformer.api import find_model, load
    from glassformer.decoding import LENGTH_PENALTY

    reader = load(options.model, device="cpu", precision="auto")
    rows = [reader.read(text, direction).ids for text, direction in _texts(reader, options)]
    translator = _translator(find_model(options.model), precision, workers, threads)
    sources = [list(map(str, ids)) for ids in rows]
    longest = 2 * max(map(len, rows)) + 10  # ours allows each sentence twice its source plus ten
    alpha = LENGTH_PENALTY * TYPICAL / (5 + TYPICAL)

    def translate(some: Sequence[list[str]], batch: int) -> Ids:
        results = translator.translate_batch(
            some,
            beam_size=REAL[setting],
            length_penalty=alpha,
            max_decoding_length=longest,
            max_batch_size=batch,
            batch_type="tokens",
        )
        return [list(map(int, result.hypotheses[0])) for result in results]

    sample = sources[:: max(1, len(sources) // TRIED)]
    translate(sample, 1024)
    tries = {batch: partial(translate, sample, batch) for batch in (256, 512, 1024, 2048, 4096)}
    best = min(tries, key=lambda batch: min(_seconds(tries[batch]) for _ in range(2)))
    return Noted(partial(translate, sources, best), f"batches of {best} tokens")


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _translator(model: Path, precision: str, workers: int, threads: int) -> Any:
    return importlib.import_module("ctranslate2").Translator(
        str(ctranslate2_model(model, precision)),
        compute_type=precision,
        inter_threads=workers,
        intra_threads=threads,
    )


def _texts(translator: Any, options: Options) -> list[tuple[str, tuple[str, str]]]:
    direction = translator.directions[0]
    return [(pair.source, direction) for pair in _pairs(direction, options)]


def _pairs(direction: tuple[str, str], options: Options) -> list[Any]:
    from glassformer.data.corpus import read_pairs

    source, target = direction
    return read_pairs(options.pairs, source=source, target=target)[: options.lines]


def _systems(setting: str, options: Options) -> list[System]:
    threads = options.threads
    layouts = [(1, 1), (1, threads), (threads, 1)] if threads > 1 else [(1, 1)]
    if setting in REAL:
        return _on_text(options, layouts)
    if setting.endswith("-b1"):  # one sentence is one worker's
        layouts = [(workers, each) for workers, each in layouts if workers == 1]
    return _forced(threads, layouts)


def _ours(name: str, prepare: Callable[[str], Call], threads: int) -> System:
    return System(f"glassformer {name}", prepare, threads=threads, packages=("glassformer",))


def _theirs(precision: str, workers: int, threads: int, prepare: Callable[..., Call]) -> System:
    return System(
        f"ctranslate2 {precision} {workers}x{threads}",
        partial(prepare, precision=precision, workers=workers, threads=threads),
        threads=threads,
        peer=True,
        packages=("ctranslate2",),
    )


def _in_torch(name: str, prepare: Callable[[str], Call], threads: int, *, peer: bool) -> System:
    packages = ("transformers" if peer else "glassformer", "torch")
    return System(name, prepare, threads=threads, peer=peer, packages=packages, slow=True)


def _forced(threads: int, layouts: Sequence[tuple[int, int]]) -> list[System]:
    # Without workers the engine chooses, as it does for whoever does not ask for a number.
    every = [("int8", 0, threads), *(("int8", workers, workers * each) for workers, each in layouts)]
    return [
        *(
            _ours(
                f"{precision} {workers}x{n // workers}" if workers else precision,
                partial(native, precision=precision, threads=n, workers=workers),
                n,
            )
            for precision, workers, n in [*every, ("bf16", 0, threads), ("fp32", 0, threads)]
        ),
        *(_theirs(precision, *layout, ctranslate2) for precision in ("int8", "float32") for layout in layouts),
        *(
            _in_torch(
                f"glassformer {engine} {precision}",
                partial(in_torch, engine=engine, precision=precision, threads=threads),
                threads,
                peer=False,
            )
            for engine, precision in IN_TORCH
        ),
        *(
            _in_torch(
                f"hf-marian {precision}",
                partial(hugging_face, precision=precision, threads=threads),
                threads,
                peer=True,
            )
            for precision in ("fp32", "bf16")
        ),
    ]


def _on_text(options: Options, layouts: Sequence[tuple[int, int]]) -> list[System]:
    def ours(engine: str, precision: str) -> Callable[[str], Call]:
        return partial(ours_on_text, engine=engine, precision=precision, options=options)

    theirs = partial(ctranslate2_on_text, options=options)
    return [
        *(_ours(precision, ours("native", precision), options.threads) for precision in ("int8", "bf16", "fp32")),
        *(_theirs("int8", *layout, theirs) for layout in layouts),
        _theirs("float32", *layouts[-1], theirs),  # for its tokens: one layout is enough
        *(
            _in_torch(f"glassformer {engine} {precision}", ours(engine, precision), options.threads, peer=False)
            for engine, precision in IN_TORCH
        ),
    ]


def _rates(setting: str, options: Options) -> Mapping[str, float]:
    if setting not in REAL:
        sentences = len(Forced.of(setting).sources)
        return {"sentences": sentences, "target tokens": sentences * LENGTH}
    lines = sum(1 for _ in options.pairs.open(encoding="utf-8")) - 1
    return {"sentences": min(options.lines, lines)}


def _make(setting: str, options: Options) -> None:
    from glassformer.api import find_model
    from glassformer.runtime.cache import packed

    if setting in REAL and not options.pairs.is_file():
        raise SystemExit(f"--pairs {options.pairs}: no such file")
    model = find_model(options.model) if setting in REAL else write_random_model(setting.partition("-")[0])
    for precision in ("int8", "bf16", "fp32"):
        packed(model, precision)
    for precision in ("int8", "float32"):
        try:
            write_ctranslate2_model(model, precision)
        except ModuleNotFoundError:
            return  # its systems will say so


def same_tokens(targets: Ids, reference: Ids) -> float:
    """The share of the reference's tokens that stand in their places, over all sentences."""
    same = sum(a == b for ids, of in zip(targets, reference, strict=True) for a, b in zip(ids, of, strict=False))
    return same / sum(max(len(ids), len(of)) for ids, of in zip(targets, reference, strict=True))


def check_tokens(outcomes: Mapping[str, Ids], *, equal: bool) -> dict[str, dict[str, str]]:
    """How many tokens of each system are those of the first in float32, as a column of the table.

    Args:
        equal: Whether all in float32 must agree.

    Raises:
        Failed: They do not.
    """
    exact = [name for name in outcomes if "fp32" in name or "float32" in name]
    figures: dict[str, dict[str, str]] = {name: {} for name in outcomes}
    for name, targets in outcomes.items() if exact else ():
        same = same_tokens(targets, outcomes[exact[0]])
        figures[name][f"tokens as {exact[0]}"] = f"{100 * same:.2f} %"
        # Two orders of summation differ in the last bit, which may decide a tie; a mistake differs everywhere.
        if equal and name in exact and same < 0.995:
            raise Failed(f"only {100 * same:.1f} % of the tokens of {name} are those of {exact[0]}")
    return figures


def _check(setting: str, options: Options, outcomes: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    for name, targets in outcomes.items() if setting not in REAL else ():
        if any(len(ids) != LENGTH for ids in targets):
            raise Failed(f"{name} did not write {LENGTH} tokens for each source")
    # The length penalties differ, so real beams may end in another translation.
    figures = check_tokens(outcomes, equal=setting != "real")
    if setting in REAL:
        from glassformer.api import load
        from glassformer.train.evaluate import corpus_bleu

        translator = load(options.model, device="cpu")
        direction = translator.directions[0]
        references = [pair.target for pair in _pairs(direction, options)]
        for name, targets in outcomes.items():
            texts = [translator.tokenizer.decode(ids) for ids in targets]
            figures[name]["BLEU"] = f"{corpus_bleu(texts, references, direction[1]):.2f}"
    return figures


FORCED = tuple(f"{size}-{search}-b{batch}" for size in ("base", "small") for search in SEARCHES for batch in (1, 32))
QUESTION = Question(
    (*FORCED, *REAL, *(f"tiny-{search}-b2" for search in SEARCHES)), FORCED, _systems, _rates, _make, _check
)

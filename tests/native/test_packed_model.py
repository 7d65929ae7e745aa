"""A packed model computes what the torch module does, and search over it finds what `glassformer.generate` finds."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest
import torch

from glassformer.generate import BannedWords, Constraints, NoRepeatNgram, Request, SearchConfig
from glassformer.generate import search as reference
from glassformer.runtime import library
from tests.native.models import BOS, EOS, drawn, logits_of, module_of, opened, sources
from tests.toys import batch

SEEDS = range(24)


def padded_batch(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """As `tests.toys.batch`, though 0 may be a token."""
    ids, _ = batch([tuple(row) for row in rows])
    return ids, torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_variants_logits_are_the_modules(seed, tmp_path):
    config = drawn(seed)
    module = module_of(config, seed)
    r = np.random.default_rng(seed)
    given = sources(config.embed.vocab_size, r.integers(1, 30, 5).tolist(), seed)
    targets_NT = r.integers(0, config.target_vocab_size, (5, 9))
    wanted = logits_of(module, given, targets_NT)
    scale = np.abs(wanted).max()
    for kernels in library.kernel_sets():
        state = opened(module, config, tmp_path, kernels=kernels, threads=2).start(given)
        found = np.concatenate(
            [state.step(targets_NT[:, :1])[:, None], state.step(targets_NT[:, 1:], last_only=False)], 1
        )
        assert found.shape == wanted.shape and state.length == 9
        assert np.abs(found - wanted).max() <= 1e-4 * max(scale, 1), kernels


@pytest.mark.parametrize("precision, least", [("bf16", 0.9995), ("int8", 0.99)])
def test_smaller_precisions_stay_close(precision, least, tmp_path):
    cosines = []
    for seed in SEEDS:
        config = drawn(seed)
        module = module_of(config, seed)
        given = sources(config.embed.vocab_size, [3, 8, 20], seed)
        targets_NT = np.random.default_rng(seed).integers(0, config.target_vocab_size, (3, 5))
        wanted = logits_of(module, given, targets_NT).reshape(15, -1)
        for kernels in library.kernel_sets():
            state = opened(module, config, tmp_path, precision, kernels=kernels).start(given)
            found = state.step(targets_NT, last_only=False).reshape(15, -1)
            norms = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
            cosines.append(((found * wanted).sum(1) / norms).mean())
    assert np.median(cosines) > least and min(cosines) > 1 - 20 * (1 - least), (np.median(cosines), min(cosines))


def requests(config, seed: int) -> dict:
    """A random request for a search."""
    r = random.Random(seed)
    count, vocab = r.randint(1, 7), config.target_vocab_size
    prefixes = [[r.randrange(3, vocab) for _ in range(r.choice([0, 0, 1, 3]))] for _ in range(count)]
    beam = r.choice([1, 2, 5, 20])
    some = [r.randrange(3, vocab) for _ in range(5)]
    return dict(
        sources=sources(config.embed.vocab_size, [r.randint(1, 25) for _ in range(count)], seed),
        prefixes=prefixes,
        limits=[len(prefix) + r.choice([1, 2, 8, 20]) for prefix in prefixes],
        banned_ids=r.sample(range(vocab), r.choice([0, 2, 5])),
        # Of few tokens, so that hypotheses come upon them.
        banned_phrases=[r.choices(some, k=r.randint(1, 3)) for _ in range(r.choice([0, 0, 40]))],
        no_repeat_ngram=r.choice([0, 0, 1, 2, 3]),
        beam_size=beam,
        n_best=r.randint(1, beam),
        length_penalty=r.choice([0.0, 0.6, 1.0, 2.0]),
    )


def expected(module, options: dict, eos_id: int) -> list[list]:
    """By `glassformer.generate.search`, each sentence alone, for it knows one number of new tokens for all."""
    found, ngram = [], options["no_repeat_ngram"]
    banned = BannedWords(tuple(map(tuple, options["banned_phrases"])))
    processors = (banned, NoRepeatNgram(ngram)) if ngram else (banned,)
    for source, prefix, limit in zip(options["sources"], options["prefixes"], options["limits"], strict=True):
        config = SearchConfig(options["beam_size"], options["n_best"], options["length_penalty"], limit - len(prefix))
        constraints = [Constraints(tuple(prefix))]
        request = Request(BOS, eos_id, options["banned_ids"], processors=processors, constraints=constraints)
        found += reference(module, *padded_batch([source]), config, request)
    return found


def score(found, alpha: float) -> float:
    return sum(found.token_logprobs) / ((5 + len(found.token_logprobs)) / 6) ** alpha


@pytest.mark.parametrize("eos", ["now and then", "never", "at once"])
@pytest.mark.parametrize("seed", range(16))
def test_search_finds_what_the_reference_finds(seed, eos, tmp_path):
    wide = dict(embed=dict(vocab_size=1300), target_embed=None)  # more logits than are looked at at once
    config = drawn(100 + seed, **(wide if seed % 4 == 3 else {}))
    module = module_of(config, seed)
    if config.head.bias and eos != "now and then":
        module.head.bias[EOS] = -1e4 if eos == "never" else 1e4
    options = requests(config, seed)
    if eos == "at once":
        options["banned_ids"] = [id_ for id_ in options["banned_ids"] if id_ != EOS]
    wanted = expected(module, options, EOS)
    native = opened(module, config, tmp_path, threads=2)
    found = native.search(bos_id=BOS, eos_id=EOS, **options)
    for ours, theirs in zip(found, wanted, strict=True):
        assert [(h.ids, h.finished) for h in ours] == [(h.ids, h.finished) for h in theirs]
        assert [score(h, options["length_penalty"]) for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
        for h, reference_h in zip(ours, theirs, strict=True):
            assert h.token_logprobs == pytest.approx(reference_h.token_logprobs, abs=1e-4)
    # Teacher forcing gives the very numbers.
    for source, of_one in zip(options["sources"], found, strict=True):
        targets = [[*h.ids, *[EOS] * h.finished] for h in of_one]
        assert native.score([source] * len(targets), targets, bos_id=BOS) == [list(h.token_logprobs) for h in of_one]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("seed", range(3))
def test_company_order_threads_and_workers_change_no_bit(seed, precision, tmp_path):
    config = drawn(200 + seed, embed=dict(vocab_size=1500), target_embed=None)  # three chunks of logits
    module = module_of(config, seed)
    options = requests(config, seed)
    r = random.Random(seed)
    more = 11
    options["sources"] = sources(1500, [r.randint(1, 30) for _ in range(more)], seed)
    options["prefixes"] = [[r.randrange(3, 1500) for _ in range(r.choice([0, 2]))] for _ in range(more)]
    options["limits"] = [len(prefix) + r.choice([1, 5, 12]) for prefix in options["prefixes"]]
    each = ("sources", "prefixes", "limits")
    for kernels in library.kernel_sets():

        def run(order=range(more), threads=1, kernels=kernels, **changes):
            native = opened(module, config, tmp_path, precision, threads=threads, kernels=kernels)
            chosen = {name: [options[name][i] for i in order] for name in each}
            return native.search(bos_id=BOS, eos_id=EOS, **{**options, **chosen, **changes})

        together = run()
        assert [run([i])[0] for i in range(more)] == together
        order = r.sample(range(more), more)
        assert run(order) == [together[i] for i in order]
        for threads in (2, 3):
            for workers in (0, 1, 2, 3, 50):
                assert run(threads=threads, workers=workers) == together, (kernels, threads, workers)


@pytest.mark.parametrize("byte", [0x5A, 0x7F, 0x01])
def test_what_memory_held_before_changes_nothing(byte, tmp_path):
    """glibc fills what it hands out; at 0x7F every float is near the largest one."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        pytest.skip("this C library has no mallopt")
    m_perturb, m_mmap_threshold = -6, -3
    for seed in range(6):
        config = drawn(300 + seed)
        module = module_of(config, seed)
        options = requests(config, seed) | dict(beam_size=5, n_best=5)
        for precision in ("fp32", "int8"):
            native = opened(module, config, tmp_path, precision, threads=2)
            before = native.search(bos_id=BOS, eos_id=EOS, **options)
            assert mallopt(m_mmap_threshold, 1 << 25) and mallopt(m_perturb, byte ^ 0xFF)
            try:
                after = native.search(bos_id=BOS, eos_id=EOS, **options)
            finally:
                mallopt(m_perturb, 0)
            assert after == before

"""A decoding step by step keeps its rows' pasts through any selection and truncation, beside any other decoding."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from glassformer.runtime import library
from tests.native.models import BOS, EOS, drawn, logits_of, module_of, opened, sources


@pytest.mark.parametrize("seed", range(12))
def test_a_row_is_its_source_and_its_tokens_whatever_was_done_to_the_state(seed, tmp_path):
    """Random steps of one or more tokens, selections (also of no row) and truncations, against teacher forcing."""
    config = drawn(400 + seed)
    module = module_of(config, seed)
    r = random.Random(seed)
    vocab = config.target_vocab_size
    given = sources(config.embed.vocab_size, [r.randint(1, 20) for _ in range(3)], seed)
    kernels = r.choice(library.kernel_sets())
    state = opened(module, config, tmp_path, threads=r.choice([1, 2]), kernels=kernels).start(given)
    rows: list[tuple[list[int], list[int]]] = [(source, []) for source in given]
    for _ in range(25):
        action = r.choice(["step", "step", "select", "truncate"])
        if action == "step" and state.length < 36:
            count = r.choice([1, 1, 3])
            tokens_NT = np.array([[r.randrange(vocab) for _ in range(count)] for _ in rows])
            found = state.step(tokens_NT, last_only=False)
            rows = [(source, [*past, *new]) for (source, past), new in zip(rows, tokens_NT.tolist(), strict=True)]
            wanted = logits_of(module, [source for source, _ in rows], np.array([past for _, past in rows]))
            assert np.allclose(found, wanted[:, -count:], atol=1e-4 * max(1, np.abs(wanted).max()))
        elif action == "select":
            index = [r.randrange(len(rows)) for _ in range(r.randint(1, 5))]
            state.select(index)
            rows = [rows[i] for i in index]
        elif action == "truncate":
            length = r.randint(0, state.length)
            state.truncate(length)
            rows = [(source, past[:length]) for source, past in rows]
        assert (state.rows, state.length) == (len(rows), len(rows[0][1]))
    state.select([])
    assert state.step(np.zeros((0, 1), int)).shape == (0, vocab)


def test_a_step_is_the_same_bits_however_it_is_cut(tmp_path):
    config = drawn(450)
    native = opened(module_of(config), config, tmp_path, threads=2)
    given = sources(config.embed.vocab_size, [4, 9, 2])
    tokens_NT = np.random.default_rng(0).integers(0, config.target_vocab_size, (3, 12))
    whole = native.start(given).step(tokens_NT, last_only=False)
    state = native.start(given)
    assert np.array_equal(np.stack([state.step(tokens_NT[:, i : i + 1]) for i in range(12)], 1), whole)
    state.truncate(5)
    assert np.array_equal(state.step(tokens_NT[:, 5:], last_only=False), whole[:, 5:])
    for i in range(3):
        assert np.array_equal(native.start([given[i]]).step(tokens_NT[i : i + 1], last_only=False)[0], whole[i])


def asked(config, seed: int) -> dict:
    r = random.Random(seed)
    count = r.randint(1, 4)
    return dict(
        sources=sources(config.embed.vocab_size, [r.randint(1, 20) for _ in range(count)], seed),
        limits=[r.randint(1, 15) for _ in range(count)],
        beam_size=r.choice([1, 3]),
        bos_id=BOS,
        eos_id=EOS,
    )


def test_many_threads_over_one_model_get_what_one_gets(tmp_path):
    config = drawn(460)
    native = opened(module_of(config), config, tmp_path, threads=2)
    tokens_NT = np.arange(6)[None]

    def work(seed: int):
        options = asked(config, seed)
        state = native.start(options["sources"][:1])
        return native.search(**options), state.step(tokens_NT, last_only=False).tobytes()

    alone = [work(seed) for seed in range(40)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(40))) == alone


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_of_a_process_that_has_searched_searches(tmp_path):
    config = drawn(470)
    native = opened(module_of(config), config, tmp_path, threads=3)
    options = asked(config, 7)
    before = native.search(**options)
    child = os.fork()
    if child == 0:
        # No exception may reach pytest in the child.
        os._exit(0 if _agrees(native, options, before) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert native.search(**options) == before


def _agrees(native, options, before) -> bool:
    try:
        return native.search(**options) == before
    except BaseException:
        return False

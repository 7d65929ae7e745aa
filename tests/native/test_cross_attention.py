"""Cross-attention read from the native engine: that of the torch module, head by head."""

from __future__ import annotations

import numpy as np
import pytest

from glassformer.engines.model import ModelEngine
from glassformer.runtime.library import kernel_sets
from tests.native.models import drawn, module_of, opened, sources


@pytest.mark.parametrize("seed", range(30))
def test_patterns_are_the_modules(seed, tmp_path):
    config = drawn(seed)
    module = module_of(config, seed)
    native = opened(module, config, tmp_path, threads=1 + seed % 3)
    read = sources(config.embed.vocab_size, [5, 1, 33, 17], seed)
    written = sources(config.target_vocab_size, [3, 9, 1, 20], seed + 1)
    engine = ModelEngine(module)
    assert native.cross_heads == engine.cross_heads
    heads = [(layer, head) for layer, count in native.cross_heads.items() for head in range(count)]
    heads = heads[::-1] + heads[:1]  # in any order, and one of them twice
    found = native.cross_attention(read, written, heads)
    for source, target, x_HTS in zip(read, written, found, strict=True):
        assert x_HTS.shape == (len(heads), len(target), len(source))
        (wanted_HTS,) = engine.cross_attention([source], [target], heads)
        np.testing.assert_allclose(x_HTS, wanted_HTS, rtol=0, atol=1e-4)
        # Nothing depends on what else was asked, to the bit.
        np.testing.assert_array_equal(native.cross_attention([source], [target], heads[1:])[0], x_HTS[1:])


def test_every_instruction_set_and_precision_gives_shares_of_one(tmp_path):
    config = drawn(1)
    module = module_of(config, 1)
    read, written = sources(9, [6, 2]), sources(9, [4, 5])
    exact = opened(module, config, tmp_path).cross_attention(read, written, [(0, 0)])
    for name in kernel_sets():
        for precision, least in (("fp32", 1e-5), ("bf16", 0.05), ("int8", 0.05)):
            found = opened(module, config, tmp_path, precision, kernels=name).cross_attention(read, written, [(0, 0)])
            for x_HTS, wanted_HTS in zip(found, exact, strict=True):
                np.testing.assert_allclose(x_HTS.sum(-1), 1, rtol=1e-5)
                np.testing.assert_allclose(x_HTS, wanted_HTS, rtol=0, atol=least)


def test_nothing_is_asked_and_nothing_comes(tmp_path):
    config = drawn(2)
    native = opened(module_of(config, 2), config, tmp_path)
    assert native.cross_attention([], [], [(0, 0)]) == []
    shapes = [x.shape for x in native.cross_attention([[3, 4], [], [5]], [[], [3], [3, 4]], [(0, 0)])]
    assert shapes == [(1, 0, 2), (1, 1, 0), (1, 2, 1)]
    assert native.cross_attention([[3]], [[4]], [])[0].shape == (0, 1, 1)


def test_what_the_model_lacks_is_refused(tmp_path):
    config = drawn(0, decoder=drawn(0).decoder.model_dump() | {"position": dict(type="learned", max_len=8)})
    native = opened(module_of(config), config, tmp_path)
    for arguments, message in (
        (([[3]], [[4]], [(9, 0)]), "the model has"),
        (([[3]], [[4]], [(0, -1)]), "the model has"),
        (([[3]], [[4], [5]], [(0, 0)]), "1 sources, 2 targets"),
        (([[3]], [[4000]], [(0, 0)]), "target ids"),
        (([[3]], [[4] * 9], [(0, 0)]), "a target of 9 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            native.cross_attention(*arguments)

"""A decoder and an encoder, loaded by path into the native engine: the text and the vectors are the module's."""

import numpy as np
import pytest
import torch

from glassformer.api import load
from glassformer.errors import UserError
from glassformer.families import configure
from glassformer.models.build import build_model
from glassformer.runtime.library import EngineUnavailable, library
from glassformer.store import save_model
from glassformer.text.tokenizer import Tokenizer
from tests.randomised import randomise

LINES = ["我爱自然语言处理。", "I love natural language processing.", "The cat sat on the mat."] * 4


@pytest.fixture(scope="module", autouse=True)
def _native():
    try:
        library()
    except EngineUnavailable as reason:
        pytest.skip(f"the native engine is not there: {reason}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def saved(folder, preset):
    tokenizer = Tokenizer.train(LINES, vocab_size=330)
    torch.manual_seed(3)
    module = randomise(build_model(configure(preset, vocab_size=tokenizer.vocab_size)), 3)
    save_model(folder / preset, module, tokenizer)
    return folder / preset


@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
def test_a_decoder_goes_on_as_the_module_does(folder, preset):
    path = saved(folder, preset)
    wanted, found = load(path, engine="model"), load(path, engine="native", precision="fp32")
    assert (found.engine.name, found.engine.precision) == ("native", "fp32")
    for options in (
        {},
        {"temperature": 0.9, "top_k": 20, "seed": 4},
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram": 2},
    ):
        prompts = ["The cat", "我爱", "I love natural"]
        assert found.generate(prompts, max_new_tokens=12, **options) == wanted.generate(
            prompts, max_new_tokens=12, **options
        )
    assert "".join(found.stream("The cat", max_new_tokens=12)) == found.generate("The cat", max_new_tokens=12)
    assert load(path, engine="native", precision="bf16").engine.precision == "bf16"
    # Weights drawn with such spread are nothing for int8.
    with pytest.raises(UserError, match="--engine native: int8 would change what this model says .*--precision bf16"):
        load(path, precision="int8")


def test_an_encoder_embeds_as_the_module_does(folder):
    path = saved(folder, "bert-tiny")
    wanted, found = load(path), load(path, engine="native", precision="fp32")
    assert (wanted.engine.name, found.engine.name) == ("model", "native")
    texts = ["The cat sat.", "", "我爱自然语言处理。", "cat " * 30]
    for options in ({}, {"pooling": "cls", "normalise": False}, {"batch_size": 1}):
        np.testing.assert_allclose(found.embed(texts, **options), wanted.embed(texts, **options), atol=1e-4)


def test_what_only_translators_have_is_refused_by_name(folder):
    path = saved(folder, "bert-tiny")
    with pytest.raises(UserError, match="--engine torch: it runs translators only"):
        load(path, engine="torch")
    with pytest.raises(UserError, match="--precision int8: only --engine native has it"):
        load(path, engine="model", precision="int8")

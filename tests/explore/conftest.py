"""Small models of every kind on disk, and a client of the page's server over them."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from glassformer.config import ModelConfig
from glassformer.explore.app import build_app
from glassformer.families import build, configure
from glassformer.header import Framing, Translation
from glassformer.store import save_model
from glassformer.text.tokenizer import Tokenizer
from tests.explore.helpers import LINES
from tests.randomised import randomise


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, str]:
    """Random models by what they are: paths to directories."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = Tokenizer.train(LINES, vocab_size=340, languages=("zh", "en"))
    size = tokenizer.vocab_size
    pieces = Tokenizer.train(LINES, kind="wordpiece", vocab_size=120)
    backend = pieces.backend
    backend.add_special_tokens(["[MASK]"])
    masked = Tokenizer(backend)
    guesses = configure("bert-tiny", vocab_size=masked.vocab_size).to_dict() | {"head": {"type": "masked-lm"}}
    guesses = ModelConfig.from_dict(guesses)
    saved = {
        "translator": (
            build("transformer-tiny", vocab_size=size, dropout=0.0),
            tokenizer,
            Translation("zh", "en", True),
            None,
        ),
        "writer": (build("gpt2-tiny", vocab_size=size), tokenizer, None, Framing(before=(1,), ends=(2,))),
        "masked": (build(guesses), masked, None, None),
        "classes": (build("vit-tiny"), None, None, None),
    }
    for seed, (name, (model, own, translation, framing)) in enumerate(saved.items()):
        randomise(model, seed)
        save_model(folder / name, model, own, translation, framing=framing)
    return {name: str(folder / name) for name in saved}


@pytest.fixture(scope="session")
def client(models) -> TestClient:
    """Of a server over all of them, and what ships with the package."""
    return TestClient(build_app(models.values()), raise_server_exceptions=False)

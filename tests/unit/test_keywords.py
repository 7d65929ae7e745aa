"""What a Python user mistypes is told in one line, with the nearest thing that there is."""

from __future__ import annotations

from typing import Any

import pytest

import glassformer as gf
from glassformer.embedder import Embedder
from glassformer.engines.model import ModelEngine
from glassformer.errors import UserError
from glassformer.generator import Generator
from glassformer.header import Framing
from glassformer.text.tokenizer import Tokenizer
from glassformer.translator import Translator

TOKENIZER = Tokenizer.train(["the cat sat on a mat"] * 3, vocab_size=280)


def of(preset: str, kind: Any) -> Any:
    model = gf.build(preset, vocab_size=TOKENIZER.vocab_size).eval()
    return kind(
        ModelEngine(model), TOKENIZER, **({} if kind is Translator else {"framing": Framing((1,), (2,), 1, (2,))})
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda t, g, e: t.translate(5), "translate: expected a text or a list of texts, got int"),
        (lambda t, g, e: t.translate(b"x"), "translate: expected a text or a list of texts, got bytes"),
        (lambda t, g, e: t.translate(None), "translate: expected a text or a list of texts, got NoneType"),
        (lambda t, g, e: t.translate(["x", 5]), "text 2: expected a string, got int"),
        (lambda t, g, e: t.translate("x", nbest=3), "translate: no option 'nbest'; did you mean 'n_best'?"),
        (lambda t, g, e: t.translate("x", beam=3), "translate: no option 'beam'; did you mean 'beam_"),
        (lambda t, g, e: t.translate("x", glosary={}), "translate: no option 'glosary'; did you mean 'glossary'?"),
        (lambda t, g, e: t.stream("x", temprature=1), "stream: no option 'temprature'; did you mean 'temperature'?"),
        (lambda t, g, e: g.generate(5), "generate: expected a text or a list of texts, got int"),
        (
            lambda t, g, e: g.generate("x", max_tokens=5),
            "generate: no option 'max_tokens'; did you mean 'max_new_tokens'?",
        ),
        (lambda t, g, e: g.generate("x", zzz=5), "generate: no option 'zzz'; known are beam_groups, "),
        (lambda t, g, e: e.embed(5), "embed: expected a text or a list of texts, got int"),
    ],
)
def test_a_mistyped_call_is_told(call: Any, says: str) -> None:
    models = of("transformer-tiny", Translator), of("gpt2-tiny", Generator), of("roberta-tiny", Embedder)
    with pytest.raises(UserError) as caught:
        list(call(*models))
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)

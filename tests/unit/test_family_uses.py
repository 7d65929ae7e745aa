"""Every family through every door: saved, opened by `gf.load`, used, and traced, as its module alone would answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer as gf
from glassformer.cli.main import main
from glassformer.config import ClassifierConfig, EmbedConfig, ModelConfig
from glassformer.families import FAMILIES, configure
from glassformer.header import Framing, unwritable_ids
from glassformer.interop import hf
from glassformer.models.build import build_model
from glassformer.store import save_model
from glassformer.text.tokenizer import Tokenizer
from tests.randomised import randomise

TINY = {
    family.name: next(name for name in family.presets if name.endswith("-tiny") or name == "transformer-tiny")
    for family in FAMILIES
}
KINDS = {family.name: family.kind for family in FAMILIES}
TEXT = "the cat sat on a mat"
TOKENIZER = Tokenizer.train([TEXT, "two dogs saw the mat"] * 3, vocab_size=300)


def model_of(family: str, **head: Any) -> Any:
    """The family's tiny preset with random weights, as many ids as the tokenizer has, and perhaps another head."""
    preset = TINY[family]
    reads_text = isinstance(configure(preset).embed, EmbedConfig)
    config = configure(preset, vocab_size=TOKENIZER.vocab_size) if reads_text else configure(preset)
    if head:
        config = ModelConfig.from_dict({**config.to_dict(), "head": head})
    return randomise(build_model(config), 3).eval()


def opened(folder: Path, model: Any) -> list[Any]:
    """The model as we save it, and where their format has such a model, as it is written for them."""
    reads_text = isinstance(model.config.embed, EmbedConfig)
    tokenizer = TOKENIZER if reads_text else None
    save_model(folder / "ours", model, tokenizer)
    places = [folder / "ours"]
    family = next(each for each in FAMILIES if TINY[each.name] == folder.name)
    if family.to_hf is not None and not (isinstance(model.config.head, ClassifierConfig) and family.kind == "decoder"):
        try:
            framing = Framing.of(TOKENIZER, model.config.kind) if reads_text else None
            hf.save(folder / "theirs", model, tokenizer, framing)
            places.append(folder / "theirs")
        except gf.UserError as error:
            assert "has no Hugging Face form" in str(error)
    return [gf.load(place, engine="model") for place in places]


@torch.no_grad()
def greedy(model: Any, read: list[int], written: list[int], n: int, forbidden: list[int]) -> list[int]:
    """What a model writes, by whole passes one token at a time."""
    ids = list(written)
    for _ in range(n):
        given = (torch.tensor([read]), torch.tensor([ids])) if read else (torch.tensor([ids]),)
        logits = model(*given)[0, -1]
        logits[forbidden] = -torch.inf
        if (token := int(logits.argmax())) == TOKENIZER.eos_id:
            break
        ids.append(token)
    return ids[len(written) :]


@pytest.mark.parametrize("family", [name for name, kind in KINDS.items() if kind == "decoder"])
def test_a_decoder_goes_on_from_a_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str) -> None:
    model = model_of(family)
    prompt = [TOKENIZER.bos_id, *TOKENIZER.encode(TEXT)]
    ids = greedy(model, [], prompt, 8, unwritable_ids(TOKENIZER, model.config.target_vocab_size))
    wanted = TOKENIZER.decode(prompt + ids)[len(TOKENIZER.decode(prompt)) :]
    for generator in opened(tmp_path / TINY[family], model):
        assert generator.generate(TEXT, max_new_tokens=8) == wanted == "".join(generator.stream(TEXT, max_new_tokens=8))
    place = str(tmp_path / TINY[family] / "ours")
    assert main(["generate", "-m", place, "--max-new-tokens", "8", TEXT]) == 0
    assert capsys.readouterr().out == wanted + "\n"


@pytest.mark.parametrize("family", [name for name, kind in KINDS.items() if kind == "encoder" and name != "vit"])
@torch.no_grad()
def test_an_encoder_of_texts_embeds_and_labels(tmp_path: Path, family: str) -> None:
    model, row = model_of(family), [TOKENIZER.bos_id, *TOKENIZER.encode(TEXT), TOKENIZER.eos_id]
    vector = model.hidden(torch.tensor([row]))[0].mean(0).numpy()
    for embedder in opened(tmp_path / TINY[family], model):
        np.testing.assert_allclose(embedder.embed(TEXT, pooling="mean", normalise=False), vector, rtol=1e-4, atol=1e-5)
    head = dict(type="classifier", labels=["yes", "no"], hidden="tanh" if model.config.embed.token_types else "relu")
    model = model_of(family, **head)
    wanted = model(torch.tensor([row]))[0].double().softmax(-1).tolist()
    for classifier in opened(tmp_path / "labels" / TINY[family], model):
        told = classifier.classify(TEXT)["probabilities"]
        assert [told["yes"], told["no"]] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("family", [name for name, kind in KINDS.items() if kind == "encoder-decoder"])
def test_an_encoder_decoder_translates(tmp_path: Path, family: str) -> None:
    model = model_of(family)
    source = [*TOKENIZER.encode(TEXT), TOKENIZER.eos_id]
    forbidden = unwritable_ids(TOKENIZER, model.config.target_vocab_size)
    wanted = TOKENIZER.decode(greedy(model, source, [TOKENIZER.bos_id], 8, forbidden))
    for translator in opened(tmp_path / TINY[family], model):
        assert translator.translate(TEXT, beam_size=1, max_new_tokens=8, mask=None).strip() == wanted.strip()


@pytest.mark.parametrize("family", TINY)
@torch.no_grad()
def test_a_traced_run_of_a_family_is_the_run(family: str) -> None:
    """On the preset itself; the laws of families do so for any numbers."""
    model = model_of(family)
    embed = model.config.embed
    if isinstance(embed, EmbedConfig):
        inputs = [torch.tensor([[1, 5, 9, 4, 2]])] * (1 + (model.config.kind == "encoder-decoder"))
    else:
        inputs = [torch.randn(2, embed.channels, *embed.image_size)]
    plain = model(*inputs)
    with gf.record(model) as trace:
        traced = model(*inputs)
    torch.testing.assert_close(traced, plain, rtol=1e-4, atol=1e-4)
    names = {tap if isinstance(tap, str) else tap.name for tap in model.taps()}
    unseen = names - set(trace)  # a stack without a table of positions passes over its tap
    assert set(trace) <= names and all(name.endswith(".positions") for name in unseen), unseen
    assert not any(value.isnan().any() for value in trace.values())

"""Models of recurrent mixers where users meet them: written text, drafts, translation, memory, formats that refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import glassformer as gf
from glassformer.engines.engine import Unavailable
from glassformer.engines.model import ModelEngine
from glassformer.engines.torch import TorchEngine
from glassformer.errors import UserError
from glassformer.generate import (
    PromptLookup,
    Request,
    SamplingConfig,
    SearchConfig,
    collect,
    generate,
    search,
    stream_speculative,
)
from glassformer.generator import Generator
from glassformer.header import Framing
from glassformer.models.describe import cost, tree
from glassformer.nn.ssm import ShortConv
from glassformer.nn.state import SLACK
from glassformer.runtime.library import EngineUnavailable
from glassformer.runtime.support import known_throughout
from glassformer.store import save_model
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.config import TrainSection
from glassformer.train.distributed import World
from glassformer.train.optim import Optimizer
from tests.digits import pairs, training, write_tsv
from tests.randomised import close, ids, random_model, randomise

PRESETS = ["retnet-tiny", "mamba-tiny", "mamba2-tiny"]
MIXERS: dict[str, dict[str, Any]] = {
    "retention": dict(type="retention", n_heads=2, chunk=5),
    "mamba": dict(type="mamba", d_state=4),
    "mamba2": dict(type="mamba2", n_heads=2, d_head=8, d_state=4, chunk=5),
    "attention": dict(n_heads=2, causal=True),
}


def seq2seq(encoder: dict[str, Any], *decoder: dict[str, Any], d_model: int = 8, vocab: int = 11) -> gf.ModelConfig:
    norm = dict(type="rms")
    shared = dict(ffn=dict(type="gated", d_ff=2 * d_model), norm=norm, order="pre")
    writers = [dict(mixer=mixer, cross=dict(n_heads=2), **shared) for mixer in decoder]
    readers = [dict(mixer=encoder, **shared)] * 2
    stacks = dict(encoder=dict(blocks=readers, final_norm=norm), decoder=dict(blocks=writers, final_norm=norm))
    return gf.ModelConfig.from_dict(dict(d_model=d_model, embed=dict(vocab_size=vocab), **stacks))


@pytest.mark.parametrize("preset", PRESETS)
@torch.no_grad()
def test_text_is_written_as_whole_passes_would_write_it_and_reads_back_from_a_folder(tmp_path: Path, preset) -> None:
    tokenizer = Tokenizer.train(["the cat sat on the mat", "我喜欢打篮球"] * 4, vocab_size=300)
    model = randomise(gf.build(preset, vocab_size=tokenizer.vocab_size))
    lm = Generator(ModelEngine(model), tokenizer, Framing.of(tokenizer, "decoder"))
    prompts = ["the cat", "我", "the mat sat on the cat the mat"]
    together = lm.generate(prompts, max_new_tokens=12, temperature=0)
    banned = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.unk_id]
    for prompt, told in zip(prompts, together, strict=True):
        row = [tokenizer.bos_id, *tokenizer.encode(prompt)]
        start = len(row)
        while len(row) < start + 12:
            logits = lm.model(torch.tensor([row]))[0, -1]
            logits[banned] = -torch.inf
            if (token := int(logits.argmax())) == tokenizer.eos_id:
                break
            row.append(token)
        assert told.strip() == tokenizer.decode(row[start:]).strip()
    save_model(tmp_path / "m", model, tokenizer)
    assert gf.load(tmp_path / "m").generate(prompts, max_new_tokens=12, temperature=0) == together


@pytest.mark.parametrize("name", ["retention", "mamba", "mamba2"])
@torch.no_grad()
def test_a_translator_of_recurrent_parts_searches_and_takes_drafts_back_as_its_whole_passes_say(name: str) -> None:
    encoder = dict(type="bidirectional", mixer=MIXERS[name])
    model = random_model(seq2seq(encoder, MIXERS[name], MIXERS["attention"]), seed=3)
    source, mask = ids(11, 3, 6, seed=1), torch.tensor([[True] * 6, [True] * 3 + [False] * 3, [True] * 5 + [False]])
    request = Request(bos_id=1, eos_id=2, banned_ids=(0, 1))
    greedy = SamplingConfig(temperature=0.0, max_new_tokens=9)
    plain = generate(model, source, mask, greedy, request)
    for row, (hypothesis,) in enumerate(plain):
        prefix = [1]
        for token in hypothesis.ids:
            logits = model(source[row : row + 1, mask[row]], torch.tensor([prefix]))[0, -1]
            logits[[0, 1]] = -torch.inf
            assert int(logits.argmax()) == token
            prefix.append(token)
    drafted = collect(stream_speculative(model, source, mask, greedy, request, draft=PromptLookup()))
    assert [each[0].ids for each in drafted] == [each[0].ids for each in plain]
    beams = SearchConfig(beam_size=4, max_new_tokens=9, n_best=4)
    for row, found in enumerate(search(model, source, mask, beams, request)):
        (alone,) = search(model, source[row : row + 1, mask[row]], None, beams, request)
        assert [each.ids for each in alone] == [each.ids for each in found]


@torch.no_grad()
def test_memory_stays_and_the_cost_of_a_step_is_told() -> None:
    for preset in PRESETS:
        model = gf.build(preset).eval()
        said, state = cost(model), model.start(ids(64, 2, 40))
        assert said.cache_per_target == 0 and said.state > 0
        held = []
        for _ in range(3 * SLACK):
            model.step(ids(64, 2, 1), state)
            held.append(state.nbytes)
        own = sum(t.nbytes for block in state.blocks for t in block.mixer.memory.values())
        assert own == 2 * said.state and max(held[2 * SLACK :]) <= max(held)
        assert tree(model).parameters == model.num_parameters()


@pytest.mark.parametrize("preset", [*PRESETS, "rwkv4-tiny", "rwkv5-tiny", "rwkv7-tiny", "lstm-tiny"])
def test_a_model_that_holds_shapes_alone_passes_them_on(preset: str) -> None:
    model = gf.build(preset, "meta")
    sources = [ids(64, 1, 5).to("meta")] * (2 if model.config.kind == "encoder-decoder" else 1)
    assert model(*sources).shape == (1, 5, 64)


@pytest.mark.parametrize("preset", ["retnet-tiny", "mamba2-tiny"])
@torch.no_grad()
def test_the_flops_are_those_of_the_products_that_run(preset: str) -> None:
    model = gf.build(preset).eval()
    with FlopCounterMode(display=False) as counter:
        model(ids(64, 1, 16))
    # The counter sees products of matrices alone, not the convolution.
    convolutions = sum(2 * part.weight.numel() for part in model.modules() if isinstance(part, ShortConv))
    assert 16 * (cost(model, context=16).flops_per_target - convolutions) == counter.get_total_flops()


@pytest.mark.parametrize("preset", PRESETS)
def test_formats_and_engines_that_know_attention_alone_refuse_by_name(tmp_path: Path, preset: str) -> None:
    name = preset.removesuffix("-tiny").replace("retnet", "retention")
    save_model(tmp_path / "m", gf.build(preset), None)
    for form in ("ct2", "onnx"):
        with pytest.raises(UserError, match=f"a mixer of type {name} cannot be represented, only attention") as caught:
            gf.convert(tmp_path / "m", tmp_path / form, to=form)
        assert "\n" not in str(caught.value)
    with pytest.raises(EngineUnavailable, match=f"(?i)does not know {name}"):
        known_throughout(gf.build(preset, "meta").config)
    with pytest.raises(Unavailable, match=f"(?i)does not know {name}"):
        TorchEngine(random_model(seq2seq(MIXERS[name], MIXERS[name])))


@pytest.mark.parametrize("name", ["retention", "mamba", "mamba2"])
def test_gradients_are_finite_over_a_long_text_also_in_bfloat16_and_nothing_goes_wrong_at_length_one(name) -> None:
    model = gf.build(seq2seq(dict(type="bidirectional", mixer=MIXERS[name]), MIXERS[name]))
    for length, precision in ((1, torch.float32), (300, torch.float32), (70, torch.bfloat16)):
        source, target = ids(11, 2, length), ids(11, 2, length, seed=1)
        mask = torch.ones(2, length, dtype=torch.bool)
        mask[1] = False  # a row that is all padding
        with torch.autocast("cpu", dtype=precision, enabled=precision != torch.float32):
            logits = model(source, target, mask, mask)
        model.zero_grad()
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), target.flatten()).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        assert logits.isfinite().all()
    exact = model(source, target, mask, mask)
    close(logits.float(), exact, rtol=0.2, atol=0.2)


def test_a_recurrences_own_parameters_start_where_its_authors_start_and_their_decay_is_not_decayed() -> None:
    model = gf.build("mamba-tiny")
    mixer = model.decoder.layers[0].mixer
    close(mixer.a_log.exp()[5], torch.arange(1, 9).float())
    steps = torch.nn.functional.softplus(mixer.step.bias)
    assert (steps > 0.9e-3).all() and (steps < 0.11).all() and steps.max() > 3 * steps.min()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Optimizer(model, TrainSection(weight_decay=0.1), World()).step(0.5)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    kinds = {name.rpartition("mixer.")[2] for name in moved if "mixer." in name}
    assert kinds == {"into.weight", "gate.weight", "conv.weight", "select.weight", "step.weight", "out.weight"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["retention", "mamba", "mamba2"])
def test_a_translator_of_recurrent_parts_learns_to_translate(tmp_path: Path, name: str) -> None:
    mixer = {**MIXERS[name], "chunk": 16} if name != "mamba" else MIXERS[name]
    steps = dict(steps=120, eval_every=120, save_every=120, eval_lines=2)
    config = training(tmp_path, lr=8e-3, warmup=20, schedule="linear", batch_tokens=400, **steps)
    write_tsv(tmp_path / "train.tsv", pairs(90, longest=2))
    config["data"] |= {"both_directions": False}
    config["model"] = seq2seq(dict(type="bidirectional", mixer=mixer), mixer, mixer, d_model=32, vocab=270).to_dict()
    config["tokenizer"] = {"vocab_size": 270}
    gf.train(config)
    translator = gf.load(tmp_path / "run" / "last")
    rows = pairs(10, longest=2)
    found = translator.translate([zh for zh, _ in rows], to="en", beam_size=2)
    assert sum(one == en for one, (_, en) in zip(found, rows, strict=True)) >= 8, found

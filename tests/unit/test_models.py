"""Encoders, decoders and images: what they give, what they refuse, and how fresh ones are drawn."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer as gf
from glassformer.config import ModelConfig
from glassformer.errors import UserError
from glassformer.generate.beam import search
from glassformer.generate.config import Constraints, Request, SamplingConfig, SearchConfig
from glassformer.generate.streaming import generate
from glassformer.models.build import build_model, model_of
from glassformer.models.heads import pool
from glassformer.runtime.library import EngineUnavailable
from glassformer.runtime.support import known_throughout
from tests.family_configs import decoders, encoders, relatives
from tests.randomised import close, ids, lengths_mask, random_model

BLOCK: dict[str, Any] = dict(mixer=dict(n_heads=2), ffn=dict(d_ff=12), order="pre")
CAUSAL: dict[str, Any] = {**BLOCK, "mixer": dict(n_heads=2, causal=True)}


def config(**parts: Any) -> ModelConfig:
    return ModelConfig.from_dict({"d_model": 8, "embed": dict(vocab_size=11), **parts}, "model")


def image_model(size: tuple[int, int] = (8, 12), **embed: Any) -> Any:
    patches = dict(type="patches", image_size=size, patch_size=(4, 3), channels=2, **embed)
    head = dict(type="classifier", labels=["a", "b", "c"], pool="first" if embed.get("class_token", True) else "mean")
    return random_model(config(embed=patches, encoder=dict(blocks=[BLOCK], final_norm={}), head=head))


@torch.no_grad()
def test_patches_are_cut_row_by_row_and_projected() -> None:
    model, pixels = image_model(), torch.randn(2, 2, 8, 12)
    weight, bias = model.embed.patch.weight, model.embed.patch.bias
    with gf.record(model) as trace:
        logits = model(pixels)
    assert logits.shape == (2, 3)
    for row in range(2):
        for column in range(4):
            cut = pixels[:, :, row * 4 : row * 4 + 4, column * 3 : column * 3 + 3]
            expected = torch.stack([(cut * kernel).sum((1, 2, 3)) for kernel in weight], 1) + bias
            close(trace["embed.patches"][:, row * 4 + column], expected)
    first = trace["encoder.input"] - trace["embed.positions"]
    close(first[:, 0], model.embed.class_token.expand(2, -1))
    close(first[:, 1:], trace["embed.patches"])


def bicubic(grid: torch.Tensor, size: int) -> torch.Tensor:
    """Stretches the first dimension: a new place gathers four old ones (Keys 1981, a = −0.75), the border repeated."""
    rows = []
    for place in range(size):
        at = (place + 0.5) * len(grid) / size - 0.5
        row = torch.zeros_like(grid[0])
        for old in range(math.floor(at) - 1, math.floor(at) + 3):
            x, a = abs(at - old), -0.75
            near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
            row += (near if x <= 1 else far) * grid[min(max(old, 0), len(grid) - 1)]
        rows.append(row)
    return torch.stack(rows)


@torch.no_grad()
@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize(("height", "width"), [(8, 12), (16, 24), (4, 60), (20, 3)])
def test_positions_are_interpolated_for_other_sizes(class_token: bool, height: int, width: int) -> None:
    model = image_model(class_token=class_token)
    with gf.record(model) as trace:
        assert model(torch.randn(1, 2, height, width)).shape == (1, 3)
    own, places = model.embed.position, trace["embed.positions"]
    assert torch.equal(places[: int(class_token)], own[: int(class_token)])
    grid = own[int(class_token) :].view(2, 4, 8)
    expected = bicubic(bicubic(grid, height // 4).transpose(0, 1), width // 3).transpose(0, 1)
    close(places[int(class_token) :], expected.flatten(0, 1))


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1, 3, 8, 12), "pixels of shape [1, 3, 8, 12], but the model reads (B, 2, H, W)"),
        ((2, 8, 12), "but the model reads (B, 2, H, W)"),
        ((1, 2, 9, 12), "an image of 9 × 12 pixels is no multiple of patches of 4 × 3"),
        ((1, 2, 0, 12), "an image of 0 × 12 pixels"),
    ],
)
def test_what_is_no_image_of_the_model_is_refused_in_one_line(shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        image_model()(torch.zeros(shape))


@given(st.integers(0, 10**6), st.sampled_from(["first", "mean", "last"]), st.data())
def test_pooling_sees_real_tokens_alone(seed: int, kind: str, data: st.DataObject) -> None:
    x, mask = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(seed)), torch.zeros(3, 6, dtype=torch.bool)
    for row in range(3):
        mask[row, data.draw(st.lists(st.integers(0, 5), min_size=1))] = True
    for row, pooled in enumerate(pool(x, mask, kind)):
        real = x[row][mask[row]]
        close(pooled, {"first": real[0], "last": real[-1], "mean": real.mean(0)}[kind])
    close(pool(x, None, kind), pool(x, torch.ones_like(mask), kind))


@settings(max_examples=30)
@given(st.one_of(decoders(), encoders(), relatives()))
def test_every_config_survives_a_round_trip_and_builds_on_meta_as_on_the_cpu(config: ModelConfig) -> None:
    assert ModelConfig.from_dict(config.to_dict()) == config
    real, shapes = build_model(config), build_model(config, "meta")
    assert {n: t.shape for n, t in real.state_dict().items()} == {n: t.shape for n, t in shapes.state_dict().items()}
    assert real.num_parameters() == shapes.num_parameters()
    assert all(p.isfinite().all() for p in real.parameters())
    again = model_of(config, real.state_dict())
    assert all(p.data_ptr() == q.data_ptr() for p, q in zip(real.parameters(), again.parameters(), strict=True))


def test_a_model_around_given_tensors_computes_the_same() -> None:
    model = gf.build("transformer-tiny").eval()
    again = model_of(model.config, model.state_dict()).eval()
    close(again(ids(64, 1, 4), ids(64, 1, 3)), model(ids(64, 1, 4), ids(64, 1, 3)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (dict(), "a model needs an encoder, a decoder, or both"),
        (
            dict(decoder=dict(blocks=[BLOCK])),
            "decoder block 0: self-attention is causal in the decoder and nowhere else",
        ),
        (
            dict(decoder=dict(blocks=[{**CAUSAL, "cross": dict(n_heads=2)}])),
            "decoder block 0: cross-attention belongs in the decoder of an encoder–decoder and nowhere else",
        ),
        (dict(encoder=dict(blocks=[BLOCK]), target_embed=dict(vocab_size=3)), "target_embed is for an encoder–decoder"),
        (
            dict(encoder=dict(blocks=[BLOCK]), embed=dict(type="patches", image_size=[4, 4], patch_size=[2, 2])),
            "head lm: an image has no ids to predict",
        ),
        (
            dict(encoder=dict(blocks=[BLOCK]), embed=dict(type="patches", image_size=[4, 5], patch_size=[2, 2])),
            "embed: image_size (4, 5) is not a multiple of patch_size (2, 2)",
        ),
        (
            dict(decoder=dict(blocks=[{**CAUSAL, "parallel": True, "order": "post"}])),
            "a parallel block needs order: pre",
        ),
        (
            dict(decoder=dict(blocks=[{**CAUSAL, "mixer": dict(n_heads=4, n_kv_heads=3, causal=True)}])),
            "decoder block 0: n_heads 4 is not a multiple of n_kv_heads 3",
        ),
        (
            dict(decoder=dict(blocks=[{**CAUSAL, "mixer": dict(n_heads=2, causal=True, rotary=dict(fraction=0.3))}])),
            "decoder block 0: rotary.fraction 0.3 of a head of 4 is no even number",
        ),
        (
            dict(encoder=dict(blocks=[{**BLOCK, "ffn": dict(type="gatd")}])),
            "encoder.blocks.0.ffn: unknown type 'gatd'; did you mean 'gated'?",
        ),
        (
            dict(encoder=dict(blocks=[BLOCK]), head=dict(type="classifier", labls=[])),
            "unknown key 'head.labls'; did you",
        ),
    ],
)
def test_a_mistaken_shape_is_told_in_one_line(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        config(**parts)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_the_native_engine_refuses_by_name_what_it_does_not_know() -> None:
    writer = {**CAUSAL, "cross": dict(n_heads=2)}
    strange = {**BLOCK, "ffn": dict(d_ff=4, activation="quick-gelu")}
    for encoder, says in ((dict(blocks=[strange]), "quick-gelu"), (dict(blocks=[BLOCK], bias=dict(type="t5")), "bias")):
        with pytest.raises(EngineUnavailable, match=says):
            known_throughout(config(encoder=encoder, decoder=dict(blocks=[writer])))


def spread(module: torch.nn.Module) -> float:
    return module.weight.std().item()


def test_fresh_weights_follow_the_named_scheme() -> None:
    wide = dict(mixer=dict(n_heads=4, causal=True, scale=1.0), ffn=dict(d_ff=1024), order="pre")
    parts: dict[str, Any] = dict(d_model=256, decoder=dict(blocks=[wide] * 3), embed=dict(vocab_size=500), tie=False)
    model = gf.build(config(**parts, init=dict(type="normal", std=0.02)))
    for module in (model.embed, model.head, model.decoder.layers[0].mixer.out, model.decoder.layers[1].ffn.up):
        assert spread(module) == pytest.approx(0.02, rel=0.03)
    model = gf.build(config(**parts, init=dict(type="normal", std=0.02, residual=True)))
    ends = [part for layer in model.decoder.layers for part in (layer.mixer.out, layer.ffn.down)]
    assert [spread(end) for end in ends] == pytest.approx([0.02 / 6**0.5] * 6, rel=0.03)
    assert spread(model.decoder.layers[0].mixer.query) == pytest.approx(0.02, rel=0.03)
    model = gf.build(config(**parts, init=dict(type="fan-in")))
    layer = model.decoder.layers[0]
    assert spread(model.embed) == pytest.approx(1, rel=0.03) and spread(layer.ffn.down) == pytest.approx(
        1 / 32, rel=0.03
    )
    assert spread(layer.mixer.key) == pytest.approx(1 / 16, rel=0.03)
    assert spread(layer.mixer.query) == pytest.approx(1 / 16 / 8, rel=0.03)
    assert all((module.bias == 0).all() for module in model.modules() if isinstance(module, torch.nn.Linear))


@torch.no_grad()
@pytest.mark.parametrize("beam", [None, 1, 3])
def test_a_text_goes_on_from_its_prompt_whatever_stands_beside_it(beam: int | None) -> None:
    model = random_model(config(decoder=dict(blocks=[CAUSAL] * 2, final_norm={}), tie=False))
    prompts, mask = ids(11, 3, 6), lengths_mask([6, 3, 1])
    mask[1] = mask[1].flip(0)
    request = Request(bos_id=None, eos_id=1, max_length=9)

    def write(prompt: torch.Tensor, real: torch.Tensor | None, wanted: Request = request) -> list[tuple[int, ...]]:
        if beam is None:
            found = generate(model, prompt, real, SamplingConfig(temperature=0.0), wanted)
        else:
            found = search(model, prompt, real, SearchConfig(beam_size=beam), wanted)
        return [hypotheses[0].ids for hypotheses in found]

    together = write(prompts, mask)
    for row in range(3):
        alone = prompts[row][mask[row]]
        assert write(alone[None], None) == [together[row]]
        if beam != 3:
            text = alone
            for token in together[row] or [1]:
                assert int(model(text[None])[0, -1].argmax()) == token
                text = torch.cat([text, torch.tensor([token])])
    forced = Request(bos_id=None, eos_id=1, max_length=9, constraints=[Constraints(prefix=(5, 7))] * 3)
    longer = (
        torch.cat([prompts, torch.tensor([[5, 7]] * 3)], 1),
        torch.cat([mask, torch.ones(3, 2, dtype=torch.bool)], 1),
    )
    for row, (found, *_) in enumerate(search(model, prompts, mask, SearchConfig(beam_size=beam or 1), forced)):
        text = torch.cat([prompts[row][mask[row]], torch.tensor(found.ids)])
        logprobs = model(text[None])[0].log_softmax(-1)[-len(found.ids) - 1 : -1]
        told = torch.tensor(found.token_logprobs, dtype=torch.float32)[: len(found.ids)]
        close(told, logprobs[torch.arange(len(found.ids)), torch.tensor(found.ids)])
    cut = Request(bos_id=None, eos_id=1, max_length=7)
    assert write(prompts, mask, forced) == [(5, 7, *rest) for rest in write(*longer, cut)] or beam == 3


def test_a_prompt_has_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        random_model(config(decoder=dict(blocks=[CAUSAL]))).start(ids(11, 2, 0))

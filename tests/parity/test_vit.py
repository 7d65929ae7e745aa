"""ViT beside `transformers`: any size of image, read and written; goldens; a real one on real digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer as gf
from glassformer.config import ModelConfig
from glassformer.data.images import read_idx
from glassformer.errors import UserError
from glassformer.families import family_of
from glassformer.interop import hf
from glassformer.models.build import model_of
from glassformer.weights import Rule, Split, Squeeze, both, import_weights
from tests.parity.helpers import check_size
from tests.randomised import randomise


@st.composite
def theirs(draw: st.DrawFn) -> Any:
    """A model of theirs, whose every parameter is random."""
    n_heads, d_head = draw(st.sampled_from([(1, 4), (2, 4), (3, 2)]))
    patch = draw(st.sampled_from([2, 3, [2, 3]]))
    rows, columns = draw(st.sampled_from([(2, 2), (4, 4), (2, 3), (3, 1)]))
    height, width = patch if isinstance(patch, list) else (patch, patch)
    name = draw(st.sampled_from(["ViTForImageClassification", "ViTModel"]))
    config = transformers.ViTConfig(
        hidden_size=n_heads * d_head,
        num_attention_heads=n_heads,
        num_hidden_layers=draw(st.integers(1, 3)),
        intermediate_size=draw(st.sampled_from([5, 8])),
        hidden_act=draw(st.sampled_from(["gelu", "relu", "gelu_new", "silu", "quick_gelu"])),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-6, 1e-2])),
        qkv_bias=draw(st.booleans()),
        image_size=[rows * height, columns * width],
        patch_size=patch,
        num_channels=draw(st.sampled_from([1, 3])),
        num_labels=draw(st.integers(1, 4)),
    )
    return randomise(getattr(transformers, name)(config), draw(st.integers(0, 10**6))).eval()


def pixels(model: Any, height: int, width: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, model.config.num_channels, height, width, generator=generator)


@torch.no_grad()
def same(ours: Any, model: Any, seed: int) -> None:
    config, images = model.config, [pixels(model, *model.config.image_size, seed)]
    (rows, columns), square = config.image_size, isinstance(config.patch_size, int)
    # They interpolate from square grids of square patches alone.
    if square and rows == columns:
        side = config.patch_size
        images += [pixels(model, 3 * side, 5 * side, seed), pixels(model, side, 2 * side, seed)]
    for each in images:
        out = model(each, **({"interpolate_pos_encoding": True} if each is not images[0] else {}))
        with gf.record(ours) as trace:
            found = ours(each)
        expected = out.logits if "logits" in out else out.last_hidden_state
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        if "pooler_output" in out:
            torch.testing.assert_close(trace["head.pooled"], out.pooler_output, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@settings(max_examples=25)
@given(theirs(), st.integers(0, 10**6))
def test_any_model_of_theirs_comes_in_and_goes_out_with_equal_outputs(
    tmp_path_factory: pytest.TempPathFactory, model: Any, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder / "in")
    ours = gf.load(folder / "in").model
    same(ours, model, seed)
    hf.save(folder / "out", ours)
    again, told = type(model).from_pretrained(folder / "out", output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    config = again.config
    config.image_size = [config.image_size] * 2 if isinstance(config.image_size, int) else config.image_size
    same(ours, again.eval(), seed + 1)


@torch.no_grad()
def test_the_golden_logits_are_reproduced(shared: Path) -> None:
    folder = shared / "data/checkpoints/hf-tiny-random/vit"
    told = json.loads((folder / "golden.json").read_text())
    logits = gf.load(folder).model(torch.tensor(told["inputs"]["pixel_values"]))
    torch.testing.assert_close(logits, torch.tensor(told["logits"]), rtol=0, atol=told["tolerance"])


def real_model(shared: Path) -> Any:
    """A ViT of somebody's, with mean pooling and a norm behind each sub-layer, by a table of rules of its own."""
    theirs = torch.load(shared / "data/checkpoints/vit-mnist-agentzz1/mnist_vit.pth", weights_only=True)
    theirs["patch_embed.proj.weight"] = theirs["patch_embed.proj.weight"].unflatten(1, (1, 7, 7))
    block = dict(mixer=dict(n_heads=1), ffn=dict(d_ff=64, activation="gelu"), order="post")
    config = ModelConfig.from_dict(
        dict(
            d_model=32,
            embed=dict(type="patches", image_size=(28, 28), patch_size=(7, 7), channels=1, class_token=False),
            encoder=dict(blocks=[block], final_norm={}),
            head=dict(type="classifier", labels=list("0123456789"), pool="mean"),
        )
    )
    layer = "encoder.layers.*"
    projections = [f"{layer}.mixer.{name}" for name in ("query", "key", "value")]
    rules = [
        Rule("embed.position", "pos_embed", Squeeze()),
        *both("embed.patch", "patch_embed.proj"),
        *(
            Rule(tuple(f"{name}.{kind}" for name in projections), f"encoder.*.attn.in_proj_{kind}", Split((1, 1, 1)))
            for kind in ("weight", "bias")
        ),
        *both(f"{layer}.mixer.out", "encoder.*.attn.out_proj"),
        *both(f"{layer}.mixer_residual.norm", "encoder.*.norm1"),
        *both(f"{layer}.ffn.up", "encoder.*.ffn.fc1"),
        *both(f"{layer}.ffn.down", "encoder.*.ffn.fc2"),
        *both(f"{layer}.ffn_residual.norm", "encoder.*.norm2"),
        *both("encoder.final_norm", "norm"),
        *both("head.output", "classifier"),
    ]
    expected = gf.build(config, device="meta").state_dict()
    return model_of(config, import_weights(rules, theirs, expected)).eval()


@torch.no_grad()
def test_a_real_model_reads_real_digits_as_well_as_its_author_says(shared: Path) -> None:
    model, folder = real_model(shared), shared / "data/img/mnist-t10k"
    told = json.loads((shared / "data/checkpoints/vit-mnist-agentzz1/golden.json").read_text())
    images = torch.from_numpy(read_idx(folder / "t10k-images-idx3-ubyte.gz"))
    labels = torch.from_numpy(read_idx(folder / "t10k-labels-idx1-ubyte.gz")).long()
    logits = model((images[:, None] / 255 - 0.1307) / 0.3081)
    torch.testing.assert_close(logits[:8], torch.tensor(told["logits_first8"]), rtol=0, atol=1e-4)
    assert labels[:8].tolist() == told["labels_first8"]
    assert (logits.argmax(1) == labels).float().mean().item() == pytest.approx(told["accuracy"], abs=1e-6) == 0.8397


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (dict(hidden_act="mish"), "hidden_act 'mish'"),
        (dict(pooler_act="relu"), "pooler_act 'relu'"),
        (dict(pooler_output_size=7), "pooler_output_size 7"),
        (dict(architectures=["ViTForMaskedImageModeling"]), "ViTForMaskedImageModeling"),
        (dict(use_mean_pooling=True), "use_mean_pooling"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    family = family_of("vit")
    assert family is not None and family.from_hf is not None
    with pytest.raises(UserError, match=named):
        family.from_hf({"model_type": "vit", "architectures": ["ViTModel"], **changed})


def test_mean_pooling_has_no_form_of_theirs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no Hugging Face form .*ViT"):
        hf.save(tmp_path / "out", gf.build("vit-tiny", class_token=False))


@pytest.mark.parametrize(("preset", "parameters"), [("vit-b16", 86_567_656), ("vit-l16", 304_326_632)])
def test_presets_have_the_published_numbers_of_parameters(preset: str, parameters: int) -> None:
    check_size(preset, parameters)

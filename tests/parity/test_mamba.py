"""Mamba and Mamba-2 beside `transformers`: any configuration, read and written; goldens, also step by step; sizes."""

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
from glassformer.errors import UserError
from glassformer.families import family_of
from glassformer.interop import hf
from tests.parity.helpers import VOCAB, in_and_out
from tests.randomised import ids, randomise


@st.composite
def theirs(draw: st.DrawFn) -> Any:
    """A model of theirs, whose every parameter is random."""
    kind = draw(st.sampled_from(["Mamba", "Mamba2"]))
    shared = dict(
        vocab_size=VOCAB,
        hidden_size=8,
        num_hidden_layers=draw(st.integers(1, 3)),
        state_size=draw(st.sampled_from([1, 4])),
        conv_kernel=draw(st.sampled_from([2, 4])),
        use_bias=draw(st.booleans()),
        use_conv_bias=draw(st.booleans()),
        hidden_act=draw(st.sampled_from(["silu", "gelu", "relu"])),
        layer_norm_epsilon=draw(st.sampled_from([1e-5, 1e-2])),
        tie_word_embeddings=draw(st.booleans()),
    )
    if kind == "Mamba":
        keys = dict(expand=draw(st.sampled_from([1, 2, 3])), time_step_rank=draw(st.sampled_from(["auto", 3])))
    else:
        expand, n_heads, d_head, n_groups = draw(
            st.sampled_from([(2, 4, 4, 1), (2, 4, 4, 2), (1, 2, 4, 2), (3, 6, 4, 3)])
        )
        keys = dict(expand=expand, num_heads=n_heads, head_dim=d_head, n_groups=n_groups)
        keys |= dict(chunk_size=draw(st.sampled_from([4, 256])))
        keys |= dict(time_step_limit=draw(st.sampled_from([(0.0, float("inf")), (0.3, 1.1), (0.5, float("inf"))])))
    head = draw(st.sampled_from(["Model", "ForCausalLM"]))
    model = getattr(transformers, kind + head)(getattr(transformers, f"{kind}Config")(**shared, **keys))
    return randomise(model, draw(st.integers(0, 10**6))).eval()


@settings(max_examples=25)
@given(theirs(), st.integers(0, 10**6))
def test_any_model_of_theirs_comes_in_and_goes_out_with_equal_logits(
    tmp_path_factory: pytest.TempPathFactory, model: Any, seed: int
) -> None:
    in_and_out(tmp_path_factory.mktemp("theirs"), model, seed)


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
@torch.no_grad()
def test_the_golden_logits_are_reproduced_also_step_by_step(shared: Path, name: str) -> None:
    folder = shared / "data/checkpoints/hf-tiny-random" / name
    told = json.loads((folder / "golden.json").read_text())
    model, tokens = gf.load(folder).model, torch.tensor(told["inputs"]["input_ids"])
    expected = torch.tensor(told["logits"])
    torch.testing.assert_close(model(tokens), expected, rtol=0, atol=told["tolerance"])
    state = model.start(tokens[:, :1])
    steps = [state.logits_BV] + [model.step(tokens[:, t : t + 1], state) for t in range(1, tokens.shape[1])]
    torch.testing.assert_close(torch.stack(steps, 1), expected, rtol=0, atol=told["tolerance"])


def test_a_config_of_the_first_checkpoints_is_read() -> None:
    """With the keys that their conversion wrote, several of which say the same."""
    sizes = dict(hidden_size=768, d_model=768, n_layer=24, num_hidden_layers=24, d_inner=1536, intermediate_size=1536)
    steps = dict(time_step_rank=48, time_step_min=0.001, time_step_max=0.1, time_step_floor=1e-4, time_step_scale=1.0)
    kinds = dict(fused_add_norm=True, pad_vocab_size_multiple=8, rms_norm=True, ssm_cfg={}, residual_in_fp32=True)
    data = dict(architectures=["MambaForCausalLM"], model_type="mamba", vocab_size=50280, expand=2, state_size=16)
    config = family_of("mamba").from_hf({**data, **sizes, **steps, **kinds, "time_step_init_scheme": "random"})
    assert hf.exported_config(config) == hf.exported_config(gf.build("mamba-130m", "meta").config)


def test_a_norm_over_all_groups_as_version_4_of_theirs_computes_it_is_read_and_not_written(shared, tmp_path) -> None:
    model = gf.load(shared / "data/checkpoints/hf-tiny-random/mamba2").model
    assert {block.mixer.norm_groups for block in model.config.decoder.blocks} == {1}
    with pytest.raises(UserError, match=r"mixer\.norm_groups is 1, where the format has 2"):
        hf.save(tmp_path / "out", model)


@pytest.mark.parametrize(
    "preset, parameters",
    [
        ("mamba-130m", 129_135_360),
        ("mamba-370m", 371_516_416),
        ("mamba-790m", 793_204_224),
        ("mamba-1.4b", 1_372_178_432),
        ("mamba-2.8b", 2_768_345_600),
        ("mamba2-130m", 128_989_632),
    ],
)
def test_a_preset_has_as_many_parameters_as_was_published(preset: str, parameters: int) -> None:
    assert gf.build(preset, device="meta").num_parameters() == parameters


def test_a_retnet_has_the_parameters_of_its_paper() -> None:
    model = gf.build("retnet-1.3b", device="meta")
    # Section 3.1: 8 d² in retention and 4 d² in the feed-forward part; norms; the vocabulary and the last norm.
    assert model.num_parameters() == 24 * (12 * 2048**2 + 4 * 2048) + (50257 + 2) * 2048
    mixer = model.decoder.layers[0].mixer
    assert (mixer.d_head, mixer.d_value) == (256, 512)
    assert mixer.config.forget[0] == pytest.approx(1 / 32) and mixer.config.forget[7] == pytest.approx(1 / 512)


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_a_tiny_preset_is_written_and_read_back(tmp_path: Path, name: str) -> None:
    model = randomise(gf.build(f"{name}-tiny")).eval()
    hf.save(tmp_path / "out", model)
    back = gf.load(tmp_path / "out").model
    tokens = ids(64, 2, 20)
    assert torch.equal(back(tokens), model(tokens))
    assert family_of(json.loads((tmp_path / "out/config.json").read_text())["model_type"]).name == name


@pytest.mark.parametrize(
    "name, key, value, said",
    [
        ("mamba", "hidden_act", "mish", "hidden_act 'mish'"),
        ("mamba", "num_experts", 8, "num_experts might change"),
        ("mamba", "architectures", ["MambaForX"], "MambaForX cannot be represented"),
        ("mamba2", "n_groups", 3, "n_heads 4 is not a multiple of n_groups 3"),
        ("mamba2", "expand", 3, "num_heads · head_dim 64 is not expand · hidden_size"),
        ("mamba2", "rms_norm", False, "rms_norm False"),
        ("mamba", "ssm_cfg", {"layer": "Mamba2"}, "ssm_cfg .* cannot be represented"),
        ("mamba2", "num_hidden_layers", 0, "num_hidden_layers 0 is no number of layers"),
        ("mamba2", "num_hidden_layers", "2", "num_hidden_layers '2' is no number of layers"),
        ("mamba2", "time_step_limit", [1], "time_step_limit .* is not two numbers"),
        ("mamba", "hidden_act", ["silu"], "hidden_act .* cannot be represented"),
        ("mamba", "num_hidden_layers", 10**9, "num_hidden_layers 1000000000, but a stack holds at most"),
    ],
)
def test_a_config_that_cannot_be_represented_is_refused_by_name(
    tmp_path: Path, name: str, key: str, value: Any, said: str
) -> None:
    hf.save(tmp_path / "m", gf.build(f"{name}-tiny"))
    file = tmp_path / "m" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(UserError, match=said) as caught:
        gf.load(tmp_path / "m")
    assert "\n" not in str(caught.value)


def test_what_theirs_cannot_say_is_refused_by_name(tmp_path: Path) -> None:
    said = r"gpt2: a mixer of type retention cannot be represented.*mamba: its first mixer is no"
    with pytest.raises(UserError, match=said):
        hf.save(tmp_path / "out", gf.build("retnet-tiny"))
    mixed = dict(blocks=[dict(mixer=dict(type="mamba"), order="pre", norm=dict(type="rms"), ffn=dict(d_ff=8))])
    model = gf.build(gf.ModelConfig.from_dict(dict(d_model=8, embed=dict(vocab_size=9, scale=False), decoder=mixed)))
    with pytest.raises(
        UserError, match=r"mamba cannot represent this model: its decoder\.blocks\.0\.block\.ffn is mlp"
    ):
        hf.save(tmp_path / "out", model)
    assert not (tmp_path / "out").exists()

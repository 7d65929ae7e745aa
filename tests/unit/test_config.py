"""Configurations: they survive a round trip, and say in one line what is wrong with them."""

import copy
import json

import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from glassformer.config import ModelConfig, StackConfig
from glassformer.errors import UserError
from glassformer.families import FAMILIES, build, configure, presets
from tests.randomised import configs


@pytest.mark.parametrize("preset", sorted(presets()))
def test_every_preset_survives_a_round_trip_through_json(preset: str) -> None:
    config = configure(preset)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@settings(max_examples=50)
@given(configs())
def test_every_config_survives_a_round_trip_through_json(config) -> None:
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def block(**changes) -> dict:
    return {"mixer": {"n_heads": 2}, "ffn": {"d_ff": 4}, **changes}


def test_equal_neighbours_are_folded_and_only_they() -> None:
    plain = [block(), block(), block(dropout=0.5), block()]
    stack = StackConfig.from_dict({"blocks": plain})
    folded = stack.to_dict()["blocks"]
    assert [entry["repeat"] for entry in folded] == [2, 1, 1]
    assert StackConfig.from_dict({"blocks": folded}) == stack
    assert StackConfig.from_dict({"blocks": [{"repeat": 2, "block": block()}, *plain[2:]]}) == stack
    assert len(stack.blocks) == 4 and stack.blocks[2].dropout == 0.5


def test_a_config_cannot_be_changed() -> None:
    config = configure("transformer-tiny")
    with pytest.raises(ValidationError, match="frozen"):
        config.d_model = 64
    assert hash(config) == hash(configure("transformer-tiny"))


def broken(path: str, value: object) -> dict:
    """The smallest preset's plain data with one place replaced; a missing key on the way is a mistake of the test."""
    data = copy.deepcopy(configure("transformer-tiny").to_dict())
    *parents, last = path.split(".")
    place = data
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("dmodel", 8, "unknown key 'dmodel'; did you mean 'd_model'?"),
        ("encoder.dropuot", 0.1, "unknown key 'encoder.dropuot'; did you mean 'dropout'?"),
        (
            "encoder.position.max_length",
            9,
            "unknown key 'encoder.position.max_length'; did you mean 'max_len'?",
        ),
        (
            "decoder.blocks.0.block.mixer.n_head",
            9,
            "unknown key 'decoder.blocks.0.mixer.n_head'; did you mean 'n_heads'?",
        ),
        # A key that exists elsewhere is no advice here.
        ("embed.tie", True, "unknown key 'embed.tie'; known here: type, vocab_size, scale, token_types"),
        ("d_model", 0, "d_model: Input should be greater than 0, got 0"),
        ("embed.vocab_size", "many", "embed.vocab_size: Input should be a valid integer"),
        ("encoder.dropout", 1.0, "encoder.dropout: Input should be less than 1, got 1.0"),
        ("encoder.position.max_len", -1, "encoder.position.max_len: Input should be greater than 0, got -1"),
        ("encoder.position.type", "rotary", "encoder.position: unknown type 'rotary'; known are"),
        ("encoder.blocks.0.block.order", "middle", "encoder.blocks.0.order: Input should be 'pre' or 'post'"),
        ("encoder.blocks.0.block.norm.eps", 0, "encoder.blocks.0.norm.eps: Input should be greater than 0"),
        ("encoder.blocks.0.block.ffn.activation", "tanh", "encoder.blocks.0.ffn.activation: Input should be 'relu'"),
        ("encoder.blocks", 6, "encoder.blocks: Input should be a valid tuple, got 6"),
        ("encoder.blocks.0.repeat", 0, "encoder: blocks entry 0: equal blocks are given as"),
        ("encoder.blocks.0.repeat", 10**9, "repeat 1000000000, but a stack holds at most 10000 blocks"),
        (
            "encoder.position.max_len",
            10**12,
            "encoder.position.max_len: Input should be less than or equal to 16777216",
        ),
        ("encoder.position.first", 10**12, "encoder.position.first: Input should be less than or equal to"),
        ("embed.vocab_size", 10**12, "embed.vocab_size: Input should be less than or equal to 2147483647"),
        ("encoder.blocks.0.block.norm.eps", float("inf"), "encoder.blocks.0.norm.eps: Input should be a finite number"),
        ("encoder.blocks.0.block.norm.eps", float("nan"), "encoder.blocks.0.norm.eps: Input should be"),
        ("encoder.blocks.0.repeat", "two", "encoder: blocks entry 0: equal blocks are given as"),
        ("encoder.blocks.0.times", 2, "encoder: blocks entry 0: equal blocks are given as"),
        ("encoder.blocks", [{"repeat": 2}], "encoder: blocks entry 0: equal blocks are given as"),
        ("encoder.blocks.0.block.mixer.n_heads", 5, "d_model 32 is not a multiple of n_heads 5; change one, or give"),
        ("decoder.blocks.0.block.cross.n_heads", 5, "decoder block 0: d_model 32 is not a multiple of n_heads 5"),
        ("decoder.blocks.0.block.cross", None, "decoder block 0: cross-attention belongs in the decoder"),
        ("encoder.blocks.0.block.cross", {"n_heads": 4}, "encoder block 0: cross-attention belongs in the decoder"),
        ("decoder.blocks.0.block.cross.causal", True, "cross.causal must be false"),
        ("encoder.blocks.0.block.mixer.causal", True, "encoder block 0: self-attention is causal in the decoder"),
        ("decoder.blocks.0.block.mixer.causal", False, "decoder block 0: self-attention is causal in the decoder"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_place(path: str, value: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        ModelConfig.from_dict(broken(path, value), where="model.yaml")
    said = str(caught.value)
    assert said.startswith("model.yaml: ") and message in said
    assert "\n" not in said


@pytest.mark.parametrize("data", [None, 3, [], {}])
def test_what_is_no_config_at_all_is_told_in_one_line(data: object) -> None:
    with pytest.raises(UserError) as caught:
        ModelConfig.from_dict(data, where="model.yaml")  # type: ignore[arg-type]
    assert str(caught.value).startswith("model.yaml: ") and "\n" not in str(caught.value)


def test_sinusoids_need_an_even_width() -> None:
    with pytest.raises(UserError, match="even d_model, got 7"):
        configure("transformer-tiny", d_model=7, n_heads=1)


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        ("transformer-bse", {}, "unknown preset 'transformer-bse'; did you mean 'transformer-base'?"),
        ("zzz", {}, "unknown preset 'zzz'; glassformer list names them all"),
        ("transformer-tiny", {"dropot": 0.1}, "model.dropot: unknown setting of preset transformer-tiny; did you mean"),
        ("transformer-tiny", {"position": "lernt"}, "position: Input should be 'sinusoidal' or 'learned', got 'lernt'"),
        ("transformer-tiny", {"encoder_layers": "six"}, "encoder_layers: Input should be a valid integer"),
        (
            "transformer-tiny",
            {"decoder_layers": 10**9},
            "decoder_layers 1000000000: a stack holds at most 10000 blocks",
        ),
        ("transformer-tiny", {"decoder_layers": -1}, "decoder_layers: Input should be greater than 0, got -1"),
        ("transformer-tiny", {"target_vocab_size": 0}, "target_vocab_size: Input should be greater than 0, got 0"),
        ("transformer-tiny", {"n_heads": 5}, "d_model 32 is not a multiple of n_heads 5"),
        ("transformer-tiny", {"order": "both"}, "order: Input should be 'pre' or 'post', got 'both'"),
    ],
)
def test_a_mistaken_preset_is_told_in_one_line(preset: str, overrides: dict, message: str) -> None:
    with pytest.raises(UserError) as caught:
        configure(preset, **overrides)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_overrides_reach_the_model() -> None:
    model = build("transformer-tiny", vocab_size=50, target_vocab_size=40, d_model=16, encoder_layers=1)
    assert model.embed.weight.shape == (50, 16) and model.decoder_embed.weight.shape == (40, 16)
    assert len(model.encoder.layers) == 1 and len(model.decoder.layers) == 2


def test_every_preset_states_where_its_numbers_come_from() -> None:
    for family in FAMILIES:
        assert family.paper
        assert any(name.endswith("-tiny") for name in family.presets)
        assert all(preset.source for preset in family.presets.values())

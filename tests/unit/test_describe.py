"""What `glassformer show` says, against counters that know nothing of its formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import glassformer as gf
from glassformer.models.describe import Node, cost, tree

SHAPES = st.fixed_dictionaries(
    {
        "d_model": st.sampled_from([8, 12, 16]),
        "n_heads": st.sampled_from([1, 2, 4]),
        "d_ff": st.integers(1, 20),
        "encoder_layers": st.integers(1, 3),
        "decoder_layers": st.integers(1, 3),
        "vocab_size": st.integers(8, 30),
        "bias": st.booleans(),
        "output_bias": st.booleans(),
        "order": st.sampled_from(["pre", "post"]),
        "position": st.sampled_from(["sinusoidal", "learned"]),
        "tie": st.booleans(),
    }
)


def model(shape, device="cpu"):
    return gf.build("transformer-tiny", device, **{**shape, "dropout": 0.0}).eval().requires_grad_(False)


def total(node: Node) -> int:
    """Parameters that no child accounts for, over the whole tree."""
    own = node.parameters - sum(child.parameters * child.repeat for child in node.children)
    return own + sum(total(child) * child.repeat for child in node.children)


@settings(max_examples=30)
@given(SHAPES)
def test_the_tree_counts_every_parameter_once(shape):
    built = model(shape)
    root = tree(built)
    assert root.parameters == total(root) == sum(p.numel() for p in set(built.parameters()))
    assert root == tree(model(shape, "meta"))


@settings(max_examples=15)
@given(SHAPES, st.integers(2, 9))
def test_flops_equal_those_of_the_kernels_that_run(shape, length):
    built = model(shape)
    source, target = torch.randint(4, 8, (1, length)), torch.randint(4, 8, (1, length))
    # Under a recorder attention takes its explicit path, whose products the counter sees.
    with torch.no_grad(), FlopCounterMode(display=False) as counter, gf.record(built):
        built(source, target)
    said = cost(built, context=length)
    assert (said.flops_per_source + said.flops_per_target) * length == counter.get_total_flops()
    with torch.no_grad(), FlopCounterMode(display=False) as counter, gf.record(built):
        built.start(source)
    assert said.flops_per_source * length == counter.get_total_flops()


@given(SHAPES, st.integers(1, 3))
def test_the_cache_is_as_large_as_said(shape, rows):
    built = model(shape)
    said = cost(built)

    def held(sources: int, targets: int) -> int:
        with torch.no_grad():
            state = built.start(torch.full((rows, sources), 4))
            built.step(torch.full((rows, targets), 4), state)
        return state.nbytes

    # Differences at full buffers, so that spare room in them does not count.
    assert held(9, 16) - held(4, 16) == 5 * rows * said.cache_per_source
    assert held(4, 48) - held(4, 32) == 16 * rows * said.cache_per_target


def test_equal_layers_fold_and_unequal_ones_do_not():
    built = gf.build("transformer-tiny", encoder_layers=3, decoder_layers=2)
    encoder = next(child for child in tree(built).children if child.name == "encoder")
    assert [(c.name, c.repeat) for c in encoder.children if c.kind == "Block"] == [("layers.0-2", 3)]
    built.encoder.layers[1].ffn.up = torch.nn.Linear(32, 64, bias=False)
    encoder = next(child for child in tree(built).children if child.name == "encoder")
    assert [(c.name, c.repeat) for c in encoder.children if c.kind == "Block"] == [
        ("layers.0", 1),
        ("layers.1", 1),
        ("layers.2", 1),
    ]


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=9))
def test_layers_that_take_turns_fold_and_none_is_lost(widths):
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Linear(2, 1 + (width == "a"), bias=False) for width in widths)
    told = [
        "a" if layer.parameters == 4 else "b"
        for node in tree(model).children
        for layer in (node.children or (node,)) * node.repeat
    ]
    assert told == widths and tree(model).parameters == sum(p.numel() for p in model.parameters())


def test_alternating_layers_are_told_once():
    (turn,) = (node for node in tree(gf.build("gpt3-tiny", "meta")).children[1].children if node.kind.endswith("turn"))
    assert (turn.name, turn.repeat, [layer.name for layer in turn.children]) == (
        "layers.0-3",
        2,
        ["layers.0", "layers.1"],
    )


@pytest.mark.parametrize(("preset", "millions"), [("transformer-base", 65), ("transformer-big", 213)])
def test_sizes_of_the_paper(preset, millions):
    """Table 3 of Vaswani et al. 2017, whose vocabulary is 'about 37000' tokens."""
    assert gf.build(preset, "meta").num_parameters() / 1e6 == pytest.approx(millions, rel=0.035)

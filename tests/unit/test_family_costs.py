"""What `glassformer show` says of models of every shape, against counters that know nothing of its formulas."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import glassformer as gf
from glassformer.config import ClassifierConfig, ModelConfig
from glassformer.models.build import build_model
from glassformer.models.describe import cost, tree
from tests.family_configs import decoders, encoders, relatives
from tests.randomised import ids, random_model


@settings(max_examples=40)
@given(st.one_of(decoders(), encoders(), relatives()), st.integers(1, 3))
@torch.no_grad()
def test_the_tree_and_the_flops_are_those_of_the_model_that_runs(config: ModelConfig, length: int) -> None:
    model, tokens = random_model(config).requires_grad_(False), ids(11, 1, length)
    # Under a recorder attention takes its explicit path, whose products the counter sees.
    with FlopCounterMode(display=False) as counter, gf.record(model):
        model(tokens, tokens) if config.kind == "encoder-decoder" else model(tokens)
    said, root = cost(model, context=length), tree(model)
    counted = counter.get_total_flops()
    if isinstance(config.head, ClassifierConfig):  # done once a sentence, not once a token
        counted -= 2 * sum(part.weight.numel() for part in model.head.modules() if isinstance(part, torch.nn.Linear))
    narrow = [block.mixer for _, stack in config.stacks for block in stack.blocks if (block.mixer.window or 9) < length]
    # The explicit path computes what a window hides, too.
    hidden = sum(4 * (length - m.window) * m.n_heads * m.head_size(config.d_model) for m in narrow if m.window)
    assert (said.flops_per_source + said.flops_per_target + hidden) * length == counted
    assert said.parameters == root.parameters == model.num_parameters()


@settings(max_examples=20)
@given(decoders(), st.integers(1, 3))
@torch.no_grad()
def test_the_cache_of_a_decoder_is_as_large_as_said(config: ModelConfig, rows: int) -> None:
    model = random_model(config)

    def held(n_tokens: int) -> int:
        return model.start(ids(11, rows, n_tokens)).nbytes

    # At full buffers, so that spare room in them does not count; a prompt is kept whole until the next step.
    assert held(36) - held(20) == 16 * rows * cost(model).cache_per_target
    assert cost(model).cache_per_source == 0


def test_a_model_of_175_billion_parameters_takes_no_memory() -> None:
    block = dict(mixer=dict(n_heads=96, causal=True), ffn=dict(d_ff=4 * 12288), order="pre")
    parts = dict(position=dict(type="learned", max_len=2048), blocks=[dict(repeat=96, block=block)], final_norm={})
    config = ModelConfig.from_dict(dict(d_model=12288, embed=dict(vocab_size=50257), decoder=parts))
    model = build_model(config, "meta")
    # Matrices 12 d², biases and norms 13 d a layer; tokens and positions; the last norm.
    assert model.num_parameters() == 96 * (12 * 12288**2 + 13 * 12288) + (50257 + 2048 + 2) * 12288
    assert all(p.is_meta for p in model.parameters()) and cost(model).weights == 4 * model.num_parameters()

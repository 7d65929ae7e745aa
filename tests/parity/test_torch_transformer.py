"""Parity with PyTorch's own ``torch.nn.Transformer`` under copied weights: an implementation by other people."""

import math

import pytest
import torch
from torch import nn

from glassformer.config import ModelConfig
from glassformer.models.build import build_model
from glassformer.models.seq2seq import Seq2Seq
from tests.randomised import close, ids, lengths_mask, randomise

D, HEADS, FF, LAYERS, VOCAB, EPS = 16, 4, 24, 2, 13, 1e-5


def ours(order: str, activation: str) -> Seq2Seq:
    def stack(decoder: bool) -> dict:
        attention = {"n_heads": HEADS}
        block = {
            "mixer": {**attention, "causal": decoder},
            "cross": attention if decoder else None,
            "ffn": {"d_ff": FF, "activation": activation},
            "norm": {"eps": EPS},
            "order": order,
        }
        # PyTorch ends each stack with a norm in both orders.
        return {"blocks": [{"repeat": LAYERS, "block": block}], "final_norm": {"eps": EPS}}

    config = {"d_model": D, "embed": {"vocab_size": VOCAB}, "encoder": stack(False), "decoder": stack(True)}
    return randomise(build_model(ModelConfig.from_dict(config)))


@torch.no_grad()
def theirs(model: Seq2Seq, order: str, activation: str) -> nn.Transformer:
    other = nn.Transformer(
        D, HEADS, LAYERS, LAYERS, FF, 0.0, activation, layer_norm_eps=EPS, batch_first=True, norm_first=order == "pre"
    )

    def attention(to, own) -> None:
        to.in_proj_weight.copy_(torch.cat([own.query.weight, own.key.weight, own.value.weight]))
        to.in_proj_bias.copy_(torch.cat([own.query.bias, own.key.bias, own.value.bias]))
        to.out_proj.load_state_dict(own.out.state_dict())

    for side in ("encoder", "decoder"):
        own_stack, stack = getattr(model, side), getattr(other, side)
        for own, layer in zip(own_stack.layers, stack.layers, strict=True):
            residuals = [own.mixer_residual, own.cross_residual, own.ffn_residual]
            for number, residual in enumerate([r for r in residuals if r is not None], start=1):
                getattr(layer, f"norm{number}").load_state_dict(residual.norm.state_dict())
            attention(layer.self_attn, own.mixer)
            if own.cross is not None:
                attention(layer.multihead_attn, own.cross)
            layer.linear1.load_state_dict(own.ffn.up.state_dict())
            layer.linear2.load_state_dict(own.ffn.down.state_dict())
        stack.norm.load_state_dict(own_stack.final_norm.state_dict())
    return other


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_hidden_states_and_gradients_are_equal(order: str, activation: str) -> None:
    model = ours(order, activation)
    other = theirs(model, order, activation)
    source, target, mask = ids(VOCAB, 3, 6), ids(VOCAB, 3, 5, seed=1), lengths_mask([6, 2, 4])

    mine = model.hidden(source, target, mask)
    table = model.embed.weight.detach().clone().requires_grad_()
    padding = {"src_key_padding_mask": ~mask, "memory_key_padding_mask": ~mask}
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    embedded = [table[tokens] * math.sqrt(D) for tokens in (source, target)]
    reference = other(*embedded, tgt_mask=future, tgt_is_causal=True, **padding)
    close(mine, reference)

    weight = torch.randn(mine.shape)
    (mine * weight).sum().backward()
    (reference * weight).sum().backward()
    close(model.embed.weight.grad, table.grad, atol=1e-4)
    for own, layer in zip(model.decoder.layers, other.decoder.layers, strict=True):
        for projections, packed in ((own.mixer, layer.self_attn), (own.cross, layer.multihead_attn)):
            grads = [p.weight.grad for p in (projections.query, projections.key, projections.value)]
            close(torch.cat(grads), packed.in_proj_weight.grad, atol=1e-4)
        close(own.ffn.up.weight.grad, layer.linear1.weight.grad, atol=1e-4)
    assert sum(p.numel() for p in other.parameters()) == model.num_parameters() - VOCAB * D

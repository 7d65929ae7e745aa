"""Laws of the encoder–decoder: it equals a model written in loops, sees no future, and ignores padding."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from glassformer.families import build, configure
from tests.oracles import transformer_loops
from tests.randomised import close, configs, ids, lengths_mask, random_model, randomise

SEEDS = st.integers(0, 10**6)
TWO_LENGTHS = st.tuples(st.integers(1, 5), st.integers(1, 5))


@settings(max_examples=25)
@given(configs(), SEEDS, TWO_LENGTHS, TWO_LENGTHS)
def test_the_model_equals_the_loops(config, seed, source_lengths, target_lengths) -> None:
    model = random_model(config, seed)
    source = ids(config.embed.vocab_size, 2, max(source_lengths), seed=seed)
    target = ids(config.target_vocab_size, 2, max(target_lengths), seed=seed + 1)
    mask = lengths_mask([*source_lengths])
    with torch.no_grad():
        logits = model(source, target, None if mask.all() else mask)
    weights = {name: value.double().numpy() for name, value in model.state_dict().items()}
    for row, (n_source, n_target) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        expected = transformer_loops.logits(
            config, weights, source[row, :n_source].tolist(), target[row, :n_target].tolist()
        )
        np.testing.assert_allclose(logits[row, :n_target].numpy(), expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=25)
@given(configs(), SEEDS, st.integers(0, 5))
def test_a_target_token_changes_no_logit_before_it(config, seed, place) -> None:
    model = random_model(config, seed)
    source, target = ids(9, 2, 4, seed=seed), ids(config.target_vocab_size, 2, 6, seed=seed + 1)
    other = target.clone()
    other[:, place] = (other[:, place] + 1) % config.target_vocab_size
    with torch.no_grad():
        before, after = model(source, target), model(source, other)
    close(after[:, :place], before[:, :place], rtol=0, atol=1e-6)
    assert not torch.allclose(after[:, place], before[:, place], atol=1e-6)


@settings(max_examples=25)
@given(configs(), SEEDS, st.integers(1, 4))
def test_padding_of_the_source_changes_nothing_whatever_ids_stand_in_it(config, seed, extra) -> None:
    model = random_model(config, seed)
    lengths = [5, 2]
    source, target = ids(9, 2, 5, seed=seed), ids(config.target_vocab_size, 2, 3, seed=seed + 1)
    padded = torch.cat([source, source.new_zeros(2, extra)], 1)
    mask = lengths_mask(lengths, 5 + extra)
    garbage = torch.where(mask, padded, ids(9, 2, 5 + extra, seed=seed + 2))
    with torch.no_grad():
        expected = model(source, target, lengths_mask(lengths))
        close(model(padded, target, mask), expected)
        close(model(garbage, target, mask), expected)
        close(model(source[1:, :2], target[1:]), expected[1:])


@settings(max_examples=15)
@given(configs(), SEEDS, st.integers(1, 4))
def test_padding_of_the_target_changes_nothing_before_it(config, seed, extra) -> None:
    model = random_model(config, seed)
    source, target = ids(9, 2, 4, seed=seed), ids(config.target_vocab_size, 2, 3 + extra, seed=seed + 1)
    with torch.no_grad():
        close(model(source, target)[:, :3], model(source, target[:, :3]))


def test_a_sentence_does_not_depend_on_its_batch_mates() -> None:
    model = random_model()
    source, target = ids(11, 4, 6), ids(11, 4, 5, seed=1)
    mask = lengths_mask([6, 3, 1, 4])
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        together = model(source, target, mask)
        close(model(source[order], target[order], mask[order]), together[order])


def test_a_source_of_padding_alone_is_finite_forward_and_backward() -> None:
    model = random_model().train()
    mask = torch.tensor([[True, True, False], [False, False, False]])
    logits = model(ids(11, 2, 3), ids(11, 2, 4, seed=1), mask)
    logits.logsumexp(-1).sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_every_parameter_takes_part(order: str, position: str) -> None:
    overrides = dict(order=order, position=position, output_bias=True, tie=False, target_vocab_size=7, max_len=5)
    model = random_model(**overrides)
    F.cross_entropy(model(ids(11, 3, 5), ids(7, 3, 5)).flatten(0, 1), ids(7, 15)).backward()
    # Softmax does not change when one number is added to all scores of a query, so the key's bias alone has no slope.
    idle = {name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-6}
    assert idle == {name for name, _ in model.named_parameters() if name.endswith("key.bias")}


@pytest.mark.parametrize("target_vocab_size", [None, 7])
def test_tied_weights_are_one_tensor_stored_once(target_vocab_size: int | None) -> None:
    tied, free = (random_model(tie=tie, target_vocab_size=target_vocab_size) for tie in (True, False))
    reads = "embed" if target_vocab_size is None else "target_embed"
    pointers = [value.data_ptr() for value in tied.state_dict().values()]
    assert len(pointers) == len(set(pointers))
    assert set(free.state_dict()) - set(tied.state_dict()) == {"head.weight"}
    assert free.num_parameters() - tied.num_parameters() == (target_vocab_size or 11) * 8
    table = tied.get_submodule(reads).weight
    hidden = torch.randn(2, 8)
    close(tied.logits(hidden), hidden @ table.T)
    close(free.logits(hidden), hidden @ free.head.weight.T)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_bfloat16_autocast_runs_forward_and_backward(order: str) -> None:
    model = random_model(order=order, dropout=0.1).train()
    source, target, mask = ids(11, 2, 5), ids(11, 2, 4, seed=1), lengths_mask([5, 2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(source, target, mask)
    logits.float().logsumexp(-1).sum().backward()
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()
    assert all(p.grad is not None and p.grad.dtype == p.dtype and p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        short = model(source, target, mask)
    with torch.no_grad():
        close(short.float(), model(source, target, mask), rtol=0.1, atol=0.3)


def arithmetic(d: int, d_ff: int, layers: int, vocab: int) -> int:
    """The parameters of the paper's model, counted with a pencil."""
    attention = 4 * (d * d + d)  # W_Q, W_K, W_V, W_O, each with its bias
    feed_forward = (d * d_ff + d_ff) + (d_ff * d + d)  # W_1, b_1, W_2, b_2
    norm = 2 * d  # gain and bias
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return layers * (encoder_layer + decoder_layer) + vocab * d  # one matrix for both embeddings and the output


def test_parameters_on_the_meta_device_equal_the_papers_arithmetic() -> None:
    base, big = build("transformer-base", device="meta"), build("transformer-big", device="meta")
    assert base.num_parameters() == arithmetic(512, 2048, 6, 37000) == 63_082_496
    assert big.num_parameters() == arithmetic(1024, 4096, 6, 37000) == 214_245_376
    assert all(value.device.type == "meta" for value in base.state_dict().values())
    # Table 3 prints 65 and 213 millions.
    assert base.num_parameters() == pytest.approx(65e6, rel=0.03)
    assert big.num_parameters() == pytest.approx(213e6, rel=0.01)


def test_the_meta_device_runs_forward_for_shapes() -> None:
    model = build("transformer-base", device="meta")
    tokens = torch.zeros(2, 5, dtype=torch.long, device="meta")
    mask = torch.ones(2, 5, dtype=torch.bool, device="meta")
    assert model(tokens, tokens[:, :3], mask).shape == (2, 3, 37000)


def test_the_base_model_is_the_papers() -> None:
    config = configure("transformer-base")
    blocks = [*config.encoder.blocks, *config.decoder.blocks]
    assert (len(config.encoder.blocks), len(config.decoder.blocks), config.d_model) == (6, 6, 512)
    assert {(b.mixer.n_heads, b.ffn.d_ff, b.ffn.activation, b.order, b.dropout) for b in blocks} == {
        (8, 2048, "relu", "post", 0.1)
    }
    assert config.embed.scale and config.tie and config.target_embed is None
    assert config.encoder.position.type == "sinusoidal" and config.encoder.position.layout == "interleaved"
    assert config.encoder.final_norm is None and config.decoder.final_norm is None


def test_fresh_weights_have_the_stated_spread() -> None:
    model = build("transformer-small", vocab_size=500, encoder_layers=1, decoder_layers=1)
    block = model.encoder.layers[0]
    d, d_ff = 256, 1024
    assert model.embed.weight.std().item() == pytest.approx(d**-0.5, rel=0.02)
    assert model.embed(torch.arange(500)).std().item() == pytest.approx(1.0, rel=0.02)
    for linear, fan, gain in (
        (block.mixer.query, 2 * d, 0.5**0.5),
        (block.mixer.out, 2 * d, 1.0),
        (block.ffn.up, d + d_ff, 1.0),
    ):
        bound = gain * (6 / fan) ** 0.5
        assert 0.99 * bound < linear.weight.abs().max().item() <= bound
        assert (linear.bias == 0).all()
    assert isinstance(block.mixer_residual.norm, nn.LayerNorm)
    assert (block.mixer_residual.norm.weight == 1).all()


def test_dropout_acts_in_training_only() -> None:
    model = randomise(build("transformer-tiny", dropout=0.5))
    source, target = ids(64, 2, 5), ids(64, 2, 4)
    assert not torch.equal(model.train()(source, target), model(source, target))
    assert torch.equal(model.eval()(source, target), model(source, target))
    sites = [m for m in model.modules() if type(m).__name__ == "Dropout"]
    # After each sub-layer, 2 an encoder layer and 3 a decoder layer, and on both sums of embedding and position.
    assert len(sites) == 2 * 2 + 2 * 3 + 2 and all(site.probability == 0.5 for site in sites)

"""Recording: every named internal, by name and axes, without changing what the model computes."""

import threading

import pytest
import torch
from hypothesis import given, settings

from glassformer.models.seq2seq import Seq2Seq
from glassformer.nn.tap import Tap, recording
from glassformer.trace.recorder import record
from tests.randomised import close, configs, ids, lengths_mask, random_model

N_SOURCE, N_TARGET = 5, 3


def run(model: Seq2Seq) -> torch.Tensor:
    vocab = model.config.target_vocab_size
    with torch.no_grad():
        return model(ids(7, 2, N_SOURCE), ids(vocab, 2, N_TARGET, seed=1), lengths_mask([5, 2]))


@settings(max_examples=20)
@given(configs())
def test_recording_changes_no_logit_and_captures_every_tap_with_its_axes(config) -> None:
    model = random_model(config)
    plain = run(model)
    with record(model) as trace:
        recorded = run(model)
    close(recorded, plain, rtol=0, atol=1e-6 * max(1.0, plain.abs().max().item()))
    positioned = {f"{side}.positions" for side in ("encoder", "decoder") if getattr(config, side).position}
    absent = {"encoder.positions", "decoder.positions"} - positioned
    assert set(trace) == set(model.taps()) - absent
    for name, axes in model.taps().items():
        if name in absent:
            continue
        side, *_ = name.split(".")
        block = getattr(config, side).blocks[int(name.split(".")[2])] if ".layers." in name else None
        attention = block and (block.cross if ".cross." in name else block.mixer)
        own = N_SOURCE if side == "encoder" else N_TARGET
        size = {
            "B": 2,
            "T": own,
            "S": N_SOURCE if ".cross." in name else own,
            "D": config.d_model,
            "V": config.target_vocab_size,
            "F": block.ffn.d_ff if block and block.ffn else None,
            "H": attention.n_heads if attention else None,
            "K": (attention.d_head or config.d_model // attention.n_heads) if attention else None,
        }
        expected = (2, N_TARGET, size["V"]) if axes == "… V" else tuple(size[axis] for axis in axes.split())
        assert trace[name].shape == expected, name
        assert trace.axes(name) == axes


def test_the_recorded_internals_are_the_ones_that_make_the_output() -> None:
    model = random_model(output_bias=True)
    with record(model) as trace:
        logits = run(model)
    assert torch.equal(trace["head.logits"], logits)
    close(trace["decoder.output"] @ model.embed.weight.T + model.head.bias, logits)
    cross = "decoder.layers.1.cross"
    layer = model.decoder.layers[1].cross
    q, k, v, pattern = (trace[f"{cross}.{name}"] for name in ("q", "k", "v", "pattern"))
    close(trace[f"{cross}.scores"], q @ k.transpose(-1, -2) / 2)
    close(trace[f"{cross}.z"], pattern @ v)
    close(trace[f"{cross}.result"], layer.out(trace[f"{cross}.z"].transpose(1, 2).flatten(2)))
    close(k.transpose(1, 2).flatten(2), layer.key(trace["encoder.output"]))
    assert (pattern[1, :, :, 2:] == 0).all(), "row 1 has two real source tokens"
    assert (trace["decoder.layers.0.mixer.pattern"].triu(1) == 0).all()
    close(trace["encoder.input"], trace["encoder.embedded"] + trace["encoder.positions"])
    ffn = "encoder.layers.0.ffn"
    assert torch.equal(trace[f"{ffn}.post"], trace[f"{ffn}.pre"].relu())


def test_a_source_of_padding_alone_shows_no_weight_on_it() -> None:
    model = random_model()
    with record(model) as trace, torch.no_grad():
        model(ids(7, 2, 4), ids(7, 2, 3), lengths_mask([4, 0]))
    pattern = trace["decoder.layers.0.cross.pattern"]
    assert (pattern[1] == 0).all() and (pattern[0] > 0).all()


def test_decoding_keeps_the_value_of_every_step() -> None:
    model = random_model()
    target = ids(11, 1, 4)
    with torch.no_grad(), record(model) as trace:
        state = model.start(ids(11, 1, 5))
        for place in range(4):
            model.step(target[:, place : place + 1], state)
    name = "decoder.layers.0.mixer.pattern"
    assert [tuple(value.shape) for value in trace.steps(name)] == [(1, 2, 1, n) for n in (1, 2, 3, 4)]
    assert trace[name] is trace.steps(name)[-1]
    assert len(trace.steps("encoder.output")) == 1
    with record(model) as whole, torch.no_grad():
        model(ids(11, 1, 5), target)
    for place, value in enumerate(trace.steps(name)):
        close(value[0, :, 0], whole[name][0, :, place, : place + 1])


def test_nothing_is_recorded_outside_the_block_nor_of_another_model() -> None:
    model, other = random_model(), random_model(seed=1)
    with record(model) as trace:
        assert recording()
        run(other)
        assert not trace
    assert not recording()
    run(model)
    assert not trace
    with pytest.raises(RuntimeError, match="on purpose"), record(model):
        raise RuntimeError("on purpose")
    assert not recording()


def test_an_unknown_name_is_a_key_error() -> None:
    model = random_model()
    with record(model) as trace:
        run(model)
    with pytest.raises(KeyError):
        trace["decoder.layers.9.cross.pattern"]


def test_two_threads_record_at_once_without_mixing() -> None:
    model = random_model()
    barrier = threading.Barrier(2, timeout=30)
    traces: dict[int, object] = {}
    failures: list[BaseException] = []

    def work(length: int) -> None:
        try:
            with torch.no_grad(), record(model) as trace:
                barrier.wait()  # both look before either runs
                for _ in range(5):
                    model(ids(11, 1, length), ids(11, 1, length))
                barrier.wait()
                traces[length] = trace
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(length,)) for length in (3, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for length in (3, 6):
        shapes = [tuple(value.shape) for value in traces[length].steps("encoder.layers.0.mixer.pattern")]
        assert shapes == [(1, 2, length, length)] * 5
    assert not recording()


def test_a_tap_is_the_identity() -> None:
    tap, x = Tap("B T D"), torch.randn(1, 2, 3)
    assert tap(x) is x
    assert "B T D" in repr(tap)

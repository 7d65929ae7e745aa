"""LSTM: it is PyTorch's and that of plain loops; and any recurrence learns to translate with attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import glassformer as gf
from benchmarks import versus_lstm
from glassformer.cli.main import main
from glassformer.config import ModelConfig
from glassformer.generate import SearchConfig, search
from glassformer.nn.lstm import LSTM
from glassformer.nn.mixer import Context
from tests.digits import training
from tests.oracles import lstm_loops
from tests.randomised import close, ids, lengths_mask, random_model
from tests.toys import request

SEEDS = st.integers(0, 10**6)
D = 8


def encoder(mixer: dict[str, Any]) -> ModelConfig:
    stack = dict(blocks=[dict(mixer=mixer)])
    return ModelConfig.from_dict(dict(d_model=D, embed=dict(vocab_size=11), encoder=stack, head=None))


def part(seed: int, **options: Any) -> LSTM:
    mixer = random_model(encoder(dict(type="lstm", **options)), seed).encoder.layers[0].mixer
    assert isinstance(mixer, LSTM)
    return mixer


def torchs(ours: LSTM, back: LSTM | None = None) -> nn.LSTM:
    """PyTorch's module with the same weights."""
    theirs = nn.LSTM(D, ours.width, batch_first=True, bidirectional=back is not None)
    for suffix, each in (("", ours), ("_reverse", back)):
        if each is not None:
            getattr(theirs, f"weight_ih_l0{suffix}").data.copy_(each.input.weight)
            getattr(theirs, f"weight_hh_l0{suffix}").data.copy_(each.hidden.weight)
            getattr(theirs, f"bias_ih_l0{suffix}").data.copy_(each.input.bias)
            getattr(theirs, f"bias_hh_l0{suffix}").data.zero_()
    return theirs


@settings(max_examples=30)
@given(SEEDS, st.sampled_from([None, 3, 8, 13]), st.booleans(), st.integers(1, 20))
@torch.no_grad()
def test_it_is_what_plain_loops_compute(seed: int, width: int | None, bias: bool, length: int) -> None:
    mixer = part(seed, d_hidden=width, bias=bias)
    x_BTD = torch.randn(2, length, D, generator=torch.Generator().manual_seed(seed)) * 2
    y_BTD, memory = mixer.scan(x_BTD, None, None)
    for row in range(2):
        close(y_BTD[row], torch.tensor(lstm_loops.lstm(dict(mixer.state_dict()), x_BTD[row].tolist())))
    assert set(memory) == {"h", "c"} and all(value.shape == (2, mixer.width) for value in memory.values())


def test_outputs_and_gradients_are_those_of_pytorch() -> None:
    mixer, x_BTD = part(1), torch.randn(3, 30, D)
    theirs = torchs(mixer)
    y_BTD, memory = mixer.scan(x_BTD, None, None)
    expected_BTD, (h, c) = theirs(x_BTD)
    close(y_BTD, expected_BTD)
    close(memory["h"], h[0])
    close(memory["c"], c[0])
    along_BTD = torch.randn_like(y_BTD)
    (y_BTD * along_BTD).sum().backward()
    (expected_BTD * along_BTD).sum().backward()
    close(mixer.input.weight.grad, theirs.weight_ih_l0.grad, atol=1e-4)
    close(mixer.hidden.weight.grad, theirs.weight_hh_l0.grad, atol=1e-4)
    close(mixer.input.bias.grad, theirs.bias_ih_l0.grad, atol=1e-4)


@torch.no_grad()
def test_two_read_texts_of_different_lengths_as_pytorchs_does_packed() -> None:
    mixer = random_model(encoder(dict(type="bidirectional", mixer=dict(type="lstm")))).encoder.layers[0].mixer
    lengths, x_BTD = [9, 4, 1], torch.randn(3, 9, D)
    packed = nn.utils.rnn.pack_padded_sequence(x_BTD, torch.tensor(lengths), batch_first=True)
    expected, _ = nn.utils.rnn.pad_packed_sequence(torchs(mixer.ahead, mixer.back)(packed)[0], batch_first=True)
    mask = lengths_mask(lengths)
    y_BTD = mixer(x_BTD, Context(mask_BS=mask))
    close(y_BTD[mask], (expected[..., :D] + expected[..., D:])[mask])


@torch.no_grad()
def test_a_tracer_sees_gates_that_give_the_very_outputs() -> None:
    model, tokens = random_model(encoder(dict(type="lstm", d_hidden=5))), ids(11, 2, 7)
    mask = torch.tensor([[False, True, True, True, True, True, True], [True] * 5 + [False] * 2])
    expected = model(tokens, mask)
    with gf.record(model) as trace:
        close(model(tokens, mask)[mask], expected[mask])
    start = "encoder.layers.0.mixer."
    i, f, g, o = (trace[f"{start}{name}"] for name in ("input_gate", "forget_gate", "candidate", "output_gate"))
    cell = trace[f"{start}cell"]
    assert i.shape == cell.shape == (2, 7, 5)
    close(cell[:, 1:], f[:, 1:] * cell[:, :-1] + i[:, 1:] * g[:, 1:])
    assert (i[0, 0] == 0).all() and (cell[0, 0] == 0).all(), "padding opens no gate"


def test_fresh_forget_gates_are_open() -> None:
    mixer = gf.build("lstm-tiny").decoder.layers[0].mixer
    assert (mixer.input.bias.view(4, -1) == torch.tensor([[0.0], [1.0], [0.0], [0.0]])).all()


KINDS: dict[str, dict[str, Any]] = {
    "lstm": dict(type="lstm"),
    "rwkv4": dict(type="rwkv4"),
    "rwkv5": dict(type="rwkv5", n_heads=2),
    "rwkv7": dict(type="rwkv7", n_heads=2, decay_rank=8, rate_rank=8, gate_rank=8),
}


def translator(mixer: dict[str, Any]) -> ModelConfig:
    rwkv = mixer["type"].startswith("rwkv")
    shared = dict(ffn=dict(type="channel-mix", d_ff=32) if rwkv else None, order="pre")
    reads = dict(mixer=dict(type="bidirectional", mixer=mixer), **shared)
    writes = dict(mixer=mixer, cross=dict(n_heads=2), **shared)
    stacks = dict(encoder=dict(blocks=[reads], final_norm={}), decoder=dict(blocks=[writes], final_norm={}))
    return ModelConfig.from_dict(dict(d_model=32, embed=dict(vocab_size=12), **stacks))


def lesson(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of 2 to 5 letters, none of them twice, to be written once more with every letter's successor."""
    generator = torch.Generator().manual_seed(seed)
    source_BS = torch.rand(count, 9, generator=generator).argsort(1)[:, :5] + 3
    mask_BS = torch.arange(5) < torch.randint(2, 6, (count, 1), generator=generator)
    return source_BS * mask_BS, mask_BS, ((source_BS - 2) % 9 + 3) * mask_BS


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in ("rwkv4", "rwkv5") else ()) for kind in KINDS]
)
def test_a_recurrent_decoder_with_attention_learns_to_translate_and_beam_search_finds_it(kind: str) -> None:
    torch.manual_seed(0)
    model = gf.build(translator(KINDS[kind]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(120):
        source_BS, mask_BS, target_BS = lesson(64, step)
        fed = nn.functional.pad(target_BS, (1, 0), value=1)
        labels = nn.functional.pad(target_BS, (0, 1))
        labels = labels.scatter(1, mask_BS.sum(1, keepdim=True), 2).masked_fill(
            torch.arange(6) > mask_BS.sum(1, keepdim=True), -100
        )
        loss = nn.functional.cross_entropy(model(source_BS, fed, mask_BS).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    source_BS, mask_BS, target_BS = lesson(40, 10**6)
    found = search(model, source_BS, mask_BS, SearchConfig(beam_size=3), request())
    right = sum(
        list(best[0].ids) == target[real].tolist() for best, target, real in zip(found, target_BS, mask_BS, strict=True)
    )
    assert right >= 36


def test_the_ordinary_commands_train_it_and_translate_with_it(tmp_path: Path, capsys: Any) -> None:
    settings = training(tmp_path, steps=12)
    config = {**settings, "model": {"preset": "lstm-tiny"}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    assert main(["train", str(tmp_path / "c.yaml")]) == 0
    capsys.readouterr()
    model = str(tmp_path / "run" / "best")
    assert main(["translate", "-m", model, "--from", "zh", "--to", "en", "一二", "三"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_only_recurrences_make_every_token_wait_for_the_one_before() -> None:
    _, rows = versus_lstm.depth((8, 32, 128))
    chains = {name: [int(each) for each in lengths] for name, *lengths in rows}
    assert len(set(chains["attention"])) == 1
    assert chains["lstm"][2] - chains["lstm"][1] == 4 * (chains["lstm"][1] - chains["lstm"][0]) > 4 * 24
    # RWKV-4 joins twice as much in every round, of which each adds as many operations.
    assert chains["rwkv4"][2] - chains["rwkv4"][1] == chains["rwkv4"][1] - chains["rwkv4"][0] < 24


def test_what_is_measured_side_by_side_is_equally_large() -> None:
    transformer, lstm = versus_lstm.twin("transformer-tiny")
    assert lstm.num_parameters() == pytest.approx(transformer.num_parameters(), rel=0.02)
    sizes = {name: versus_lstm.decoder(name).num_parameters() for name in versus_lstm.MIXERS}
    assert max(sizes.values()) < 1.15 * min(sizes.values())

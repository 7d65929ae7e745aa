"""RWKV: every form equals plain loops, whatever the decays; what travels between layers; gradients; refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import glassformer as gf
from glassformer.config import ModelConfig
from glassformer.errors import UserError
from tests.family_configs import RECURRENT
from tests.oracles import rwkv_loops as loops
from tests.oracles.transformer_loops import layer_norm
from tests.randomised import close, ids, random_model, randomise

SEEDS = st.integers(0, 10**6)
RWKVS = ["rwkv4", "rwkv5", "rwkv7"]
D = 8


def decoder(mixers: list[dict[str, Any]], ffn: dict[str, Any] | None = None, **more: Any) -> ModelConfig:
    blocks = [dict(mixer=mixer, ffn=ffn, order="pre") for mixer in mixers]
    return ModelConfig.from_dict({"d_model": D, "embed": dict(vocab_size=11), "decoder": dict(blocks=blocks), **more})


@st.composite
def parts(draw: st.DrawFn) -> tuple[str, Any]:
    name = draw(st.sampled_from([*RWKVS, "channel-mix"]))
    if name == "channel-mix":
        ffn = dict(type=name, d_ff=6, gate=draw(st.booleans()))
        return name, random_model(decoder([dict(type="rwkv4")], ffn), draw(SEEDS)).decoder.layers[0].ffn
    part = random_model(decoder([dict(type=name, **RECURRENT[name](draw))]), draw(SEEDS)).decoder.layers[0].mixer
    if name != "rwkv7":
        # From channels that forget everything at once to those that never forget.
        part.decay.data += draw(st.sampled_from([-12.0, -3.0, 0.0, 3.0]))
    return name, part


def by_loops(name: str, part: Any, x_TD: Tensor) -> Tensor:
    weights, text = dict(part.state_dict()), x_TD.tolist()
    if name == "channel-mix":
        return torch.tensor(loops.channel_mix(weights, text))
    if name == "rwkv4":
        return torch.tensor(loops.rwkv4(weights, text))
    if name == "rwkv5":
        return torch.tensor(loops.rwkv5(weights, text, part.n_heads, part.norm.eps))
    return torch.tensor(loops.rwkv7(weights, text, part.n_heads, part.norm.eps)[0])


@settings(max_examples=80)
@given(parts(), st.sampled_from([1, 2, 7, 16, 17, 33, 50]), SEEDS)
@torch.no_grad()
def test_any_part_is_what_plain_loops_compute(named: tuple[str, Any], length: int, seed: int) -> None:
    name, part = named
    x_BTD = torch.randn(2, length, D, generator=torch.Generator().manual_seed(seed)) * 2
    y_BTD, _ = part.scan(x_BTD, None, None)
    for row in range(2):
        close(y_BTD[row], by_loops(name, part, x_BTD[row]), rtol=1e-3, atol=2e-4)


@settings(max_examples=20)
@given(st.sampled_from(RWKVS), SEEDS)
@torch.no_grad()
def test_keys_whose_powers_no_float_holds_are_weighted_all_the_same(name: str, seed: int) -> None:
    part = random_model(decoder([dict(type=name, **({} if name == "rwkv4" else dict(n_heads=2)))]), seed)
    part = part.decoder.layers[0].mixer
    part.key.weight.mul_(200.0)  # e^k overflows from 89 on
    x_BTD = torch.randn(1, 40, D, generator=torch.Generator().manual_seed(seed))
    y_BTD, _ = part.scan(x_BTD, None, None)
    # The heads of RWKV-5 and 7 are sums of such keys, whose rounding is as large as they are.
    scale = y_BTD.abs().max()
    close(y_BTD[0] / scale, by_loops(name, part, x_BTD[0]) / scale, rtol=1e-2, atol=2e-2 if name != "rwkv4" else 1e-3)


@pytest.mark.parametrize("name", RWKVS)
@torch.no_grad()
def test_a_whole_model_is_what_plain_loops_compute(name: str) -> None:
    model = randomise(gf.build(f"{name}-tiny", n_layers=3), seed=3).eval()
    tokens = ids(64, 1, 37)
    weights = {key: value.double() for key, value in model.state_dict().items()}
    norm = model.config.decoder.final_norm
    text = [layer_norm(weights, "decoder.input_norm", weights["embed.weight"][t].tolist(), norm.eps) for t in tokens[0]]
    firsts = None
    for layer in range(3):
        here = f"decoder.layers.{layer}"

        def of(part: str, here: str = here) -> dict[str, Tensor]:
            start = f"{here}.{part}."
            return {key.removeprefix(start): value for key, value in weights.items() if key.startswith(start)}

        mixer = model.decoder.layers[layer].mixer
        normed = [layer_norm(weights, f"{here}.mixer_residual.norm", x, norm.eps) for x in text]
        if name == "rwkv4":
            mixed = loops.rwkv4(of("mixer"), normed)
        elif name == "rwkv5":
            mixed = loops.rwkv5(of("mixer"), normed, mixer.n_heads, mixer.norm.eps)
        else:
            mixed, values = loops.rwkv7(of("mixer"), normed, mixer.n_heads, mixer.norm.eps, firsts)
            firsts = firsts or values
            assert (mixer.carry is None) == (layer == 0)
        text = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(text, mixed, strict=True)]
        normed = [layer_norm(weights, f"{here}.ffn_residual.norm", x, norm.eps) for x in text]
        channel = loops.channel_mix(of("ffn"), normed)
        text = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(text, channel, strict=True)]
    last = torch.tensor([layer_norm(weights, "decoder.final_norm", x, norm.eps) for x in text], dtype=torch.float64)
    close(model(tokens)[0].double(), last @ weights["head.weight"].T, rtol=1e-3, atol=1e-3)


@settings(max_examples=12)
@given(SEEDS, st.data())
@torch.no_grad()
def test_values_of_the_first_layer_follow_their_tokens_through_padding_and_chunks(seed: int, data) -> None:
    model = randomise(gf.build("rwkv7-tiny", n_layers=3), seed).eval()
    tokens = ids(64, 1, 24, seed=seed)
    expected = model(tokens)[0]
    left, right = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    real = torch.cat([torch.zeros(left), torch.ones(24), torch.zeros(right)]).bool()
    real[left + 5 : left + 8] = data.draw(st.booleans())
    wide = ids(64, 1, left + 24 + right, seed=seed + 1)
    wide[0, left : left + 24] = tokens
    if real[left + 5]:
        close(model(wide, real[None])[0, left : left + 24], expected, rtol=1e-3, atol=1e-4)
    else:  # padding in the middle
        close(model(wide, real[None])[0][real], model(wide[:, real])[0], rtol=1e-3, atol=1e-4)
    state, done = model.start(tokens[:, :9]), 9
    close(state.logits_BV[0], expected[8], rtol=1e-3, atol=1e-4)
    while done < 24:
        chunk = data.draw(st.integers(1, 24 - done))
        logits = model.step(tokens[:, done : done + chunk], state, last_only=False)
        close(logits[0], expected[done : done + chunk], rtol=1e-3, atol=1e-4)
        done += chunk
    state.truncate(3)
    close(model.step(tokens[:, 12:13], state)[0], expected[12], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_two_that_read_both_ways_each_take_on_values_of_their_own_direction() -> None:
    mixer = dict(type="rwkv7", n_heads=2, decay_rank=3, rate_rank=2, gate_rank=4)
    blocks = [dict(mixer=dict(type="bidirectional", mixer=each)) for each in (mixer, dict(mixer, value_rank=2))]
    data = dict(d_model=D, embed=dict(vocab_size=11), encoder=dict(blocks=blocks), head=None)
    model = random_model(ModelConfig.from_dict(data))
    # With the directions swapped, a text read backwards gives the same backwards, and only then.
    swapped = random_model(ModelConfig.from_dict(data))
    names = {"ahead": "back", "back": "ahead"}
    weights = {".".join(names.get(each, each) for each in key.split(".")): v for key, v in model.state_dict().items()}
    swapped.load_state_dict(weights)
    tokens = ids(11, 2, 9)
    close(swapped(tokens.flip(1)).flip(1), model(tokens), rtol=1e-4, atol=1e-5)
    assert (model(tokens.flip(1)).flip(1) - model(tokens)).abs().max() > 1e-2


@settings(max_examples=12)
@given(st.sampled_from(RWKVS), SEEDS)
def test_gradients_are_those_of_one_step_after_the_other(name: str, seed: int) -> None:
    model = random_model(decoder([dict(type=name, **({} if name == "rwkv4" else dict(n_heads=2)))]), seed)
    part = model.decoder.layers[0].mixer
    x_BTD = torch.randn(2, 21, D, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    real_BT = torch.tensor([[True] * 21, [False] * 4 + [True] * 17])
    along_BTD = torch.randn(2, 21, D) * real_BT[..., None]

    def gradients(y_BTD: Tensor) -> list[Tensor]:
        inputs = [x_BTD, *(p for p in part.parameters())]
        return list(torch.autograd.grad((y_BTD * along_BTD).sum(), inputs, allow_unused=True))

    whole = gradients(part.scan(x_BTD, real_BT, None)[0])
    memory, steps = None, []
    for place in range(21):
        now = slice(place, place + 1)
        step, memory = part.scan(x_BTD[:, now], real_BT[:, now], memory)
        steps.append(step)
    for one, other in zip(whole, gradients(torch.cat(steps, 1)), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.isfinite().all()
            close(one, other, rtol=1e-2, atol=1e-3 * max(1.0, other.abs().max().item()))


@pytest.mark.parametrize("name", RWKVS)
def test_fresh_and_extreme_weights_learn_with_finite_gradients_in_either_precision(name: str) -> None:
    for precision in (torch.float32, torch.bfloat16):
        for extreme in (False, True):
            model = gf.build(f"{name}-tiny")
            if extreme:
                for key, parameter in model.named_parameters():
                    if "decay" in key or "first" in key or "key" in key:
                        parameter.data *= 20.0
            with torch.autocast("cpu", precision, enabled=precision != torch.float32):
                mask = torch.arange(40) >= torch.tensor([[0], [13]])
                logits = model(ids(64, 2, 40), mask)
            logits.float()[mask].logsumexp(-1).sum().backward()
            assert logits.isfinite().all()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["rwkv4", "rwkv5"])
def test_channels_that_forget_faster_than_a_float_can_say_forget_all_at_once(name: str) -> None:
    model, outputs = randomise(gf.build(f"{name}-tiny")), []
    for decay in (29.0, 100.0):
        for layer in model.decoder.layers:
            layer.mixer.decay.data.fill_(decay)
        logits = model(ids(64, 2, 40))
        logits.logsumexp(-1).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        outputs.append(logits)
    close(*outputs)


@pytest.mark.parametrize(
    ("mixer", "ffn", "says"),
    [
        (dict(type="rwkv5", n_heads=3), None, "decoder block 0: d_model 8 is not a multiple of n_heads 3"),
        (dict(type="rwkv7", n_heads=5), None, "decoder block 0: d_model 8 is not a multiple of n_heads 5"),
        (dict(type="rwkv4", n_heads=2), None, "unknown key"),
        (dict(type="rwkv6", n_heads=2), None, "unknown type 'rwkv6'"),
        (dict(type="rwkv4"), dict(type="channel-mix", d_ff=4, activation="relu"), "unknown key"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(mixer: dict[str, Any], ffn: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        decoder([mixer], ffn)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_width_that_heads_do_not_divide_is_told() -> None:
    for name in ("rwkv5", "rwkv7"):
        with pytest.raises(UserError, match="d_model 33 is not a multiple of d_head 8"):
            gf.build(f"{name}-tiny", d_model=33)

"""Retention, Mamba and Mamba-2 beside loops that share nothing with them; the scan's gradients beside autograd's."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.config import Mamba2Config, MambaConfig, RetentionConfig
from glassformer.nn import scan
from glassformer.nn.block import build_mixer
from glassformer.nn.mixer import Context
from glassformer.nn.retention import Retention
from glassformer.nn.ssm import Mamba, Mamba2
from glassformer.trace.recorder import record
from tests import family_configs
from tests.oracles import mamba_loops, retention_loops
from tests.randomised import close, randomise

SEEDS, LENGTHS = st.integers(0, 10**6), st.integers(1, 7)


@st.composite
def cases(draw: st.DrawFn, make: Any, config: Any, part: Any) -> tuple[Any, torch.Tensor, dict[str, Any]]:
    seed = draw(SEEDS)
    mixer = randomise(part(config.from_dict(make(draw)), 8), seed).eval()
    x = torch.randn(1, draw(LENGTHS), 8, generator=torch.Generator().manual_seed(seed))
    return mixer, x, {name: value.double().numpy() for name, value in mixer.state_dict().items()}


@settings(max_examples=30)
@given(cases(family_configs.retention, RetentionConfig, Retention))
@torch.no_grad()
def test_retention_equals_the_loops(case) -> None:
    mixer, x, weights = case
    expected = retention_loops.retention(mixer.config, weights, x[0].double().tolist(), 8)
    close(mixer(x, Context())[0], torch.tensor(expected).float(), rtol=1e-3, atol=1e-4)


@settings(max_examples=30)
@given(cases(family_configs.mamba, MambaConfig, Mamba))
@torch.no_grad()
def test_mamba_equals_the_loops(case) -> None:
    mixer, x, weights = case
    close(mixer(x, Context())[0], torch.tensor(mamba_loops.mamba(mixer.config, weights, x[0].tolist())).float())


@settings(max_examples=30)
@given(cases(family_configs.mamba2, Mamba2Config, Mamba2))
@torch.no_grad()
def test_mamba2_equals_the_loops(case) -> None:
    mixer, x, weights = case
    expected = torch.tensor(mamba_loops.mamba2(mixer.config, weights, x[0].tolist())).float()
    close(mixer(x, Context())[0], expected, rtol=1e-3, atol=1e-4)


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 35), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_the_gradients_of_the_scan_are_those_of_a_loop(seed, length, inner, states, rounds) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shapes = [(2, length, inner)] * 2 + [(inner, states)] + [(2, length, states)] * 2 + [(2, inner, states)]
    x, delta, a, b, c, h = (normal(*shape) for shape in shapes)
    inputs = [each.requires_grad_() for each in (x, delta.abs(), -a.abs(), b, c, h)]

    def loop(x, delta, a, b, c, h):
        ys = []
        for t in range(length):
            h = (delta[:, t, :, None] * a).exp() * h + delta[:, t, :, None] * b[:, t, None] * x[:, t, :, None]
            ys.append((h * c[:, t, None]).sum(-1))
        return torch.stack(ys, 1), h

    weights = normal(2, length, inner), normal(2, inner, states)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BLOCK_NUMBERS", 1)  # blocks of 16 tokens
        if rounds:  # what a GPU does
            patch.setattr(scan, "_run", lambda *args, **more: scan._run_in_rounds(*args, **more))
        answers = []
        for function in (scan._Scan.apply, loop):
            y, last = function(*inputs)
            grads = torch.autograd.grad((y * weights[0]).sum() + (last * weights[1]).sum(), inputs)
            answers.append((y, last, *grads))
    for ours, theirs in zip(*answers, strict=True):
        close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["retention", "mamba2"])
@torch.no_grad()
def test_what_the_pattern_shows_is_what_is_mixed(name: str) -> None:
    if name == "retention":
        mixer = randomise(Retention(RetentionConfig(n_heads=2, d_value=3), 8))
    else:
        mixer = randomise(Mamba2(Mamba2Config(n_heads=2, d_head=3, d_state=4), 8))
    x = torch.randn(2, 9, 8)
    with record(mixer) as trace:
        mixer(x, Context())
    pattern = trace["pattern"]
    assert (pattern.triu(1) == 0).all()
    if name == "retention":
        mixed = pattern @ trace["v"]
        close(torch.nn.functional.layer_norm(mixed, (3,), eps=1e-6), trace["z"], rtol=1e-3, atol=1e-4)
    else:
        x_BHTP = trace["x"].transpose(1, 2)
        close(pattern @ x_BHTP + x_BHTP * mixer.skip[:, None, None], trace["y"].transpose(1, 2), atol=1e-4)


@torch.no_grad()
def test_what_a_mambas_pattern_shows_of_some_features_is_what_is_mixed_in_them() -> None:
    mixer, x = randomise(Mamba(MambaConfig(d_inner=21, d_state=3), 8)), torch.randn(2, 9, 8)
    with record(mixer) as trace:
        mixer(x, Context())
    pattern, shown = trace["pattern"], [0, 2, 4, 6, 8, 10, 12, 14]
    inner = trace["post"][..., shown].transpose(1, 2)
    y = (pattern @ inner[..., None])[..., 0] + inner * mixer.skip[shown, None]
    close(y.transpose(1, 2), trace["y"][..., shown], atol=1e-4)


@pytest.mark.parametrize("traced", [False, True])
@torch.no_grad()
def test_behind_a_token_that_forgets_everything_what_follows_is_as_exact_as_one_by_one(traced: bool) -> None:
    mixers = [randomise(Mamba2(Mamba2Config(n_heads=2, d_head=3, d_state=4, chunk=size), 8)) for size in (64, 1)]
    x = torch.randn(1, 40, 8, generator=torch.Generator().manual_seed(3))
    for mixer in mixers:
        mixer.a_log.zero_()
        mixer.step_bias.zero_()
        mixer.step.weight.copy_(torch.eye(8)[:1].expand(2, -1))
    x[..., 0] = torch.where(torch.arange(40) % 7 == 0, 1e6, -3.0)
    x[..., 1:] *= 50
    whole, steps = mixers
    with record(whole) if traced else nullcontext():
        y = whole(x, Context())
    close(y, steps(x, Context()), atol=1e-4)


@pytest.mark.parametrize("kind", [MambaConfig(d_state=3), Mamba2Config(n_heads=2, d_head=3, d_state=4)])
def test_decays_that_no_float_holds_are_finite_and_so_are_their_gradients(kind: Any) -> None:
    mixer = randomise(build_mixer(kind, 8))
    for log, bias in ((-200.0, 1e5), (100.0, 1e5), (100.0, -200.0)):
        mixer.a_log.data.fill_(log)
        (mixer.step.bias if isinstance(kind, MambaConfig) else mixer.step_bias).data.fill_(bias)
        y = mixer(torch.randn(2, 70, 8), Context())
        y.square().mean().backward()
        assert y.isfinite().all() and all(p.grad.isfinite().all() for p in mixer.parameters())

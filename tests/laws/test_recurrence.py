"""Laws of recurrences: a memory of constant size, padding anywhere, tokens taken back; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st

from glassformer.config import ModelConfig
from glassformer.errors import UserError
from glassformer.nn import mask as masks
from glassformer.nn import state as states
from glassformer.nn.mixer import Context
from glassformer.nn.recurrence import Recurrence
from glassformer.nn.state import SLACK, RecurrentState
from tests.family_configs import RECURRENT
from tests.randomised import close, ids, random_model

SEEDS = st.integers(0, 10**6)
each_mixer = pytest.mark.parametrize("name", sorted(RECURRENT))
"""One by one: left to chance, one of many would often not be drawn."""


def first(strategy: st.SearchStrategy[Any]) -> Any:
    """What a test draws that draws once."""
    return find(strategy, lambda _: True)


def build(draw: st.DrawFn, name: str, side: str = "decoder", **more: Any) -> ModelConfig:
    block = dict(mixer=dict(type=name, **RECURRENT[name](draw)), order="pre")
    return ModelConfig.from_dict({"d_model": 8, "embed": dict(vocab_size=11), side: dict(blocks=[block]), **more})


def drawn(data: st.DataObject, name: str, seed: int) -> Recurrence:
    return random_model(build(data.draw, name), seed).decoder.layers[0].mixer


@each_mixer
@settings(max_examples=6)
@given(seed=SEEDS, data=st.data())
@torch.no_grad()
def test_chunks_of_any_length_and_tokens_taken_back_equal_the_whole(name: str, seed: int, data) -> None:
    mixer = drawn(data, name, seed)
    generator, slack = torch.Generator().manual_seed(seed), 5
    text, state, most = torch.randn(2, 0, 8), mixer.init_state(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "SLACK", slack)
        for _ in range(data.draw(st.integers(2, 7))):
            if data.draw(st.booleans()):
                text = text[:, : data.draw(st.integers(max(0, most - slack), text.shape[1]))]
                state.truncate(text.shape[1])
            length = data.draw(st.sampled_from([1, 2, 4, 5, 6, 13]))
            new = torch.randn(2, length, 8, generator=generator)
            text = torch.cat([text, new], 1)
            most = max(most, text.shape[1])
            close(state.read(new, None), mixer.scan(text, None, None)[0][:, -length:], rtol=1e-3, atol=1e-4)
            assert state.length == text.shape[1]


@each_mixer
@settings(max_examples=8)
@given(seed=SEEDS, data=st.data())
@torch.no_grad()
def test_padding_anywhere_is_as_if_it_were_not_there(name: str, seed: int, data) -> None:
    mixer = drawn(data, name, seed)
    real = torch.rand(3, 9, generator=torch.Generator().manual_seed(seed + 1)) < data.draw(st.sampled_from([0.4, 0.7]))
    real[data.draw(st.integers(0, 2))] = False  # a row that is all padding
    x = torch.randn(3, 9, 8, generator=torch.Generator().manual_seed(seed)) * torch.where(real[..., None], 1.0, 50.0)
    y = mixer(x, Context(mask_BS=real, holes=masks.holes(real)))
    assert y.isfinite().all()
    for row in range(3):
        if real[row].any():
            close(y[row][real[row]], mixer(x[row][real[row]][None], Context())[0], rtol=1e-3, atol=1e-4)


@each_mixer
@torch.no_grad()
def test_the_memory_is_as_large_after_thousands_of_tokens_as_after_a_few(name: str) -> None:
    mixer = random_model(build(first, name)).decoder.layers[0].mixer
    state, sizes = mixer.init_state(), []
    for chunk in [1] * 300 + [13] * 150:
        assert state.read(torch.randn(1, chunk, 8), None).isfinite().all()
        sizes.append(state.nbytes)
    assert max(sizes) <= 3 * 4 * (mixer.kept().constant + SLACK * 2 * 8)
    own = sum(value.nbytes for value in state.memory.values())
    assert own == mixer.kept().constant * 4
    assert state.length == 2250
    state.truncate(2250 - SLACK)
    with pytest.raises(ValueError, match="a recurrence forgot"):
        state.truncate(100)


@torch.no_grad()
def test_a_memory_is_replaced_and_never_changed() -> None:
    seen = []

    def scan(x, real, memory):
        seen.append(memory)
        total = (0 if memory is None else memory["sum"]) + x.sum(1)
        return x, {"sum": total}

    state = RecurrentState(scan)
    for place in range(3 * SLACK):
        state.read(torch.full((2, 1, 1), float(place)), None)
    state.select(torch.tensor([1]))
    state.truncate(3 * SLACK - 10)
    assert state.memory["sum"].tolist() == [[sum(range(3 * SLACK - 10))]]
    assert len(state._snapshots) <= 2


MAMBA_LIKE = dict(type="retention", n_heads=2)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (
            dict(decoder=dict(blocks=[dict(mixer=dict(type="bidirectional", mixer=MAMBA_LIKE))])),
            "decoder block 0: bidirectional sees later tokens; a decoder cannot",
        ),
        (
            dict(decoder=dict(blocks=[dict(mixer=MAMBA_LIKE)], bias=dict(type="alibi"))),
            "block 0: retention has no scores that a bias could be added to",
        ),
        (
            dict(encoder=dict(blocks=[dict(mixer=dict(type="bidirectional", mixer=dict(n_heads=2)))])),
            "encoder.blocks.0.mixer.mixer: has no type",
        ),
        (dict(decoder=dict(blocks=[dict(mixer=dict(type="retention", n_heads=3))])), "d_model 8 is not a multiple"),
        (dict(decoder=dict(blocks=[dict(mixer=dict(type="retention", n_heads=8))])), "needs an even d_head"),
        (dict(decoder=dict(blocks=[dict(mixer=dict(**MAMBA_LIKE, forget=[0.1]))])), "one for each of the 2 heads"),
        (dict(decoder=dict(blocks=[dict(mixer=dict(**MAMBA_LIKE, rotary={}))])), "unknown key"),
        (dict(decoder=dict(blocks=[dict(mixer=dict(type="lstn"))])), "unknown type 'lstn'; did you mean 'lstm'?"),
        (dict(decoder=dict(blocks=[dict(mixer=dict(type=7))])), "unknown type '7'; known are 'attention', 'retention'"),
        (dict(decoder=dict(blocks=[dict(mixer=dict(**MAMBA_LIKE, forget=[1e-300, 0.1]))])), "forget.0"),
        (
            dict(decoder=dict(blocks=[dict(mixer=dict(type="mamba", dt_min=0.2))])),
            "dt_min 0.2 is more than dt_max 0.1; change one",
        ),
        (
            dict(decoder=dict(blocks=[dict(mixer=dict(type="mamba2", n_heads=2, dt_range=[1.0, 0.5]))])),
            "dt_range [1.0, 0.5] begins after its end",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        ModelConfig.from_dict(dict(d_model=8, embed=dict(vocab_size=11), **parts))
    assert says in str(caught.value) and "\n" not in str(caught.value)


@torch.no_grad()
def test_a_recurrence_alone_reads_an_encoder_from_left_to_right_and_two_read_both_ways() -> None:
    for both in (False, True):
        mixer = dict(type="bidirectional", mixer=MAMBA_LIKE) if both else MAMBA_LIKE
        stack = dict(blocks=[dict(mixer=mixer)])
        model = random_model(
            ModelConfig.from_dict(dict(d_model=8, embed=dict(vocab_size=11), encoder=stack, head=None))
        )
        tokens = ids(11, 1, 6)
        other = tokens.clone()
        other[:, 4] = (other[:, 4] + 1) % 11
        changed = (model(tokens) != model(other)).any(-1)[0].tolist()
        assert changed == [both] * 4 + [True, True]

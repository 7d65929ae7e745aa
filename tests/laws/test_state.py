"""Laws of decoding with a state: whatever the chunks and the reordering, it equals reading everything anew."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import UserError
from glassformer.nn import state as states
from tests.randomised import close, configs, ids, lengths_mask, random_model

SEEDS = st.integers(0, 10**6)


def read(model, state, target, cuts):
    """Reads ``target`` in chunks that end at ``cuts``; gives the logits after each chunk."""
    start, logits = 0, []
    for end in cuts:
        logits.append(model.step(target[:, start:end], state))
        start = end
    return logits


@settings(max_examples=40)
@given(configs(), SEEDS, st.sets(st.integers(1, 38), max_size=8))
@torch.no_grad()
def test_any_chunks_equal_the_whole(config, seed, cuts) -> None:
    model = random_model(config, seed)
    source, target = ids(9, 2, 4, seed=seed), ids(config.target_vocab_size, 2, 39, seed=seed + 1)
    mask = lengths_mask([4, 2])
    whole = model(source, target, mask)
    ends = [*sorted(cuts), 39]
    for end, logits in zip(ends, read(model, model.start(source, mask), target, ends), strict=True):
        assert logits.shape == (2, config.target_vocab_size)
        close(logits, whole[:, end - 1])


@torch.no_grad()
def test_step_by_step_equals_the_whole_past_every_growth_of_the_buffers() -> None:
    model = random_model()
    source, target = ids(11, 2, 4), ids(11, 2, 70, seed=1)
    whole = model(source, target)
    state = model.start(source)
    for end, logits in enumerate(read(model, state, target, range(1, 71)), start=1):
        close(logits, whole[:, end - 1])
    assert state.length == 70


@settings(max_examples=25)
@given(SEEDS, st.data())
@torch.no_grad()
def test_selecting_rows_equals_reading_their_histories_anew(seed, data) -> None:
    model = random_model(seed=seed, order="pre")
    source, mask = ids(11, 3, 5, seed=seed), lengths_mask([5, 2, 3])
    state = model.start(source, mask)
    rows = [(b, []) for b in range(3)]
    for turn in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            index = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
            state.select(torch.tensor(index))
            rows = [(rows[i][0], list(rows[i][1])) for i in index]
        new = ids(11, len(rows), data.draw(st.integers(1, 7)), seed=seed + turn)
        logits = model.step(new, state)
        for row, (_, history) in enumerate(rows):
            history.extend(new[row].tolist())
        which = torch.tensor([b for b, _ in rows])
        close(logits, model(source[which], torch.tensor([h for _, h in rows]), mask[which])[:, -1])


@torch.no_grad()
def test_reordering_the_beams_of_one_source_copies_nothing_of_that_source() -> None:
    model = random_model()
    state = model.start(ids(11, 2, 4), lengths_mask([4, 2]))
    state.select(torch.tensor([0, 0, 0, 1, 1, 1]))
    model.step(ids(11, 6, 2), state)
    cross = [block.cross for block in state.blocks]
    before = [tensor.data_ptr() for static in cross for tensor in (static.k_BHSK, static.v_BHSK)]
    mask = state.memory_mask_BS
    own = state.blocks[0].mixer._k_BHSK[:, :, :2].clone()
    state.select(torch.tensor([2, 0, 1, 4, 4, 3]))
    assert [tensor.data_ptr() for static in cross for tensor in (static.k_BHSK, static.v_BHSK)] == before
    assert state.memory_mask_BS is mask
    assert torch.equal(state.blocks[0].mixer._k_BHSK[:, :, :2], own[[2, 0, 1, 4, 4, 3]])
    state.select(torch.tensor([3, 4, 5, 0, 1, 2]))
    assert [tensor.data_ptr() for static in cross for tensor in (static.k_BHSK, static.v_BHSK)] != before
    assert torch.equal(state.memory_mask_BS, mask[[3, 4, 5, 0, 1, 2]])


@torch.no_grad()
def test_unused_slots_are_never_read(monkeypatch) -> None:
    real = states._room
    monkeypatch.setattr(states, "_room", lambda like, slots: real(like, slots).fill_(float("nan")))
    model = random_model()
    source, target = ids(11, 2, 4), ids(11, 2, 40, seed=1)
    whole = model(source, target)
    state = model.start(source)
    for place in range(40):
        close(model.step(target[:, place : place + 1], state), whole[:, place])
        for block in state.blocks:
            block.mixer._k_BHSK[:, :, place + 1 :] = float("nan")
            block.mixer._v_BHSK[:, :, place + 1 :] = 1e30
        if place % 3 == 0:
            state.select(torch.tensor([0, 1]))


@torch.no_grad()
def test_the_encoder_runs_once_and_its_keys_and_values_are_made_once() -> None:
    model = random_model()
    calls = dict.fromkeys(["encoder", "cross.key", "cross.value", "cross.query", "mixer.key"], 0)

    def counting(kind):
        def hook(*_):
            calls[kind] += 1

        return hook

    for name, module in model.named_modules():
        for kind in calls:
            if name == kind or (name.startswith("decoder.layers.1.") and name.endswith(kind)):
                module.register_forward_hook(counting(kind))
    widths = []
    model.head.register_forward_hook(lambda _, inputs, __: widths.append(tuple(inputs[0].shape)))
    read(model, model.start(ids(11, 2, 4)), ids(11, 2, 7), [3, 4, 5, 6, 7])
    assert calls == {"encoder": 1, "cross.key": 1, "cross.value": 1, "cross.query": 5, "mixer.key": 5}
    assert widths == [(2, 8)] * 5, "logits are wanted of the last position only"


@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
@torch.no_grad()
def test_a_text_longer_than_the_position_table_is_refused_with_the_limit(position: str) -> None:
    model = random_model(position=position, max_len=6)
    source = ids(11, 1, 4)
    model(source, ids(11, 1, 6))
    state = model.start(source)
    logits = model.step(ids(11, 1, 5), state)
    with pytest.raises(UserError, match=r"7 tokens .* 6 positions.*max_len"):
        model.step(ids(11, 1, 2), state)
    assert state.length == 5, "a refused step leaves the state as it was"
    assert model.step(ids(11, 1, 1), state).shape == logits.shape
    for source_length, target_length in ((7, 2), (2, 7)):
        with pytest.raises(UserError, match="6 positions") as caught:
            model(ids(11, 1, source_length), ids(11, 1, target_length))
        assert "\n" not in str(caught.value)


@torch.no_grad()
def test_the_memory_held_is_counted_in_bytes() -> None:
    model = random_model()
    state = model.start(ids(11, 3, 4))
    static = 2 * 2 * 3 * 4 * 8 * 4  # layers · (K and V) · batch · source · d_model · bytes
    assert state.nbytes == static
    model.step(ids(11, 3, 20), state)
    assert state.nbytes == static + 2 * 2 * 3 * 20 * 8 * 4


@torch.no_grad()
def test_decoding_under_bfloat16_gives_float32_logits_near_the_exact_ones() -> None:
    model = random_model(order="pre")
    source, target = ids(11, 2, 4), ids(11, 2, 6, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state = model.start(source)
        logits = read(model, state, target, range(1, 7))[-1]
    assert logits.dtype == torch.float32
    close(logits, model(source, target)[:, -1], rtol=0.1, atol=0.2)


@settings(max_examples=20)
@given(configs(), SEEDS, st.data())
@torch.no_grad()
def test_truncating_equals_never_having_read_the_tokens(config, seed, data) -> None:
    model = random_model(config, seed)
    source, mask = ids(9, 3, 4, seed=seed), lengths_mask([4, 2, 3])
    state = model.start(source, mask)
    rows, history = torch.arange(3), torch.zeros(3, 0, dtype=torch.long)
    for turn in range(data.draw(st.integers(1, 6))):
        keep = data.draw(st.integers(0, history.shape[1]))
        state.truncate(keep)
        history = history[:, :keep]
        assert state.length == keep
        if data.draw(st.booleans()):
            index = torch.tensor(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=4)))
            state.select(index)
            rows, history = rows[index], history[index]
        new = ids(config.target_vocab_size, len(rows), data.draw(st.integers(1, 6)), seed=seed + turn)
        history = torch.cat([history, new], 1)
        logits = model.step(new, state, last_only=False)
        close(logits, model(source[rows], history, mask[rows])[:, keep:])


@torch.no_grad()
def test_what_was_never_read_cannot_be_truncated_to() -> None:
    model = random_model()
    state = model.start(ids(11, 2, 4))
    model.step(ids(11, 2, 3), state)
    for length in (-1, 4):
        with pytest.raises(ValueError, match="3 positions"):
            state.truncate(length)
    assert state.length == 3

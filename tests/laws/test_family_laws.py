"""Laws that a model of any family obeys, whatever its configuration holds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.config import ModelConfig
from glassformer.errors import UserError
from glassformer.nn import state as states
from glassformer.nn.attend import attend
from glassformer.trace.recorder import record
from tests.family_configs import decoders, encoders, relatives
from tests.laws.test_attention import loop_attention
from tests.randomised import close, ids, lengths_mask, random_model

SEEDS = st.integers(0, 10**6)
DECODERS = st.one_of(decoders(), decoders(mixed=True))
SEQ2SEQ = st.one_of(relatives(), relatives(mixed=True))
ANY = st.one_of(DECODERS, encoders(), encoders(mixed=True), SEQ2SEQ)


def run(model: torch.nn.Module, tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The output at every position; an encoder–decoder reads and writes the same."""
    if model.config.kind == "encoder-decoder":
        return model(tokens, tokens, mask, mask)
    return model(tokens, mask)


def padded(tokens: torch.Tensor, left: int, right: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    batch, length = tokens.shape
    around = [ids(11, batch, n, seed=seed + n) for n in (left, right)]
    mask = lengths_mask([length] * batch, length + right)
    return torch.cat([around[0], tokens, around[1]], 1), torch.cat(
        [torch.zeros(batch, left, dtype=torch.bool), mask], 1
    )


@settings(max_examples=100)
@given(ANY, SEEDS, st.integers(0, 3), st.integers(0, 3))
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(config: ModelConfig, seed: int, left: int, right: int) -> None:
    model, tokens = random_model(config, seed), ids(11, 2, 5, seed=seed)
    wide, mask = padded(tokens, left, right, seed)
    expected, out = run(model, tokens, None), run(model, wide, mask)
    close(out[:, left : left + 5] if out.dim() == 3 else out, expected, rtol=1e-3)


@settings(max_examples=80)
@given(st.one_of(DECODERS, SEQ2SEQ), SEEDS, st.integers(0, 5))
@torch.no_grad()
def test_a_token_changes_no_logit_before_it(config: ModelConfig, seed: int, place: int) -> None:
    model, tokens = random_model(config, seed), ids(11, 2, 6, seed=seed)
    other = tokens.clone()
    other[:, place] = (other[:, place] + 1) % 11
    read = (lambda x: model(tokens, x)) if config.kind == "encoder-decoder" else model
    before, after = read(tokens), read(other)
    close(after[:, :place], before[:, :place], rtol=0, atol=1e-5)
    assert not torch.equal(after[:, place], before[:, place])


@settings(max_examples=80)
@given(ANY, SEEDS)
@torch.no_grad()
def test_recording_changes_nothing_and_sees_every_tap(config: ModelConfig, seed: int) -> None:
    model, tokens = random_model(config, seed), ids(11, 2, 5, seed=seed)
    mask = lengths_mask([5, 3])
    plain = run(model, tokens, mask)
    with record(model) as trace:
        recorded = run(model, tokens, mask)
    close(recorded, plain, rtol=1e-3)
    assert set(trace) == set(model.taps())
    for name, axes in model.taps().items():
        if "…" not in axes:
            assert trace[name].dim() == len(axes.split()), name
    for name in (name for name in trace if name.endswith("pattern")):
        side = getattr(config, name.split(".")[0]).blocks[int(name.split(".")[2])]
        window = None if ".cross." in name else getattr(side.mixer, "window", None)
        query, key = torch.meshgrid(torch.arange(5), torch.arange(5), indexing="ij")
        if window:
            assert (trace[name][..., (query - key).abs() >= window] == 0).all()
        assert (trace[name][1, :, :, 3:] == 0).all(), "what is padding gets no weight"


@settings(max_examples=100)
@given(DECODERS, SEEDS, st.data())
@torch.no_grad()
def test_any_chunks_after_any_prompts_equal_the_whole(config: ModelConfig, seed: int, data: st.DataObject) -> None:
    model = random_model(config, seed)
    rows = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    width = max(rows) + data.draw(st.integers(0, 2))
    prompt, mask = ids(11, len(rows), width, seed=seed), torch.zeros(len(rows), width, dtype=torch.bool)
    for row, length in enumerate(rows):
        at = data.draw(st.integers(0, width - length))
        mask[row, at : at + length] = True
    state = model.start(prompt, None if mask.all() else mask)
    texts = [prompt[row][mask[row]] for row in range(len(rows))]
    close(state.logits_BV, torch.stack([model(text[None])[0, -1] for text in texts]), rtol=1e-3)
    for turn in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            index = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=3))
            state.select(torch.tensor(index))
            texts = [texts[i] for i in index]
        if state.length and data.draw(st.booleans()):
            kept = data.draw(st.integers(0, state.length))
            texts = [text[: len(text) - state.length + kept] for text in texts]
            state.truncate(kept)
        new = ids(11, len(texts), data.draw(st.integers(1, 4)), seed=seed + turn)
        texts = [torch.cat([text, more]) for text, more in zip(texts, new, strict=True)]
        logits = model.step(new, state, last_only=False)
        close(logits, torch.stack([model(t[None])[0, -new.shape[1] :] for t in texts]), rtol=1e-3)
        assert state.logits_BV is None


@settings(max_examples=50)
@given(SEQ2SEQ, SEEDS, st.sets(st.integers(1, 11), max_size=5))
@torch.no_grad()
def test_any_chunks_of_a_target_equal_the_whole(config: ModelConfig, seed: int, cuts: set[int]) -> None:
    model = random_model(config, seed)
    source, target, mask = ids(11, 2, 4, seed=seed), ids(11, 2, 12, seed=seed + 1), lengths_mask([4, 2])
    whole, state, start = model(source, target, mask), model.start(source, mask), 0
    for end in [*sorted(cuts), 12]:
        close(model.step(target[:, start:end], state), whole[:, end - 1], rtol=1e-3)
        start = end


@st.composite
def grouped(draw: st.DrawFn):
    groups, each, size = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    causal = draw(st.booleans())
    n_queries = draw(st.integers(1, 6))
    n_keys = n_queries + draw(st.integers(0, 3)) if causal else draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(SEEDS))
    q = torch.randn(2, groups * each, n_queries, size, generator=generator)
    k, v = (torch.randn(2, groups, n_keys, size, generator=generator) for _ in range(2))
    mask = torch.rand(2, 1, n_queries, n_keys, generator=generator) < 0.7 if draw(st.booleans()) else None
    bias = torch.randn(groups * each, n_queries, n_keys, generator=generator) if draw(st.booleans()) else None
    return q, k, v, mask, causal, draw(st.sampled_from([None, 1, 2, 4])), bias, draw(st.sampled_from([None, 1.0, 0.3]))


@settings(max_examples=80)
@given(grouped())
def test_both_paths_equal_plain_attention_with_keys_repeated_and_one_dense_mask(problem) -> None:
    q, k, v, mask, causal, window, bias, scale = problem
    each, offset, size = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2], q.shape[3]
    k_all, v_all = (torch.stack([x[:, h // each] for h in range(q.shape[1])], 1) for x in (k, v))

    def allowed(b: int, h: int, t: int, s: int) -> bool:
        away = t + offset - s
        near = window is None or abs(away) < window
        return near and (not causal or away >= 0) and (mask is None or bool(mask[b, 0, t, s]))

    # Scale and bias become one more feature each of queries and keys, so that the loop needs no options.
    root = (size + k.shape[2]) ** 0.5
    places = torch.eye(k.shape[2]).expand(2, q.shape[1], -1, -1)
    added = torch.zeros(q.shape[1], q.shape[2], k.shape[2]) if bias is None else bias
    wide_q = torch.cat([q * (scale or size**-0.5) * root, (added * root).expand(2, -1, -1, -1)], -1)
    expected = loop_attention(wide_q, torch.cat([k_all, places], -1), v_all, allowed)
    for path in ("fused", "blocks", "tiled", "explicit"):
        options = dict(mask=mask, causal=causal, window=window, bias=bias, scale=scale, path=path)
        close(attend(q, k, v, **options), expected)


@torch.no_grad()
def test_a_window_keeps_what_it_needs_and_little_more() -> None:
    attention = dict(n_heads=2, causal=True, window=5)
    stack = dict(blocks=[dict(mixer=attention, order="pre")], final_norm={})
    config = ModelConfig.from_dict(dict(d_model=8, embed=dict(vocab_size=11), decoder=stack))
    model, text = random_model(config), ids(11, 1, 600)
    whole, state = model(text), model.start(text[:, :200])
    sizes = []
    for place in range(200, 600):
        close(model.step(text[:, place : place + 1], state), whole[:, place])
        sizes.append(state.nbytes)
    most = 4 * (5 + states.SLACK) * 2 * 8 * 4  # doubling at most doubles twice as many places as are kept
    assert max(sizes[1:]) <= most and len(set(sizes[150:])) < 4
    state.truncate(400 - states.SLACK)
    close(model.step(text[:, 600 - states.SLACK :], state), whole[:, -1])
    with pytest.raises(ValueError, match="window of 5"):
        state.truncate(1)


@torch.no_grad()
def test_padding_takes_no_place_in_the_table_of_positions() -> None:
    stack = dict(position=dict(type="learned", max_len=6, first=2), blocks=[dict(mixer=dict(n_heads=2, causal=True))])
    config = ModelConfig.from_dict(dict(d_model=8, embed=dict(vocab_size=11), decoder=stack))
    model, tokens = random_model(config), ids(11, 2, 6)
    wide, mask = padded(tokens, 5, 0, 1)
    close(model(wide, mask)[:, 5:], model(tokens))
    with pytest.raises(UserError, match=r"7 tokens .* 6 positions"):
        model(ids(11, 2, 7))
    with pytest.raises(UserError, match=r"7 tokens .* 6 positions"):
        model(torch.cat([wide, tokens[:, :1]], 1), torch.cat([mask, mask[:, -1:]], 1))

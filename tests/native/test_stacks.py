"""Decoders and encoders alone, and what their families bring, in the native engine: equal to the torch modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from glassformer.config import ModelConfig
from glassformer.generate import Request, SearchConfig, search
from glassformer.runtime.library import EngineUnavailable
from glassformer.runtime.support import known_throughout
from tests.native.models import BOS, EOS, module_of, opened
from tests.toys import batch

VOCAB = 37


def close(found: np.ndarray, wanted: torch.Tensor) -> None:
    """Equal as float32 goes: random norms of nearly constant rows magnify what the order of a sum leaves."""
    assert found.shape == tuple(wanted.shape)
    assert np.abs(found - wanted.numpy()).max() < 3e-4 * max(1.0, wanted.abs().max().item())


def drawn(seed: int, kind: str, **overrides: Any) -> ModelConfig:
    """Any variant that the native engine knows of a model of that kind, its sizes no multiple of anything."""
    r = np.random.default_rng(seed)

    def pick(*options: Any) -> Any:
        return options[r.integers(len(options))]

    def norm() -> dict[str, Any]:
        return pick(dict(type="rms", eps=pick(1e-6, 1e-2)), dict(eps=pick(1e-6, 1e-2), bias=pick(True, False)))

    d_model = pick(8, 13, 31, 48)
    heads, kv_heads, d_head = pick((4, 2, 6), (3, 1, 16), (2, None, 18), (6, 3, 4), (1, None, 34))
    scaling = pick(None, dict(type="linear", factor=3.0), dict(type="llama3", factor=4.0, original_max_len=16))
    rotary = dict(base=pick(10.0, 1e4), fraction=pick(1.0, 0.5), layout=pick("halves", "interleaved"), scaling=scaling)
    turned = pick(rotary, None)
    if int((turned or rotary)["fraction"] * d_head) % 2:
        turned = None

    def attention(causal: bool) -> dict[str, Any]:
        own = dict(n_heads=heads, d_head=d_head, bias=pick(True, False), out_bias=pick(None, True, False))
        own["scale"] = pick(None, 0.5)
        if not causal:
            return own
        return own | dict(causal=True, n_kv_heads=kv_heads, window=pick(None, 1, 3, 50), rotary=turned)

    def ffn() -> dict[str, Any]:
        sizes = dict(d_ff=int(r.integers(1, 40)), bias=pick(True, False))
        return sizes | pick(dict(type="gated"), dict()) | dict(activation=pick("relu", "gelu", "gelu-tanh", "silu"))

    def stack(name: str) -> dict[str, Any]:
        order = pick("pre", "post")
        parallel = kind == "decoder" and order == "pre" and pick(True, False)
        learned = dict(type="learned", max_len=40, first=pick(0, 2))
        blocks = [
            dict(
                mixer=attention(name == "decoder"),
                cross=attention(False) if (name, kind) == ("decoder", "encoder-decoder") else None,
                ffn=ffn() if parallel else pick(ffn(), ffn(), None),
                norm=norm(),
                order=order,
                parallel=parallel,
            )
            for _ in range(pick(1, 2, 3))
        ]
        position = learned if kind == "encoder" or not turned else pick(None, learned)
        return dict(position=position, input_norm=pick(None, norm()), blocks=blocks, final_norm=pick(None, norm()))

    types = pick(0, 2) if kind == "encoder" else 0
    config: dict[str, Any] = dict(
        d_model=d_model,
        embed=dict(vocab_size=VOCAB, scale=pick(True, False), token_types=types),
        head=None if kind == "encoder" else dict(bias=pick(True, False)),
        tie=pick(True, False) if kind != "encoder" else True,
        **{name: stack(name) for name in ("encoder", "decoder") if name in kind},
    )
    return ModelConfig.from_dict(config | overrides)


@pytest.mark.parametrize("seed", range(40))
def test_a_decoder_reads_prompts_and_tokens_as_the_module_does(seed, tmp_path):
    config = drawn(seed, "decoder")
    module = module_of(config, seed)
    native = opened(module, config, tmp_path)
    r = np.random.default_rng(seed)
    prompts = [r.integers(3, VOCAB, n).tolist() for n in (5, 1, 9)]
    tokens_NT = r.integers(3, VOCAB, (3, 6))
    state = native.start(prompts)
    told = [state.logits_NV[:, None]]
    for first, last in ((0, 1), (1, 4), (4, 6)):
        told.append(state.step(tokens_NT[:, first:last], last_only=False))
    told_NTV = np.concatenate(told, 1)
    for prompt, row_T, row_TV in zip(prompts, tokens_NT.tolist(), told_NTV, strict=True):
        wanted_TV = module(torch.tensor([prompt + row_T]))[0, len(prompt) - 1 :]
        close(row_TV, wanted_TV)
    state.truncate(2)
    state.select([2, 0])
    again_NV = state.step(tokens_NT[[2, 0], 2:4])
    np.testing.assert_array_equal(again_NV, told_NTV[[2, 0], 4])


@pytest.mark.parametrize("seed", range(12))
def test_a_decoders_search_goes_on_from_its_prompts(seed, tmp_path):
    config = drawn(seed, "decoder")
    module = module_of(config, seed)
    native = opened(module, config, tmp_path, threads=2)
    r = np.random.default_rng(seed)
    prompts = [tuple(r.integers(3, VOCAB, n).tolist()) for n in (5, 1, 9, 4)]
    beam = int(r.integers(1, 5))
    options = dict(beam_size=beam, n_best=beam, length_penalty=0.7)
    request = Request(None, EOS, (0, BOS))
    wanted = search(module, *batch(prompts), SearchConfig(max_new_tokens=7, **options), request)
    found = native.search(prompts, limits=[7] * 4, bos_id=BOS, eos_id=EOS, banned_ids=(0, BOS), **options)
    for mine, its in zip(found, wanted, strict=True):
        assert [h.ids for h in mine] == [h.ids for h in its]
        for one, other in zip(mine, its, strict=True):
            assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-4, rel=1e-4)
    alone = [native.search([p], limits=[7], bos_id=BOS, eos_id=EOS, banned_ids=(0, BOS), **options)[0] for p in prompts]
    assert alone == found
    targets = [[*mine[0].ids, *[EOS] * mine[0].finished] for mine in found]
    assert native.score(prompts, targets, bos_id=BOS) == [list(mine[0].token_logprobs) for mine in found]


@pytest.mark.parametrize("seed", range(20))
def test_an_encoders_hidden_states_are_the_modules(seed, tmp_path):
    config = drawn(seed, "encoder")
    module = module_of(config, seed)
    native = opened(module, config, tmp_path, threads=2)
    r = np.random.default_rng(seed)
    texts = [r.integers(0, VOCAB, n).tolist() for n in (5, 1, 33, 40)]
    found = native.encode(texts)
    for ids, hidden_SD in zip(texts, found, strict=True):
        close(hidden_SD, module(torch.tensor([ids]))[0])
        np.testing.assert_array_equal(native.encode([ids])[0], hidden_SD)
    assert native.encode([]) == []


@pytest.mark.parametrize("seed", range(20))
def test_an_encoder_decoder_of_any_variant_steps_as_the_module_does(seed, tmp_path):
    config = drawn(seed, "encoder-decoder")
    module = module_of(config, seed)
    native = opened(module, config, tmp_path)
    r = np.random.default_rng(seed)
    sources = [r.integers(3, VOCAB, n).tolist() for n in (5, 1, 9)]
    tokens_NT = r.integers(3, VOCAB, (3, 6))
    told_NTV = native.start(sources).step(tokens_NT, last_only=False)
    for source, row_T, row_TV in zip(sources, tokens_NT, told_NTV, strict=True):
        wanted_TV = module(torch.tensor([source]), torch.tensor(row_T)[None])[0]
        close(row_TV, wanted_TV)


@pytest.mark.parametrize("precision, least", [("bf16", 0.999), ("int8", 0.98)])
def test_a_quantised_decoder_stays_close(precision, least, tmp_path):
    config = drawn(3, "decoder", d_model=64)
    module = module_of(config, 3)
    exact, close = (opened(module, config, tmp_path, each) for each in ("fp32", precision))
    prompts = np.random.default_rng(0).integers(3, VOCAB, (8, 12)).tolist()
    a, b = (model.start(prompts).logits_NV.astype(np.float64) for model in (exact, close))
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    assert ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min() > least


def test_prompts_are_bounded_by_the_positions(tmp_path):
    learned = dict(type="learned", max_len=8)
    block = dict(mixer=dict(n_heads=2, causal=True), ffn=dict(d_ff=8))
    config = ModelConfig.from_dict(
        dict(d_model=8, embed=dict(vocab_size=VOCAB), decoder=dict(position=learned, blocks=[block]))
    )
    native = opened(module_of(config), config, tmp_path)
    with pytest.raises(ValueError, match="an empty prompt"):
        native.start([[3], []])
    with pytest.raises(ValueError, match="a source of 9 tokens is beyond the model's 8"):
        native.start([[3] * 9])
    with pytest.raises(ValueError, match="limits .6.: must be from 1 to the model's 8, less the prompt's length"):
        native.search([[3, 4, 5]], limits=[6], bos_id=BOS, eos_id=EOS)
    state = native.start([[3] * 5, [4]])
    state.step(np.full((2, 3), 5))
    with pytest.raises(ValueError, match="target position 9 is beyond the model's 8"):
        state.step(np.full((2, 1), 5))


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(decoder=dict(bias=dict(type="alibi"))), "Stack.bias"),
        (
            dict(
                decoder=dict(blocks=[dict(rotary=dict(scaling=dict(type="dynamic", factor=2.0, original_max_len=9)))])
            ),
            "dynamic",
        ),
        (dict(head=dict(scale=True)), "Head.scale"),
        (dict(head=dict(type="classifier", labels=["a"])), "Classifier"),
    ],
)
def test_what_the_engine_does_not_know_is_refused_by_name(change, message, tmp_path):
    block = dict(mixer=dict(n_heads=2, causal=True), ffn=dict(d_ff=8))
    if "blocks" in change.get("decoder", {}):
        block["mixer"] |= change["decoder"]["blocks"][0]
        change = {}
    stack = dict(blocks=[block]) | change.pop("decoder", {})
    config = ModelConfig.from_dict(dict(d_model=8, embed=dict(vocab_size=VOCAB), decoder=stack) | change)
    with pytest.raises(EngineUnavailable, match=message):
        known_throughout(config)
        opened(module_of(config), config, tmp_path)

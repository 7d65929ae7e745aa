"""CTranslate2, in and out: the real transliterator word for word, every representable model beside `ctranslate2`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer as gf
from glassformer.config import ModelConfig
from glassformer.errors import UserError
from glassformer.families.same import refuse_difference
from glassformer.header import Framing
from glassformer.interop import ct2
from glassformer.text.vocabulary import listed
from tests.randomised import random_model, randomise

VOCAB, TARGET_VOCAB = 23, 19


def test_the_real_transliterator_answers_word_for_word(shared: Path) -> None:
    folder = shared / "data/checkpoints/ct2-aren-transliteration"
    translator = gf.load(folder)
    for case in json.loads((folder / "golden.json").read_text())["cases"]:
        source = case["source"]
        assert translator.translate(source, beam_size=1) == case["greedy"]
        (scored,) = translator.score([(source, case["greedy"])])
        logprobs = [token["logprob"] for token in scored["tokens"]]
        assert logprobs == pytest.approx(case["greedy_token_log_probs"], abs=2e-6)
        found = translator.translate(source, beam_size=4, n_best=4, details=True)["n_best"]
        # The two stop searching by different rules, so that a last rank may hold another word.
        texts, expected = [each["translation"] for each in found], dict(case["beam4"])
        assert texts[:3] == list(expected)[:3]
        for text, of_one in zip(
            texts, translator.score([(source, text) for text in texts], length_penalty=0), strict=True
        ):
            if text in expected:
                assert of_one["score"] / len(of_one["tokens"]) == pytest.approx(expected[text], abs=2e-5)


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """What CTranslate2 can represent."""
    n_heads, relative, pre = draw(st.sampled_from([1, 2, 4])), draw(st.booleans()), draw(st.booleans())
    rms, gated = draw(st.booleans()), draw(st.booleans())
    norm = dict(type="rms" if rms else "layer", eps=draw(st.sampled_from([1e-6, 1e-3])))
    # Beside GELU in its tanh form, so that a wrong number shows.
    ffn = dict(
        type="gated" if gated else "mlp",
        d_ff=6,
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from(ct2.ACTIVATIONS)),
    )
    own_sinusoids = dict(type="sinusoidal", layout="halves", first=1, base=10000 ** (8 / 6), max_len=1024)
    positions = [
        own_sinusoids,
        dict(type="sinusoidal", layout="halves", max_len=20),
        dict(type="sinusoidal", max_len=20),
        dict(type="learned", max_len=20),
        dict(type="learned", max_len=20, first=2),
    ]
    position, input_norm = draw(st.sampled_from(positions)), norm if draw(st.booleans()) else None
    scale, bias = draw(st.sampled_from([None, 1.0, 0.3])), draw(st.booleans())

    def stack(decoder: bool) -> dict[str, Any]:
        attention = dict(n_heads=n_heads, bias=bias, scale=scale)
        block = dict(
            mixer=dict(attention, causal=decoder),
            cross=attention if decoder else None,
            ffn=ffn,
            norm=norm,
            order="pre" if pre else "post",
        )
        own = (
            dict(bias=dict(type="t5", buckets=8, max_distance=9, bidirectional=not decoder))
            if relative
            else dict(position=position)
        )
        return dict(
            own, input_norm=input_norm, final_norm=norm if pre else None, blocks=[block] * draw(st.integers(1, 2))
        )

    shared = draw(st.booleans())
    embed = dict(vocab_size=VOCAB, scale=draw(st.booleans()))
    return ModelConfig.from_dict(
        dict(
            d_model=8,
            embed=embed,
            target_embed=None if shared else dict(vocab_size=TARGET_VOCAB, scale=draw(st.booleans())),
            encoder=stack(False),
            decoder=stack(True),
            tie=draw(st.booleans()),
            head=dict(bias=draw(st.booleans()), scale=draw(st.booleans())),
        )
    )


FRAMING = Framing(before=(1,), after=(2,), start=3, ends=(2,))


@settings(max_examples=40)
@given(configs(), st.integers(0, 10**6), st.sampled_from([None, "float16", "int8"]))
def test_any_model_is_written_for_ctranslate2_and_read_back(tmp_path_factory, config, seed, quantisation):
    folder, model = tmp_path_factory.mktemp("ct2") / "out", random_model(config, seed)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ct2.save(folder, model, None, FRAMING, quantisation)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    again = ct2.load(folder)
    assert (again.framing.start, again.framing.ends, again.framing.after) == (3, (2,), (2,))
    source, target = [1, 4, 9, 7, 2], [3, 8, 5, 11]
    with torch.no_grad():
        ours, back = (m(torch.tensor([source]), torch.tensor([target])) for m in (model, again.model))
    if quantisation is None:
        assert torch.equal(ours, back) or torch.allclose(ours, back, atol=1e-5)
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    (theirs,) = translator.score_batch(
        [[f"<{index}>" for index in source[1:-1]]], [[f"<{index}>" for index in target[1:]]]
    )
    logprobs = back.log_softmax(-1)[0, range(4), [*target[1:], 2]]
    torch.testing.assert_close(logprobs, torch.tensor(theirs.log_probs), rtol=1e-4, atol=1e-4)


@st.composite
def decoders(draw: st.DrawFn) -> ModelConfig:
    """What CTranslate2 can represent of one stack: GPT-2, LLaMA, Qwen2, GPT-NeoX and what lies between."""
    n_heads, bias, pre = draw(st.sampled_from([1, 2, 4])), draw(st.booleans()), draw(st.booleans())
    parallel = pre and draw(st.booleans())
    norm = dict(
        type="layer" if parallel else draw(st.sampled_from(["rms", "layer"])), eps=draw(st.sampled_from([1e-6, 1e-3]))
    )
    turned = draw(st.booleans())
    rotary = dict(
        base=draw(st.sampled_from([100.0, 10000.0])),
        fraction=draw(st.sampled_from([0.5, 1.0])),
        layout=draw(st.sampled_from(["halves", "interleaved"])),
        scaling=draw(st.sampled_from([None, dict(type="linear", factor=2.0)])),
        max_len=draw(st.sampled_from([None, 64])),
    )
    mixer = dict(
        n_heads=n_heads,
        n_kv_heads=draw(st.sampled_from([None, *(k for k in (1, 2) if n_heads % k == 0 and k < n_heads)])),
        d_head=4,
        causal=True,
        bias=bias,
        out_bias=draw(st.booleans()),
        scale=draw(st.sampled_from([None, 0.3])),
        rotary=rotary if turned else None,
    )
    ffn = dict(
        type=draw(st.sampled_from(["gated", "mlp"])),
        d_ff=6,
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from(ct2.ACTIVATIONS)),
    )
    block = dict(mixer=mixer, ffn=ffn, norm=norm, order="pre" if pre else "post", parallel=parallel)
    position = draw(st.sampled_from([dict(type="learned", max_len=20), dict(type="sinusoidal", max_len=20)]))
    stack = dict(
        position=None if turned else position,
        input_norm=norm if draw(st.booleans()) else None,
        final_norm=norm if pre else None,
        blocks=[block] * draw(st.integers(1, 2)),
    )
    embed, tie = dict(vocab_size=VOCAB, scale=draw(st.booleans())), draw(st.booleans())
    head = dict(bias=draw(st.booleans()))
    return ModelConfig.from_dict(dict(d_model=8, embed=embed, decoder=stack, tie=tie, head=head))


@settings(max_examples=20)
@given(decoders(), st.integers(0, 10**6), st.sampled_from([None, "float16", "int8"]))
def test_any_decoder_is_written_for_ctranslate2_and_read_back(tmp_path_factory, config, seed, quantisation):
    folder, model = tmp_path_factory.mktemp("ct2") / "out", random_model(config, seed)
    ct2.save(folder, model, None, Framing(before=(1,), after=(2,), ends=(2,)), quantisation)
    again = ct2.load(folder)
    assert (again.framing.before, again.framing.ends) == ((1,), (2,))
    read = [1, 4, 9, 7, 5, 11, 8]
    with torch.no_grad():
        ours, back = (m(torch.tensor([read])) for m in (model, again.model))
    if quantisation is None:
        torch.testing.assert_close(back, ours, rtol=1e-5, atol=1e-5)
    generator = ctranslate2.Generator(str(folder), compute_type="float32", intra_threads=1)
    (theirs,) = generator.score_batch([[f"<{index}>" for index in read]])
    logprobs = back.log_softmax(-1)[0, range(6), read[1:]]
    torch.testing.assert_close(logprobs, torch.tensor(theirs.log_probs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny", "qwen2-tiny", "neox-tiny"])
def test_a_decoder_writes_the_same_text_under_ctranslate2(tmp_path: Path, preset: str) -> None:
    model = randomise(gf.build(preset, vocab_size=VOCAB, **({"dropout": 0.0} if "gpt2" in preset else {}))).eval()
    tokenizer = listed(["<pad>", "<s>", "</s>", *(f"{chr(97 + index)}" for index in range(VOCAB - 3))])
    ct2.save(tmp_path / "out", model, tokenizer, Framing(before=(1,), ends=(2,)))
    ours, theirs = gf.load(tmp_path / "out"), ctranslate2.Generator(str(tmp_path / "out"), compute_type="float32")
    prompt = ["<s>", "c", "a", "b"]
    (told,) = theirs.generate_batch([prompt], max_length=9, include_prompt_in_result=False)
    ids = told.sequences_ids[0]
    assert len(ids) > 2 and ours.generate("cab", max_new_tokens=9) == ours.tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("mistral-tiny", "CTranslate2"),
        ("gpt3-tiny", "CTranslate2"),
        ("bert-tiny", "CTranslate2"),
        ("transformer-teaching", None),
    ],
)
def test_what_ctranslate2_cannot_hold_is_refused_and_leaves_nothing(
    tmp_path: Path, preset: str, said: str | None
) -> None:
    model = gf.build(preset).eval()
    if said is None:
        ct2.save(tmp_path / "out", model)
        refuse_difference(model.config, model.config, "itself")
        return
    with pytest.raises(UserError, match=said):
        ct2.save(tmp_path / "out", model)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_model_is_one_line(tmp_path: Path) -> None:
    ct2.save(tmp_path / "whole", random_model(), None, FRAMING)
    data = (tmp_path / "whole/model.bin").read_bytes()
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("config.json", "shared_vocabulary.json"):
        (broken / name).write_bytes((tmp_path / "whole" / name).read_bytes())
    for content, said in (
        (data[: len(data) // 2], "truncated"),
        (b"", "cannot be read"),
        (b"\x09\0\0\0" + data[4:], "format 9"),
        (data.replace(b"decoder/scale_embeddings", b"decoder/scale_embeddingz"), "decoder/scale_embeddingz"),
        (data.replace(b"TransformerSpec", b"WhisperBaseSpec"), "WhisperBaseSpec"),
        (data.replace(b"decoder/layer_0/ffn/linear_1/bias", b"decoder/layer_0/ffn/linear_2/bias"), "left over"),
    ):
        (broken / "model.bin").write_bytes(content)
        with pytest.raises(UserError, match=said) as caught:
            ct2.load(broken)
        assert "\n" not in str(caught.value)
    (broken / "model.bin").write_bytes(data)
    (broken / "shared_vocabulary.json").write_text('["a", "b"]')
    with pytest.raises(UserError, match="another model's"):
        ct2.load(broken)

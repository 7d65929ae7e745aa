"""RWKV beside `transformers` (any RWKV-4, read and written) and rwkv.cpp (its files and logits); what is damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer as gf
from glassformer.cli.main import main
from glassformer.errors import UserError
from glassformer.interop import hf, rwkv_cpp
from tests.parity.helpers import VOCAB, in_and_out
from tests.randomised import ids, randomise

PROMPT = b'"in'
"""What rwkv.cpp's tests read before they compare the last logits (tests/logit_difference_validator.inc)."""
FILES = ["4v0-660K", "5v1-730K", "5v2-730K", "7v0-834K"]


@st.composite
def theirs(draw: st.DrawFn) -> Any:
    config = transformers.RwkvConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        attention_hidden_size=draw(st.sampled_from([None, 8])),  # theirs runs no other
        intermediate_size=draw(st.sampled_from([None, 5])),
        num_hidden_layers=draw(st.integers(2, 4)),  # theirs divides by one less
        layer_norm_epsilon=draw(st.sampled_from([1e-5, 1e-2])),
        rescale_every=draw(st.sampled_from([0, 0, 2])),
        tie_word_embeddings=draw(st.booleans()),
    )
    kind = draw(st.sampled_from([transformers.RwkvForCausalLM, transformers.RwkvModel]))
    return randomise(kind(config), draw(st.integers(0, 10**6)))


@torch.no_grad()
def same(ours: Any, model: Any, seed: int) -> None:
    tokens = ids(VOCAB, 2, 13, seed=seed)
    # Halving hidden states in the middle moves the norms' ε: they are compared as they were trained, without.
    every, model.config.rescale_every = model.config.rescale_every, 0
    out = model.train(False)(input_ids=tokens)
    model.config.rescale_every = every
    expected = out.logits if "logits" in out else out.last_hidden_state
    torch.testing.assert_close(ours(tokens), expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=20)
@given(theirs(), st.integers(0, 10**6))
def test_any_rwkv4_of_theirs_comes_in_and_goes_out_with_equal_logits(
    tmp_path_factory: pytest.TempPathFactory, model: Any, seed: int
) -> None:
    again = in_and_out(tmp_path_factory.mktemp("theirs"), model, seed, same)
    for (name, one), other in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


@torch.no_grad()
def test_their_halving_of_hidden_states_changes_nothing_that_we_see(tmp_path: Path) -> None:
    config = transformers.RwkvConfig(
        vocab_size=VOCAB, hidden_size=8, num_hidden_layers=5, rescale_every=2, layer_norm_epsilon=1e-9
    )
    model = randomise(transformers.RwkvForCausalLM(config), 5).eval()
    model.save_pretrained(tmp_path / "in")
    tokens = ids(VOCAB, 2, 13)
    # The norms undo it but for ε, which is 1e-5 in their last one whatever the config says.
    torch.testing.assert_close(gf.load(tmp_path / "in").model(tokens), model(tokens).logits, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_the_golden_logits_are_reproduced(shared: Path) -> None:
    folder = shared / "data/checkpoints/hf-tiny-random/rwkv4"
    told = json.loads((folder / "golden.json").read_text())
    logits = gf.load(folder).model(torch.tensor(told["inputs"]["input_ids"]))
    torch.testing.assert_close(logits, torch.tensor(told["logits"]), rtol=0, atol=told["tolerance"])


def tiny(shared: Path, name: str) -> Path:
    return shared / f"data/checkpoints/rwkv-tiny/tiny-rwkv-{name}-FP32.bin"


@pytest.mark.parametrize("name", FILES)
@torch.no_grad()
def test_the_logits_of_rwkv_cpp_are_reproduced(shared: Path, name: str) -> None:
    expected = torch.from_numpy(np.fromfile(tiny(shared, name).parent / f"expected-logits-{name}.bin", np.float32))
    lm = gf.load(tiny(shared, name))
    torch.testing.assert_close(lm.model(torch.tensor([list(PROMPT)]))[0, -1], expected, rtol=0, atol=1e-5)
    state = lm.model.start(torch.tensor([list(PROMPT[:1])]))
    for byte in PROMPT[1:]:
        logits = lm.model.step(torch.tensor([[byte]]), state)
    torch.testing.assert_close(logits[0], expected, rtol=0, atol=1e-5)


def test_bytes_are_the_pieces_and_texts_go_on(shared: Path) -> None:
    lm = gf.load(tiny(shared, "5v2-730K"))
    text = "a é\n中\x00 b"
    assert lm.tokenizer.encode(text) == list(text.encode())
    assert lm.tokenizer.decode(list(text.encode())) == text
    whole = lm.generate("The ", max_new_tokens=30)
    assert len(whole.encode()) == 30 and whole.replace(" ", "").isalpha()
    assert "".join(lm.stream("The ", max_new_tokens=30)) == whole
    assert lm.generate(["The ", "A large number of"], max_new_tokens=30)[0] == whole


def test_a_file_is_converted_and_compared(shared: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["convert", str(tiny(shared, "7v0-834K")), str(tmp_path / "m"), "--to", "glassformer"]) == 0
    told = capsys.readouterr()
    assert told.out == "" and "differ by at most 0" in told.err
    source, result = gf.load(tiny(shared, "7v0-834K")), gf.load(tmp_path / "m")
    assert result.generate("ab", max_new_tokens=9) == source.generate("ab", max_new_tokens=9)


def write(path: Path, tensors: dict[str, tuple[int, Any]], header: tuple[int, ...] = (101, 8, 4, 1, 0)) -> Path:
    """A file in rwkv.cpp's form, of arrays and the numbers of their types."""
    data = b"fmgg" + struct.pack("<5i", *header)
    for name, (kind, array) in tensors.items():
        data += struct.pack(f"<{3 + array.ndim}i", array.ndim, len(name), kind, *reversed(array.shape))
        data += name.encode() + array.tobytes()
    path.write_bytes(data)
    return path


@torch.no_grad()
def test_half_precision_is_read_and_lies_in_no_directory_alone_only(shared: Path, tmp_path: Path) -> None:
    whole = rwkv_cpp.File(tiny(shared, "4v0-660K"))
    halves = {name: (1, each.half().numpy()) if each.dim() == 2 else (0, each.numpy()) for name, each in whole.items()}
    write(tmp_path / "m.bin", halves, (100, 256, 128, 4, 1))
    half, full = gf.load(tmp_path), gf.load(tiny(shared, "4v0-660K"))
    tokens = torch.tensor([list(PROMPT)])
    torch.testing.assert_close(half.model(tokens), full.model(tokens), rtol=1e-2, atol=1e-2)
    assert not torch.equal(half.model(tokens), full.model(tokens))


def test_what_is_damaged_or_unknown_is_told_in_one_line(shared: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.bin"
    whole = tiny(shared, "7v0-834K").read_bytes()

    def says(match: str) -> None:
        with pytest.raises(UserError, match=match) as caught:
            gf.load(file)
        assert "\n" not in str(caught.value) and str(file) in str(caught.value)

    for length in (4, 20, 30, 60, 5000, len(whole) - 1):
        file.write_bytes(whole[:length])
        says("truncated")
    file.write_bytes(whole[:4] + struct.pack("<i", 102) + whole[8:])
    says("version 102 is unknown; known are 100 and 101")
    file.write_bytes(whole[:24] + struct.pack("<i", 77) + whole[28:])
    says("damaged at byte 24")
    for place, number in ((8, 2**30), (12, 65), (12, -4), (16, 2**30), (16, 0)):
        file.write_bytes(whole[:place] + struct.pack("<i", number) + whole[place + 4 :])
        says(f"damaged: its header tells of .*{number}.*, its tensors do not")
    write(file, {"emb.weight": (2, np.zeros((8, 4), np.uint8))})
    says("emb.weight is of data type 2, which is unknown; known are FP32 and FP16")
    write(file, {"emb.weight": (0, np.zeros((8, 4), np.float32))})
    says("has no blocks.0.ffn.key.weight, so it is no RWKV-4, 5 or 7")
    write(file, {"blocks.0.att.time_maa_x": (0, np.zeros(4, np.float32))})
    says("RWKV-6 cannot be represented")
    tensors = {name: (0, each.numpy()) for name, each in rwkv_cpp.File(tiny(shared, "5v2-730K")).items()}
    del tensors["blocks.3.att.gate.weight"]
    write(file, tensors, (101, 256, 64, 12, 0))
    says(r"1 missing \(blocks\.3\.att\.gate\.weight\)")


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("rwkv4-169m", 169_342_464),  # released checkpoints; likewise the next three
        ("rwkv4-430m", 430_397_440),
        ("rwkv4-1.5b", 1_515_106_304),
        ("rwkv4-14b", 14_148_597_760),
        ("rwkv7-0.1b", 191_034_624),  # RWKV-7's paper, its table of released models
        ("rwkv7-0.4b", 450_767_872),
        ("rwkv7-1.5b", 1_527_404_544),
        ("rwkv7-2.9b", 2_947_735_040),
    ],
)
def test_a_preset_has_as_many_parameters_as_was_published(preset: str, parameters: int) -> None:
    assert gf.build(preset, device="meta").num_parameters() == parameters


@pytest.mark.parametrize(("size", "d_model", "layers"), [("0.4b", 1024, 24), ("1.5b", 2048, 24), ("3b", 2560, 32)])
def test_an_eagle_has_as_many_parameters_as_its_papers_formula(size: str, d_model: int, layers: int) -> None:
    d, v = d_model, 65536
    expected = 13 * d * d * layers + 14 * d * layers + 4 * d + 2 * d * v
    assert gf.build(f"rwkv5-{size}", device="meta").num_parameters() == expected


@pytest.mark.parametrize("preset", ["rwkv5-tiny", "rwkv7-tiny", "lstm-tiny"])
def test_what_has_no_form_of_theirs_is_refused_by_name(tmp_path: Path, preset: str) -> None:
    with pytest.raises(UserError, match="this model has no Hugging Face form") as caught:
        hf.save(tmp_path / "out", gf.build(preset))
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()

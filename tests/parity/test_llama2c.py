"""llama2.c: its stories word for word, its logits, and files of both versions with random weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch

import glassformer as gf
from glassformer.errors import UserError
from glassformer.families.llama import rules
from glassformer.interop import llama2c
from glassformer.weights import export_weights
from tests.randomised import ids, randomise

FOLDER = "data/checkpoints/llama2c-stories260K"
NUMBERS = dict(d_model=16, n_heads=4, n_kv_heads=2, d_ff=24, n_layers=2, vocab_size=40, max_len=32, eps=1e-5)


def test_the_stories_are_told_word_for_word(shared: Path) -> None:
    told = json.loads((shared / FOLDER / "golden.json").read_text())
    story = gf.load(shared / FOLDER / "stories260K.bin")
    assert [1, *story.tokenizer.encode(told["text"].lstrip())] == told["greedy_token_ids"]
    documented = (shared / FOLDER / "stories260K.md").read_text().split("-t 0.0\n")[1].split("\n```")[0]
    assert story.generate("", max_new_tokens=256) == told["text"].lstrip() == documented
    assert "".join(story.stream("", max_new_tokens=256)) == documented
    logits = story.model(torch.tensor([[1]]))[0, 0]
    torch.testing.assert_close(logits, torch.tensor(told["logits_after_bos"]), rtol=0, atol=1e-4)


def test_a_directory_stands_for_the_file_in_it(shared: Path) -> None:
    assert gf.load(shared / FOLDER).generate("Once", max_new_tokens=5) == " upon a time, there"


def test_its_tokenizer_is_sentencepieces(shared: Path) -> None:
    """Merging by score, byte fallback and the dummy space, beside a reading of run.c's `encode`."""
    file = shared / FOLDER / "tok512.bin"
    pieces = llama2c._pieces(file)
    vocab = {piece: index for index, (piece, _) in enumerate(pieces)}

    def encode(text: str) -> list[int]:
        found = [vocab[b" "]] if text else []
        for char in text:
            raw = char.encode()
            found += [vocab[raw]] if raw in vocab else [byte + 3 for byte in raw]
        while True:
            pairs = [pieces[a][0] + pieces[b][0] for a, b in zip(found, found[1:], strict=False)]
            best = max(
                (at for at, p in enumerate(pairs) if p in vocab),
                key=lambda at: pieces[vocab[pairs[at]]][1],
                default=None,
            )
            if best is None:
                return found
            found[best : best + 2] = [vocab[pairs[best]]]

    tokenizer = gf.load(shared / FOLDER).tokenizer
    for text in ("Once upon a time", "  two  spaces ", "龙 dragon 𠮷", 'Lily\'s "mom"', "x", "a\nb", "<s> no start"):
        assert tokenizer.encode(text) == encode(text), text
        assert tokenizer.decode(tokenizer.encode(text)) == text


def written(file: Path, model: Any, version: int) -> None:
    """A file as export.py writes it, by its own order, from Meta's names of a model whose pairs are interleaved."""
    state, config = model.state_dict(), model.config
    mixer, layers = config.decoder.blocks[0].mixer, range(len(config.decoder.blocks))
    numbers = (16, 24, len(layers), mixer.n_heads, mixer.n_kv_heads or mixer.n_heads)

    def each(name: str) -> list[torch.Tensor]:
        return [state[f"decoder.layers.{index}.{name}.weight"] for index in layers]

    norms = [each("mixer_residual.norm"), each("ffn_residual.norm"), [state["decoder.final_norm.weight"]]]
    attention = [each(f"mixer.{name}") for name in ("query", "key", "value", "out")]
    ffn = [each(f"ffn.{name}") for name in ("gate", "down", "up")]
    embed, head = [state["embed.weight"]], [state["head.weight"]] if not config.tie else []
    if version:
        first = struct.pack("<4s8iB", b"24ka", 1, *numbers, 40, 32, config.tie).ljust(256, b"\0")
        groups = [*norms, embed, *attention, *ffn, head]
    else:
        first = struct.pack("<7i", *numbers, 40 if config.tie else -40, 32)
        tables = [torch.zeros(32, 2), torch.zeros(32, 2)]
        groups = [embed, norms[0], *attention, norms[1], *ffn, norms[2], tables, head]
    data = b"".join(t.contiguous().numpy().tobytes() for group in groups for t in group)
    file.write_bytes(first + data)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("tie", [True, False])
@torch.no_grad()
def test_both_versions_are_read(tmp_path: Path, version: int, tie: bool) -> None:
    rotary = dict(layout="interleaved", max_len=32)
    model = randomise(gf.build("llama-tiny", **NUMBERS, rotary=rotary, tie=tie)).eval()
    written(tmp_path / "m.bin", model, version)
    loaded = gf.load(tmp_path / "m.bin")
    assert loaded.model.config == model.config and loaded.tokenizer is None
    assert torch.equal(loaded.model(ids(40, 2, 9)), model(ids(40, 2, 9)))


@pytest.mark.parametrize("to", ["glassformer", "hf", "ct2"])
def test_the_stories_are_told_in_every_format(tmp_path: Path, shared: Path, to: str) -> None:
    source = shared / FOLDER / "stories260K.bin"
    told = gf.convert(source, tmp_path / to, to)
    assert told.difference is not None and told.difference < 1e-4 and "a llama2c source cannot be run here" in str(told)
    first, again = gf.load(source), gf.load(tmp_path / to)
    asked = dict(max_new_tokens=60, temperature=0)
    assert again.generate("One day, Lily", **asked) == first.generate("One day, Lily", **asked)
    if to == "ct2":
        story = ctranslate2.Generator(str(tmp_path / to), compute_type="float32", intra_threads=1)
        prompt = first.tokenizer.tokens(first._ids("One day, Lily", None, None))
        (wrote,) = story.generate_batch([prompt], max_length=60, include_prompt_in_result=False)
        text = first.tokenizer.decode(first._ids("One day, Lily", None, None) + wrote.sequences_ids[0])
        assert text == "One day, Lily" + first.generate("One day, Lily", **asked)


@torch.no_grad()
def test_interleaved_pairs_leave_as_halves_with_equal_logits(tmp_path: Path) -> None:
    from glassformer.interop import hf

    for d_head in (None, 6):
        numbers = dict(NUMBERS, d_head=d_head, qkv_bias=True, out_bias=True, rotary=dict(layout="interleaved"))
        model = randomise(gf.build("llama-tiny", **numbers)).eval()
        assert not torch.equal(
            export_weights(rules(model.config), model.state_dict())["model.layers.0.self_attn.q_proj.weight"],
            model.state_dict()["decoder.layers.0.mixer.query.weight"],
        )
        hf.save(tmp_path / f"hf{d_head}", model)
        back = gf.load(tmp_path / f"hf{d_head}").model
        torch.testing.assert_close(back(ids(40, 2, 9)), model(ids(40, 2, 9)), rtol=1e-4, atol=1e-4)


def test_what_is_wrong_is_told_in_one_line(tmp_path: Path, shared: Path) -> None:
    model = randomise(gf.build("llama-tiny", **NUMBERS, rotary=dict(layout="interleaved"), tie=True)).eval()
    file = tmp_path / "m.bin"
    written(file, model, 0)
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    with pytest.raises(UserError, match=f"has {len(whole) - 4} bytes, but its first numbers ask for {len(whole)}"):
        gf.load(file)
    file.write_bytes(whole)
    (tmp_path / "tok512.bin").write_bytes((shared / FOLDER / "tok512.bin").read_bytes())
    with pytest.raises(UserError, match=r"no tokenizer of its 40 pieces beside it \(tok512.bin has 512\)"):
        gf.load(file)
    written(file, model, 1)
    file.write_bytes(file.read_bytes()[:4] + struct.pack("<i", 2) + file.read_bytes()[8:])
    with pytest.raises(UserError, match="version 2, which is quantised"):
        gf.load(file)
    (tmp_path / "other.bin").write_bytes(b"\xff" * 500)
    with pytest.raises(UserError, match="a file, but a model is"):
        gf.load(tmp_path / "other.bin")

"""Tokenizers of bare lists of pieces, beside patterns run by another library."""

from __future__ import annotations

import random
import unicodedata

import pytest
import regex
import transformers

from glassformer.errors import UserError
from glassformer.text.pieces import CUTS, byte_level_bpe, scored_bpe

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEXTS = ["I'll pay $1234.50 in 2024!\n\n  Don't", "我有12345个苹果\r\n x", "a\t b   c'S e\u0301", "  ", "½ ²3 ٣٤"]


def byte_letters() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


@pytest.mark.parametrize("name", CUTS)
def test_a_text_is_cut_as_the_pattern_says(name: str) -> None:
    tokenizer = byte_level_bpe([*byte_letters(), "<|endoftext|>"], [], [256], name)
    for text in TEXTS:
        composed = unicodedata.normalize("NFC", text) if CUTS[name].compose else text
        runs = [composed]
        for pattern in filter(None, [CUTS[name].pattern, "" if CUTS[name].whole else GPT2]):
            between = [regex.split(f"({pattern})", run, flags=regex.V0) for run in runs]
            runs = [part for parts in between for part in parts if part]
        cut = tokenizer.backend.pre_tokenizer.pre_tokenize_str(composed)
        assert [composed[low:high] for _, (low, high) in cut] == runs, name
        assert tokenizer.decode(tokenizer.encode(text)) == composed


def test_merges_are_those_of_transformers() -> None:
    rng = random.Random(5)
    pieces, merges = byte_letters(), []
    while len(pieces) < 330:
        left, right = rng.sample([p for p in pieces if p.isascii() or p == "Ġ"], 2)
        if left + right not in pieces and len(left + right) < 6:
            pieces.append(left + right)
            merges.append(f"{left} {right}")
    tokenizer = byte_level_bpe([*pieces, "<|endoftext|>"], merges, [len(pieces)], "gpt-2")
    theirs = transformers.GPT2Tokenizer(
        vocab={piece: index for index, piece in enumerate([*pieces, "<|endoftext|>"])},
        merges=[tuple(merge.split()) for merge in merges],
    )
    for text in [*TEXTS, *("".join(rng.choices(pieces, k=30)).replace("Ġ", " ") for _ in range(50))]:
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_special_pieces_in_a_text_are_plain_text() -> None:
    tokenizer = scored_bpe(["<unk>", "<s>", "<", "s", ">", "▁", "▁<"], [0.0] * 7, [0, 1])
    assert tokenizer.tokens("<s>") == ["▁<", "s", ">"]
    assert tokenizer.decode(tokenizer.encode("<s>")) == "<s>"
    bare = scored_bpe(["<unk>", "a", "b", "ab"], [0, 0, 0, 1], [0], prefix=False)
    assert bare.tokens("abz") == ["ab", "<unk>"]


def test_a_piece_that_stands_twice_is_refused() -> None:
    with pytest.raises(UserError, match="holds 'a' twice"):
        scored_bpe(["a", "b", "a"], [0, 0, 0], [])

"""Tokenizers made of bare lists of pieces, as GGUF and llama2.c files hold them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from glassformer.errors import UserError
from glassformer.text.recipe import SPACE
from glassformer.text.tokenizer import Tokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"


class Cut(NamedTuple):
    """How a text is cut before byte-level BPE.

    Attributes:
        pattern: What is cut out, or nothing.
        whole: The pattern cuts all of a text; GPT-2's own cuts on behind another one.
        compose: Characters are composed (NFC) before.
        words: A run that is a piece is taken whole, whatever the merges say.
    """

    pattern: str = ""
    whole: bool = False
    compose: bool = False
    words: bool = False


CUTS = {
    "gpt-2": Cut(),
    "smollm": Cut(r"\p{N}"),
    "llama-bpe": Cut(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}", whole=True, words=True),
    "qwen2": Cut(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}", whole=True, compose=True),
}
"""By llama.cpp's names."""


def scored_bpe(
    pieces: Sequence[str], scores: Sequence[float], special: Collection[int], *, prefix: bool = True
) -> Tokenizer:
    """SentencePiece's BPE: of two neighbours that make a piece, those of the best score are joined first.

    Args:
        pieces: by id, spaces as `▁`, bytes as `<0x00>`; the first special one that is called `<unk>` is the unknown.
        scores: of each piece; the higher, the earlier.
        special: ids that are no text.
        prefix: put a space before a text that is read, and take one from what is written.
    """
    vocab = _vocabulary(pieces)
    ordered = sorted(
        (index for index in range(len(pieces)) if index not in special and not _is_byte(pieces[index])),
        key=lambda index: -scores[index],
    )
    merges = [
        (piece[:at], piece[at:])
        for piece in (pieces[index] for index in ordered)
        for at in range(1, len(piece))
        if piece[:at] in vocab and piece[at:] in vocab
    ]
    unknown = "<unk>" if "<unk>" in vocab else None
    bytes_too = all(f"<0x{byte:02X}>" in vocab for byte in range(256))
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=bytes_too))
    lead, strip = ([normalizers.Prepend(SPACE)], [decoders.Strip(" ", 1, 0)]) if prefix else ([], [])
    backend.normalizer = normalizers.Sequence([*lead, normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return _with_special(backend, pieces, special)


def byte_level_bpe(
    pieces: Sequence[str], merges: Sequence[str], special: Collection[int], split: str, *, prefix: bool = False
) -> Tokenizer:
    """GPT-2's BPE over bytes.

    Args:
        pieces: by id, bytes as GPT-2's printable letters.
        merges: two pieces each, with a space between them, first the first.
        special: ids that are no text.
        split: how a text is cut before, a name in `CUTS`.
        prefix: put a space before a text that is read.

    Raises:
        UserError: another way to cut.
    """
    if split not in CUTS:
        raise UserError(f"pre-tokenizer {split!r} is unknown; known are {', '.join(CUTS)}")
    cut = CUTS[split]
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = tokenizers.Tokenizer(models.BPE(_vocabulary(pieces), pairs, ignore_merges=cut.words))
    first = [pre_tokenizers.Split(tokenizers.Regex(cut.pattern), "isolated")] if cut.pattern else []
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not cut.whole)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, level])
    if cut.compose:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return _with_special(backend, pieces, special)


def _with_special(backend: tokenizers.Tokenizer, pieces: Sequence[str], special: Collection[int]) -> Tokenizer:
    backend.add_special_tokens([tokenizers.AddedToken(pieces[index], normalized=False) for index in sorted(special)])
    return Tokenizer(backend)


def _vocabulary(pieces: Sequence[str]) -> dict[str, int]:
    vocab = {piece: index for index, piece in enumerate(pieces)}
    if len(vocab) < len(pieces):
        twice = next(piece for index, piece in enumerate(pieces) if vocab[piece] != index)
        raise UserError(f"the vocabulary holds {twice!r} twice")
    return vocab


def _is_byte(piece: str) -> bool:
    return re.fullmatch(r"<0x[0-9A-F]{2}>", piece) is not None

"""How a text becomes pieces, step by step, from the tokenizer's own table of merges, pieces or scores."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import tokenizers

from glassformer.explore.problem import Problem, TooLong
from glassformer.explore.tokens import Tokens

MOST_CHARACTERS = 2000
_Steps = list[dict[str, Any]]


def segment(tokens: Tokens, text: str) -> dict[str, Any]:
    """The words of a text and how each came apart or together, as `Segmentation`.

    Raises:
        Problem: There is no text.
        TooLong: It is longer than is told at once.
    """
    if not text.strip():
        raise Problem("an empty text: type a word")
    if len(text) > MOST_CHARACTERS:
        raise TooLong(f"{len(text):,} characters, and at most {MOST_CHARACTERS:,} are taken apart; shorten the text")
    tokenizer = tokens.tokenizer
    told = [tokens.one(index, span) for index, span in tokens.read(text)]
    backend = tokenizer.backend
    if not isinstance(backend, tokenizers.Tokenizer):
        return _by_library(tokens, text, told)
    normalized = backend.normalizer.normalize_str(text) if backend.normalizer else text
    cut = backend.pre_tokenizer.pre_tokenize_str(normalized) if backend.pre_tokenizer else [(normalized, None)]
    model = _model(tokens)
    kind = {"BPE": "bpe", "WordPiece": "wordpiece", "Unigram": "unigram"}.get(model["type"], "words")
    follow = {"bpe": _bpe, "wordpiece": _wordpiece, "unigram": _unigram, "words": _whole}[kind]
    words = [{"word": word, "steps": follow(model, word)} for word, _ in cut]
    return {"kind": kind, "normalized": normalized, "words": words, "tokens": told}


def _model(tokens: Tokens) -> dict[str, Any]:
    """The table of a tokenizer, read once: ranks of merges, or scores of pieces."""
    held: dict[str, Any] | None = getattr(tokens, "table", None)
    if held is None:
        held = dict(json.loads(tokens.tokenizer.backend.to_str())["model"])
        if held["type"] == "BPE":
            pairs = (tuple(m.split(" ", 1)) if isinstance(m, str) else tuple(m) for m in held["merges"])
            held["ranks"] = {pair: rank for rank, pair in enumerate(pairs)}
        if held["type"] == "Unigram":
            held["scores"] = {piece: score for piece, score in held["vocab"]}
        tokens.table = held  # type: ignore[attr-defined]
    return held


def _bpe(model: dict[str, Any], word: str) -> _Steps:
    """Of all neighbours that have a merge, those of the lowest rank are joined, the leftmost first (Sennrich 2016)."""
    vocab, ranks = model["vocab"], model["ranks"]
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    if model.get("ignore_merges") and word in vocab:
        return [{"pieces": [word], "note": "a piece of its own, taken whole"}]
    pieces: list[str] = []
    note: str | None = None
    for place, character in enumerate(word):
        symbol = (prefix if place else "") + character + (suffix if place == len(word) - 1 else "")
        if symbol in vocab:
            pieces.append(symbol)
            continue
        spelled = [f"<0x{byte:02X}>" for byte in symbol.encode()]
        if model.get("byte_fallback") and all(byte in vocab for byte in spelled):
            pieces += spelled
            note = f"{character} has no piece: its bytes in UTF-8"
        elif model.get("unk_token"):
            if not (pieces and pieces[-1] == model["unk_token"] and model.get("fuse_unk")):
                pieces.append(model["unk_token"])
            note = f"{character} has no piece"
    steps: _Steps = [{"pieces": list(pieces), **({"note": note} if note else {})}]
    while True:
        found = [(ranks[pair], at) for at in range(len(pieces) - 1) if (pair := (pieces[at], pieces[at + 1])) in ranks]
        if not found:
            return steps
        rank, at = min(found)
        pair = (pieces[at], pieces[at + 1])
        pieces[at : at + 2] = [pair[0] + pair[1].removeprefix(prefix)]
        steps.append({"pieces": list(pieces), "merged": list(pair), "rank": rank})


def _wordpiece(model: dict[str, Any], word: str) -> _Steps:
    """From the left, the longest piece that fits; a word that comes to no end is unknown (Schuster & Nakajima 2012)."""
    vocab, prefix = model["vocab"], model["continuing_subword_prefix"]
    unknown, at = model["unk_token"], 0
    steps: _Steps = []
    pieces: list[str] = []
    if len(word) > model["max_input_chars_per_word"]:
        return [{"pieces": [unknown], "note": "longer than any word that is looked up"}]
    while at < len(word):
        mark = prefix if at else ""
        end = next((end for end in range(len(word), at, -1) if mark + word[at:end] in vocab), None)
        if end is None:
            return [
                *steps,
                {"pieces": [unknown], "note": f"no piece begins with {mark}{word[at]}: the whole word is lost"},
            ]
        pieces.append(mark + word[at:end])
        rest = [word[end:]] if end < len(word) else []
        steps.append({"pieces": [*pieces, *rest], "note": f"longest match: {pieces[-1]}"})
        at = end
    return steps or [{"pieces": []}]


def _unigram(model: dict[str, Any], word: str) -> _Steps:
    """The segmentation of the greatest sum of scores (Kudo 2018), found from left to right (Viterbi)."""
    scores = model["scores"]
    unknown = model["vocab"][model["unk_id"]][0] if model.get("unk_id") is not None else None
    penalty = min(scores.values()) - 10.0
    longest = max(map(len, scores))
    best: list[tuple[float, int]] = [(0.0, 0)] + [(-math.inf, 0)] * len(word)
    for end in range(1, len(word) + 1):
        for begin in range(max(0, end - longest), end):
            piece = word[begin:end]
            score = scores.get(piece)
            if score is None and end == begin + 1:
                score = penalty
            if score is not None and best[begin][0] + score > best[end][0]:
                best[end] = best[begin][0] + score, begin
    cuts, end = [], len(word)
    while end:
        cuts.append((best[end][1], end))
        end = best[end][1]
    steps: _Steps = [{"pieces": list(word), "note": "every character by itself"}]
    pieces: list[str] = []
    total = 0.0
    for begin, end in reversed(cuts):
        piece = word[begin:end]
        if piece in scores:
            pieces.append(piece)
            total += scores[piece]
            note = f"{piece}: {scores[piece]:.2f}, in all {total:.2f}"
        else:
            spelled = [f"<0x{byte:02X}>" for byte in piece.encode()]
            if model.get("byte_fallback") and all(byte in model.get("bytes", scores) for byte in spelled):
                pieces += spelled
            elif not (pieces and pieces[-1] == unknown):
                pieces.append(str(unknown))
            note = f"{piece} has no piece"
        steps.append({"pieces": [*pieces, *([word[end:]] if end < len(word) else [])], "note": note})
    return steps


def _whole(model: dict[str, Any], word: str) -> _Steps:
    known = word in model["vocab"]
    if known:
        return [{"pieces": [word], "note": "a word of the vocabulary"}]
    return [{"pieces": [model.get("unk_token") or word], "note": "no word of the vocabulary"}]


def _by_library(tokens: Tokens, text: str, told: list[dict[str, Any]]) -> dict[str, Any]:
    """A SentencePiece model: its own scores lead the way, as long as that ends where the library does."""
    normalized = str(tokens.tokenizer.backend.Normalize(text))
    pieces = [token["piece"] for token in told]
    kind = tokens.tokenizer.kind if tokens.tokenizer.kind in ("bpe", "unigram") else "words"
    words: list[dict[str, Any]] = []
    if kind != "words":
        table, follow = _scored(tokens), _unigram if kind == "unigram" else _scored_bpe
        for cut in (re.findall(r"▁[^▁]*|^[^▁]+", normalized), [normalized]):
            words = [{"word": word, "steps": follow(table, word)} for word in cut]
            if [piece for word in words for piece in word["steps"][-1]["pieces"]] == pieces:
                return {"kind": kind, "normalized": normalized, "words": words, "tokens": told}
    words = [{"word": normalized, "steps": [{"pieces": list(normalized)}, {"pieces": pieces}]}]
    return {"kind": kind, "normalized": normalized, "words": words, "tokens": told}


def _scored(tokens: Tokens) -> dict[str, Any]:
    """The table of a SentencePiece model, in the form that `_unigram` reads."""
    held: dict[str, Any] | None = getattr(tokens, "table", None)
    if held is None:
        library = tokens.tokenizer.backend
        vocab = [(library.IdToPiece(index), library.GetScore(index)) for index in range(library.GetPieceSize())]
        plain = [
            index
            for index in range(len(vocab))
            if not (library.IsControl(index) or library.IsUnknown(index) or library.IsByte(index))
        ]
        scores = dict(vocab[index] for index in plain)
        whole = {vocab[index][0]: 0.0 for index in range(len(vocab)) if library.IsByte(index)}
        unknown = library.unk_id()
        held = {"vocab": vocab, "scores": scores, "unk_id": unknown, "bytes": whole, "byte_fallback": bool(whole)}
        tokens.table = held  # type: ignore[attr-defined]
    return held


def _scored_bpe(model: dict[str, Any], word: str) -> _Steps:
    """Of all neighbours that make a piece, those of the best score are joined, the leftmost first."""
    scores, bytes_ = model["scores"], model["bytes"]
    pieces = list(word)
    steps: _Steps = [{"pieces": list(pieces)}]
    while True:
        joined = [pieces[at] + pieces[at + 1] for at in range(len(pieces) - 1)]
        found = [(-scores[piece], at) for at, piece in enumerate(joined) if piece in scores]
        if not found:
            break
        score, at = min(found)
        merged = pieces[at : at + 2]
        pieces[at : at + 2] = [joined[at]]
        steps.append({"pieces": list(pieces), "merged": merged, "note": f"score {-score:.0f}"})
    told: list[str] = []
    for piece in pieces:
        spelled = [f"<0x{byte:02X}>" for byte in piece.encode()]
        if piece in scores:
            told.append(piece)
        elif bytes_:
            told += spelled
        elif not told or told[-1] != model["vocab"][model["unk_id"]][0]:
            told.append(model["vocab"][model["unk_id"]][0])
    return steps if told == pieces else [*steps, {"pieces": told, "note": "what has no piece"}]

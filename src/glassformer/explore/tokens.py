"""Tokens as a reader sees them: piece, text, and which characters they came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import tokenizers

from glassformer.text.recipe import CONTINUATION, SPACE
from glassformer.text.words import piece_spans

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
Span = tuple[int, int] | None
_MASKS = ("[MASK]", "<mask>", "<|mask|>")


class Tokens:
    """Writes ids of one tokenizer as the page reads them."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, dict[str, Any]] = {}

    @cached_property
    def special_ids(self) -> set[int]:
        """Ids that are no text."""
        tokenizer = self.tokenizer
        special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, *tokenizer.language_ids.values()}
        if isinstance(tokenizer.backend, tokenizers.Tokenizer):
            added = tokenizer.backend.get_added_tokens_decoder().items()
            special |= {index for index, token in added if token.special and index != tokenizer.unk_id}
        return special - {None}

    @cached_property
    def mask(self) -> tuple[str, int] | None:
        """The token that stands for what a masked model is to guess, and its id."""
        for name in _MASKS:
            if (index := self.tokenizer.token_to_id(name)) is not None:
                return name, index
        return None

    def one(self, index: int, span: Span = None) -> dict[str, Any]:
        """A token that came from these characters, or from none."""
        if index not in self._known:
            try:
                piece = self.tokenizer.id_to_token(index)
            except Exception:  # a padded vocabulary has rows without a piece
                piece = f"#{index}"
            special = index in self.special_ids
            self._known[index] = {"id": index, "piece": piece, "text": self._text(index, piece), "special": special}
        return {**self._known[index], "span": list(span) if span else None}

    def _text(self, index: int, piece: str) -> str:
        """What a reader sees of a piece by itself, the blank before it, too."""
        if index in self.special_ids or is_byte(piece) or piece.startswith("#") and piece[1:] == str(index):
            return piece
        if SPACE in piece:
            return piece.replace(SPACE, " ")
        if piece.startswith(CONTINUATION) and piece != CONTINUATION:
            return piece.removeprefix(CONTINUATION)
        told = self.tokenizer.decode([index])
        return told if told and "\ufffd" not in told else piece

    def read(self, text: str) -> list[tuple[int, Span]]:
        """The pieces of a text with the characters that each came from; a mask token in it is that token."""
        if self.mask is None or self.mask[0] not in text:
            return self._pieces(text, 0)
        name, index = self.mask
        found: list[tuple[int, Span]] = []
        at = 0
        for part in re.split(f"({re.escape(name)})", text):
            if part == name:
                found.append((index, (at, at + len(part))))
            elif part:
                found += self._pieces(part, at)
            at += len(part)
        return found

    def _pieces(self, text: str, at: int) -> list[tuple[int, Span]]:
        ids = self.tokenizer.encode(text)
        try:
            spans: Sequence[Span] = piece_spans(self.tokenizer, text)
        except Exception:  # a tokenizer that does not tell
            spans = []
        if len(spans) != len(ids):
            return [(index, None) for index in ids]
        return [(index, span and (span[0] + at, span[1] + at)) for index, span in zip(ids, spans, strict=True)]

    def written(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Tokens of a text that was written, with the characters of that text that each one brought."""
        tokens, before = [], 0
        for place, index in enumerate(ids):
            after = len(self.tokenizer.decode(ids[: place + 1]))
            span = None if index in self.special_ids else (min(before, after), after)
            tokens.append(self.one(index, span))
            before = after
        return tokens

    def candidates(self, logprobs_V: Any, count: int) -> list[dict[str, Any]]:
        """The likeliest tokens of a distribution."""
        best = logprobs_V.topk(min(count, logprobs_V.shape[-1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{"token": self.one(index), "logprob": finite(logprob)} for index, logprob in pairs]


def is_byte(piece: str) -> bool:
    """Whether a piece stands for one byte of a character that has none."""
    return _BYTE.fullmatch(piece) is not None


def finite(number: float) -> float:
    """What JSON can hold: an impossible token has a very small log-probability rather than none."""
    return max(number, -1e30)

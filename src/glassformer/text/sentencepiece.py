"""SentencePiece .model files (Kudo & Richardson 2018, arXiv:1808.06226), run by the library that defines them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece

from glassformer.errors import UserError
from glassformer.text.tokenizer import Tokenizer, language_of

FILE_NAME = "tokenizer.model"
# Field numbers of sentencepiece_model.proto.
_TRAINER_SPEC, _NORMALIZER_SPEC, _MODEL_TYPE, _NORMALIZER_NAME = 2, 3, 3, 1
_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer whose ids are by construction those of the `sentencepiece` library."""

    def __init__(self, proto: bytes) -> None:
        self._proto = proto
        self._processor = processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
        ids = (processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = (None if index < 0 else index for index in ids)
        size = processor.GetPieceSize()
        self.language_ids = {
            language: index for index in range(size) if (language := language_of(processor.IdToPiece(index)))
        }
        self._special = frozenset(i for i in range(size) if processor.IsControl(i) or processor.IsUnknown(i))

    @classmethod
    def read(cls, file: Path) -> SentencePieceTokenizer:
        """Reads a .model file.

        Raises:
            UserError: it is not a SentencePiece model.
        """
        try:
            return cls(file.read_bytes())
        except RuntimeError:
            raise UserError(f"{file}: not a SentencePiece model") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model as it was read, as tokenizer.model if `path` is a directory, atomically."""
        path = Path(path)
        file = path / FILE_NAME if path.is_dir() or not path.suffix else path
        if file.suffix == ".json":
            raise UserError(f"{file}: a SentencePiece tokenizer is saved as a .model file, not as .json")
        self._write(path, self._proto, FILE_NAME)

    _suffix = ".model"

    def __reduce__(self) -> tuple[Any, ...]:
        return SentencePieceTokenizer, (self._proto,), {"_target": self._target}

    def encode(self, text: str) -> list[int]:
        return list(self._processor.EncodeAsIds(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return str(
            self._processor.DecodeIds([index for index in map(self._checked, ids) if index not in self._special])
        )

    def token_to_id(self, token: str) -> int | None:
        index = self._processor.PieceToId(token)
        return index if self._processor.IdToPiece(index) == token else None

    def id_to_token(self, index: int) -> str:
        return str(self._processor.IdToPiece(self._checked(index)))

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.vocab_size:
            raise UserError(f"id {index} is outside the vocabulary of {self.vocab_size} pieces")
        return index

    def normalize(self, text: str) -> str:
        return str(self._processor.Normalize(text)).replace("▁", " ").removeprefix(" ")

    @property
    def backend(self) -> Any:
        return self._processor

    @property
    def vocab_size(self) -> int:
        return int(self._processor.GetPieceSize())

    @cached_property
    def kind(self) -> str:
        model_type = _field(_field(self._proto, _TRAINER_SPEC, b""), _MODEL_TYPE, 1)
        return _KINDS[model_type]

    @cached_property
    def normalizer(self) -> str:
        """The rule the model was trained with, such as `nmt_nfkc`."""
        return str(_field(_field(self._proto, _NORMALIZER_SPEC, b""), _NORMALIZER_NAME, b"").decode()) or "none"

    @cached_property
    def hash(self) -> str:
        return self._hash(self._proto)


def _field(message: bytes, number: int, default: Any) -> Any:
    """The last value of a field of a protocol-buffer message, whose reader the library does not bring along."""
    return next((value for field, value in reversed(list(_fields(message))) if field == number), default)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        value: int | bytes
        if wire == 0:
            value, at = _varint(message, at)
        else:
            length, at = {1: lambda a: (8, a), 5: lambda a: (4, a)}.get(wire, lambda a: _varint(message, a))(at)
            value, at = message[at : at + length], at + length
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at

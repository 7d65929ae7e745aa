"""Marian's tokenizers: a SentencePiece model for each side, whose pieces get their ids from a vocabulary."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.errors import UserError
from glassformer.text.sentencepiece import SentencePieceTokenizer
from glassformer.text.tokenizer import Tokenizer, write

FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")
# What a multilingual model's source begins with; SentencePiece would take it apart.
_LANGUAGE = re.compile(r">>[\w-]+<<")


class MarianTokenizer(Tokenizer):
    """One side's SentencePiece model, and the ids of its pieces; pieces without one are ``<unk>``.

    Args:
        proto: The SentencePiece model.
        vocab: Piece → id.
        where: The file, for errors.
    """

    def __init__(self, proto: bytes, vocab: dict[str, int], where: str = "vocab.json") -> None:
        self._proto, self._vocab = proto, vocab
        self._pieces = SentencePieceTokenizer(proto)
        self._tokens = {index: token for token, index in vocab.items()}
        if set(self._tokens) != set(range(len(vocab))) or "<unk>" not in vocab or "</s>" not in vocab:
            raise UserError(
                f"{where}: not Marian's vocabulary: its ids are not 0 … {len(vocab) - 1}, or <unk> is missing"
            )
        self.pad_id, self.bos_id = vocab.get("<pad>"), vocab.get("<s>")
        self.eos_id, self.unk_id = vocab["</s>"], vocab["<unk>"]
        self.language_ids = {}
        self._special = {self.pad_id, self.bos_id, self.eos_id, self.unk_id}

    @classmethod
    def read(cls, directory: Path) -> MarianTokenizer:
        """Reads ``source.spm``, ``target.spm`` and ``vocab.json`` (and ``target_vocab.json``, where sides differ).

        Raises:
            UserError: One of them is missing or damaged.
        """

        def side(model: str, vocab: str) -> MarianTokenizer:
            for name in (model, vocab):
                if not (directory / name).is_file():
                    raise UserError(f"{directory}: has no {name}, which Marian's tokenizer needs")
            file = directory / vocab
            try:
                table = {
                    str(piece): int(index) for piece, index in json.loads(file.read_text(encoding="utf-8")).items()
                }
                return cls((directory / model).read_bytes(), table, str(file))
            except (ValueError, AttributeError, TypeError) as error:
                raise UserError(f"{file}: not a vocabulary of pieces and ids ({error})") from None
            except RuntimeError:
                raise UserError(f"{directory / model}: not a SentencePiece model") from None

        own = (directory / "target_vocab.json").is_file()
        source, target = (
            side("source.spm", "vocab.json"),
            side("target.spm", "target_vocab.json" if own else "vocab.json"),
        )
        source.target = target
        return source

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the files of both sides as they were read."""
        path = Path(path)
        if path.suffix and not path.is_dir():
            raise UserError(f"{path}: Marian's tokenizer is saved as several files; name a directory")
        target = self.target
        assert isinstance(target, MarianTokenizer)
        write(path / "source.spm", self._proto)
        write(path / "target.spm", target._proto)
        write(path / "vocab.json", json.dumps(self._vocab, ensure_ascii=False, indent=1).encode())
        if target._vocab != self._vocab:
            write(path / "target_vocab.json", json.dumps(target._vocab, ensure_ascii=False, indent=1).encode())

    def __reduce__(self) -> tuple[Any, ...]:
        return MarianTokenizer, (self._proto, self._vocab), {"_target": self._target}

    def encode(self, text: str) -> list[int]:
        begun = _LANGUAGE.match(text)
        code = begun[0] if begun and begun[0] in self._vocab else ""
        ids = self._pieces.encode(text.removeprefix(code))
        assert self.unk_id is not None
        found = [self._vocab.get(self._pieces.id_to_token(index), self.unk_id) for index in ids]
        return [self._vocab[code], *found] if code else found

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [self.id_to_token(index) for index in ids if index not in self._special]
        return str(self._pieces.backend.DecodePieces(pieces))

    def token_to_id(self, token: str) -> int | None:
        return self._vocab.get(token)

    def id_to_token(self, index: int) -> str:
        if index not in self._tokens:
            raise UserError(f"id {index} is outside the vocabulary of {self.vocab_size} pieces")
        return self._tokens[index]

    def normalize(self, text: str) -> str:
        return self._pieces.normalize(text)

    @property
    def backend(self) -> Any:
        return self._pieces.backend

    @property
    def vocab_size(self) -> int:
        return len(self._vocab)

    @property
    def kind(self) -> str:
        return self._pieces.kind

    @property
    def normalizer(self) -> str:
        return self._pieces.normalizer

    @property
    def hash(self) -> str:
        return self._hash(self._proto + json.dumps(self._vocab, sort_keys=True).encode())

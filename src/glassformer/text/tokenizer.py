"""One tokenizer, whatever its kind and whichever file it came from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from glassformer.errors import UserError
from glassformer.text import recipe
from glassformer.text.lazy import lazy
from glassformer.text.normalize import NORMALIZERS

FILE_NAME = "tokenizer.json"
_LANGUAGE = lazy(r"<2([A-Za-z][A-Za-z0-9_-]*)>")
_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "bos": ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]"),
}


class Tokenizer:
    """Text to ids and back.

    Ours are exact: `decode(encode(x)) == normalize(x)` for every text `x` (BPE and Unigram with byte fallback). Special
    tokens are never added, and text that spells one ("</s>", "<2en>") is plain text.

    Attributes:
        pad_id, bos_id, eos_id, unk_id: 0, 1, 2, 3 in ours; in foreign files what they define, or None.
        language_ids: id of the token `<2xx>` for each language `xx`.
    """

    _target: Tokenizer | None = None

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        # A property of the object that tokenizer.json does not hold: without it, "</s>" in a text would end a sentence.
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        special = {token: self.token_to_id(token) for names in _NAMES.values() for token in names}
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = (
            next((special[name] for name in names if special[name] is not None), None) for names in _NAMES.values()
        )
        self.language_ids: dict[str, int] = {
            language: index
            for index, token in sorted(backend.get_added_tokens_decoder().items())
            if (language := language_of(token.content))
        }

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        *,
        kind: str = "bpe",
        vocab_size: int = 8000,
        normalizer: str = "nfc",
        languages: Sequence[str] = (),
        byte_fallback: bool = True,
        min_frequency: int = 2,
        limit_alphabet: int | None = None,
    ) -> Tokenizer:
        """Learns a vocabulary; the same lines give the same tokenizer.

        Args:
            kind: bpe (Sennrich et al. 2016), wordpiece (Schuster & Nakajima 2012) or unigram (Kudo 2018).
            vocab_size: pieces in all, specials and the 256 bytes included; fewer if the text does not yield them.
            normalizer: none, nfc or nfkc (which spares Chinese punctuation); saved with the tokenizer.
            languages: a token `<2xx>` each, in this order, right after `<pad> <s> </s> <unk>`.
            byte_fallback: spell characters without a piece in bytes. WordPiece has none: there they are `<unk>`.
            min_frequency: a character or merge seen less often gets no piece.
            limit_alphabet: at most so many single characters; by default three quarters of the vocabulary.

        Raises:
            UserError: an unknown kind or normaliser, a vocabulary without room, or no text.
        """
        _check_choice("kind", kind, recipe.KINDS)
        _check_choice("normalizer", normalizer, NORMALIZERS)
        for language in languages:
            if not _LANGUAGE.fullmatch(f"<2{language}>") or list(languages).count(language) > 1:
                raise UserError(f"language {language!r}: expected distinct codes such as zh or en (--languages zh,en)")
        from glassformer.text import training

        lines = list(lines)
        if not any(line.strip() for line in lines):
            raise UserError("tokenizer training got no text: every line is blank")
        reserved = [*recipe.SPECIALS, *(f"<2{language}>" for language in languages)]
        byte_fallback = byte_fallback and kind != "wordpiece"
        room = vocab_size - len(reserved) - len(recipe.BYTES) * byte_fallback
        if room < 2:
            least = vocab_size - room + 2
            raise UserError(
                f"vocabulary of {vocab_size} has no room beside its fixed pieces: at least {least} (--vocab-size)"
            )
        # A WordPiece character takes two pieces: at the start of a word, and inside.
        room = room // 2 if kind == "wordpiece" else room
        limit = max(1, room * 3 // 4) if limit_alphabet is None else min(limit_alphabet, room)
        corpus = training.Corpus(lines, kind, normalizer, min_frequency, limit)
        return cls(training.train(corpus, kind, vocab_size, reserved, byte_fallback, min_frequency))

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """A tokenizer from the contents of a tokenizer.json."""
        return Tokenizer(tokenizers.Tokenizer.from_str(text))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Reads a tokenizer, found by the names of its files.

        Args:
            path: tokenizer.json; SentencePiece's .model; BERT's vocab.txt; GPT-2's vocab.json + merges.txt (or
                encoder.json + vocab.bpe); or a directory that holds one of them, or Marian's source.spm + target.spm +
                vocab.json. What a directory holds as target_tokenizer.* is the target's.

        Raises:
            UserError: nothing there, or not such a file.
        """
        from glassformer.text import foreign

        file = foreign.find(Path(path))
        try:
            if file.suffix == ".spm":
                from glassformer.text.marian import MarianTokenizer

                return MarianTokenizer.read(file.parent)
            if file.suffix == ".model":
                from glassformer.text.sentencepiece import SentencePieceTokenizer

                tokenizer: Tokenizer = SentencePieceTokenizer.read(file)
            else:
                tokenizer = Tokenizer(foreign.read(file))
            if target := next(Path(path).glob("target_tokenizer.*"), None) if Path(path).is_dir() else None:
                tokenizer.target = Tokenizer.load(target)
            return tokenizer
        except OSError as error:
            raise UserError(f"{file}: cannot read the tokenizer ({error.strerror})") from None
        except UnicodeDecodeError as error:
            raise UserError(f"{file}: not UTF-8 (byte {error.start}), so not a tokenizer file") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes tokenizer.json, into `path` if that is a directory (or has no suffix), atomically."""
        self._write(Path(path), self._backend.to_str(pretty=True).encode(), FILE_NAME)

    def _write(self, path: Path, data: bytes, name: str) -> None:
        file = path / name if path.is_dir() or not path.suffix else path
        write(file, data)
        if self._target is not None:
            self._target.save(file.with_name(f"target_tokenizer{self._target._suffix}"))

    _suffix = ".json"

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer.from_json, (self._backend.to_str(),), {"_target": self._target}

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of translations; the same one, unless a model has one for each side."""
        return self._target or self

    @target.setter
    def target(self, tokenizer: Tokenizer) -> None:
        self._target = tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without special tokens."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, on all threads."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`: special ids are skipped, broken byte pieces give U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def tokens(self, ids_or_text: str | Sequence[int]) -> list[str]:
        """The pieces of a text or of ids, as the vocabulary spells them."""
        ids = self.encode(ids_or_text) if isinstance(ids_or_text, str) else ids_or_text
        return [self.id_to_token(index) for index in ids]

    def token_to_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def id_to_token(self, index: int) -> str:
        token = self._backend.id_to_token(index) if index >= 0 else None
        if token is None:
            raise UserError(f"id {index} is outside the vocabulary of {self.vocab_size} pieces")
        return token

    def normalize(self, text: str) -> str:
        """What `decode(encode(text))` gives back."""
        from glassformer.text.normalize import normalize

        if self.normalizer in NORMALIZERS:
            return normalize(text, self.normalizer)
        return str(self._backend.normalizer.normalize_str(text)) if self._backend.normalizer else text

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The `tokenizers` object underneath."""
        return self._backend

    @property
    def vocab_size(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def _state(self) -> dict[str, Any]:
        # Nine digits of a score: its last bits do not survive the library's reading and writing.
        return dict(json.loads(self._backend.to_str(), parse_float=lambda number: f"{float(number):.9g}"))

    @property
    def kind(self) -> str:
        """bpe, wordpiece, unigram, or in a foreign file another model's name in lower case."""
        return str(self._state["model"]["type"]).lower()

    @cached_property
    def normalizer(self) -> str:
        """none, nfc or nfkc in ours; `foreign` where a file brings another one."""
        saved = self._state["normalizer"]
        for name in NORMALIZERS:
            if saved == json.loads(recipe.normalizer(name).__getstate__()):
                return name
        return "none" if saved is None else "foreign"

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical tokenizer.json: equal hashes mean equal ids for every text."""
        canonical = json.dumps(self._state, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return self._hash(canonical.encode())

    def _hash(self, own: bytes) -> str:
        if self._target is not None:
            own += self._target.hash.encode()
        return hashlib.sha256(own).hexdigest()


def language_of(token: str) -> str | None:
    """`xx` for the token `<2xx>`, which asks for a translation into that language; None for any other."""
    match = _LANGUAGE.fullmatch(token)
    return match[1] if match else None


def write(file: Path, data: bytes) -> None:
    """Writes a whole file or nothing: a reader never sees half of it."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def _check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise UserError(f"{what} {value!r}: expected one of {', '.join(choices)} (--{what})")

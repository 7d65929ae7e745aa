"""What a MODEL directory says of itself, read without PyTorch and pydantic: enough to put text in and out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.text.tokenizer import Tokenizer

FORMAT_VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True)
class Translation:
    """What a translation model was trained for.

    Attributes:
        source: Code of the source language, such as ``zh``.
        target: Code of the target language, such as ``en``.
        both_directions: Whether the model translates back as well; its sources then begin with a target-language token.
    """

    # Where a pydantic config holds one, its typos are errors, too.
    __pydantic_config__ = {"extra": "forbid"}

    source: str
    target: str
    both_directions: bool = False

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Every (from, to) that the model was trained for."""
        forward = (self.source, self.target)
        return [forward, forward[::-1]] if self.both_directions else [forward]

    def tag(self, goal: str, tokenizer: Tokenizer) -> list[int]:
        """The ids that a source begins with: the goal's language token where the model has several goals, else none."""
        return [tokenizer.language_ids[goal]] if self.both_directions else []


@dataclass(frozen=True)
class Framing:
    """What stands around a text as a model reads it, and around what it writes, in ids.

    Attributes:
        before: What a text, a source or a prompt, begins with, such as ``<s>`` or ``[CLS]``.
        after: What a text or a source ends with, such as ``</s>`` or ``[SEP]``; a prompt ends with nothing.
        start: What the target of an encoder–decoder begins with.
        ends: Any of these ends what is written.
        chat_template: Jinja template that makes one prompt of a conversation, as Hugging Face's tokenizers hold it.
        banned: Ids that no target holds; None where the tokenizer says it (`unwritable_ids`).
        forced: What a target goes on with behind `start`, such as the ``<s>`` of some BARTs.
    """

    __pydantic_config__ = {"extra": "forbid"}

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    start: int | None = None
    ends: tuple[int, ...] = ()
    chat_template: str | None = None
    banned: tuple[int, ...] | None = None
    forced: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer, kind: str) -> Framing:
        """That of a model which says nothing: ``<s> … </s>``, but that an encoder–decoder's source has no ``<s>``."""
        bos, eos = (() if index is None else (index,) for index in (tokenizer.bos_id, tokenizer.eos_id))
        return cls(() if kind == "encoder-decoder" else bos, eos, tokenizer.bos_id, eos)


@dataclass(frozen=True)
class Header:
    """What of ``config.json`` is needed around a model.

    Attributes:
        vocab_size: Number of logits.
        source_limit: Most tokens of a source; None when there is no limit.
        target_limit: Most tokens of a target, likewise.
        translation: What the model was trained for, if it translates.
        tokenizer_sha256: Of the tokenizer that it was trained with.
        framing: What stands around its texts; None where the tokenizer says it.
    """

    vocab_size: int
    source_limit: int | None
    target_limit: int | None
    translation: Translation | None
    tokenizer_sha256: str
    framing: Framing | None = None

    @classmethod
    def read(cls, path: Path) -> Header:
        """Reads the header of a directory as this version writes it; ``store.read_header`` checks all of it.

        Raises:
            UserError: As `read_config`.
            KeyError, TypeError: What is needed is not there.
        """
        data = read_config(path)
        model, translation, framing = data["model"], data["translation"], data.get("framing") or {}
        lists = {key: tuple(value) for key, value in framing.items() if isinstance(value, list)}
        return cls(
            vocab_size=(model["target_embed"] or model["embed"])["vocab_size"],
            source_limit=_positions(model["encoder"]),
            target_limit=_positions(model["decoder"]),
            translation=None if translation is None else Translation(**translation),
            tokenizer_sha256=data["tokenizer_sha256"],
            framing=Framing(**{**framing, **lists}) if framing else None,
        )


def read_config(path: Path) -> dict[str, Any]:
    """The content of a directory's ``config.json``.

    Raises:
        UserError: There is none, or it is of another version.
    """
    file = path / CONFIG
    if not file.is_file():
        raise UserError(f"{path}: not a model directory: it has no {CONFIG}")
    try:
        data: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file}: not valid JSON ({error})") from None
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        what = f"format version {version}" if version is not None else "no format_version"
        raise UserError(
            f"{file}: {what}, but this glassformer reads version {FORMAT_VERSION}; "
            "use the glassformer that wrote it, or train again"
        )
    return dict(data)


def read_tokenizer(path: Path, sha256: str, verified: str | None = None) -> Tokenizer:
    """Reads the tokenizer of a directory, and checks that it is the one its header names.

    Args:
        verified: What `verified_tokenizer` has said of it: where the files are still those, nothing is left to check.

    Raises:
        UserError: There is none, or it is another one.
    """
    from glassformer.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(path)
    if (verified is None or _digest(path) != verified) and tokenizer.hash != sha256:
        raise UserError(
            f"{path}: its tokenizer is not the one this model was trained with "
            f"(sha256 {tokenizer.hash[:12]}…, expected {sha256[:12]}…); restore the original file"
        )
    return tokenizer


def verified_tokenizer(path: Path) -> str | None:
    """A digest of the files of a directory's tokenizer, quicker to take than its hash; None where they are wrong."""
    try:
        read_tokenizer(path, read_config(path)["tokenizer_sha256"])
    except (UserError, KeyError):
        return None
    return _digest(path)


def _digest(path: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted(file for file in path.iterdir() if file.suffix in (".json", ".model", ".spm", ".txt")):
        whole.update(f"{file.name} {file.stat().st_size} ".encode() + file.read_bytes())
    return whole.hexdigest()


def unwritable_ids(tokenizer: Tokenizer, vocab_size: int, banned: Sequence[int] | None = None) -> list[int]:
    """The ids that a translation never holds: padding, ``<s>``, ``<unk>``, language tokens, and rows without a piece.

    Args:
        tokenizer: Of translations.
        vocab_size: The model's number of logits, which may exceed the tokenizer's pieces.
        banned: Replaces all of these but the rows without a piece.
    """
    special: Iterable[int | None] = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.unk_id]
    special = [*special, *tokenizer.language_ids.values()] if banned is None else banned
    return [index for index in special if index is not None] + list(range(tokenizer.vocab_size, vocab_size))


def _positions(stack: dict[str, Any]) -> int | None:
    position = stack["position"]
    return None if position is None else int(position["max_len"])

"""Reading the tokenizer files of other projects into one `tokenizers` object."""

import json
import re
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from glassformer.errors import UserError
from glassformer.text.recipe import SPACELESS

# In order of preference: ours, Marian's, SentencePiece's, byte-level BPE's (a pair of files), WordPiece's.
FILES = (
    "tokenizer.json",
    "source.spm",
    "tokenizer.model",
    "sentencepiece.model",
    "spiece.model",
    "vocab.json",
    "encoder.json",
    "vocab.txt",
)
_MERGES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}


def find(path: Path) -> Path:
    """The tokenizer file at `path`, which may be a directory.

    Raises:
        UserError: there is none.
    """
    if not path.is_dir():
        return path
    known = [path / name for name in FILES if (path / name).is_file()]
    models_here = sorted(file for file in path.glob("*.model") if file.stem != "target_tokenizer")
    if known or len(models_here) == 1:
        return (known or models_here)[0]
    if models_here:
        raise UserError(
            f"{path}: several SentencePiece models ({', '.join(p.name for p in models_here)}); name one of them"
        )
    raise UserError(
        f"{path}: no tokenizer here; expected tokenizer.json, a .model, vocab.txt, or vocab.json + merges.txt"
    )


def read(file: Path) -> tokenizers.Tokenizer:
    """The tokenizer in `file`: a tokenizer.json, a vocab.txt, or a vocab.json whose merges lie beside it.

    Raises:
        UserError: the file has another format.
    """
    if file.suffix == ".txt":
        return wordpiece(file)
    text = file.read_text(encoding="utf-8")
    try:
        return _with_chinese_joined(tokenizers.Tokenizer.from_str(text))
    except Exception as error:  # the library raises this bare type alone
        refusal = str(error)
    try:
        state = json.loads(text)
    except ValueError as error:
        raise UserError(f"{file}: not a tokenizer.json ({error})") from None
    if isinstance(state, dict) and isinstance(state.get("model"), dict):
        raise UserError(f"{file}: a tokenizer.json that the tokenizers library refuses: {refusal}")
    if isinstance(state, dict) and state and all(isinstance(index, int) for index in state.values()):
        return byte_level_bpe(file, state)
    raise UserError(f"{file}: neither a tokenizer.json nor the vocabulary of a byte-level BPE (piece to id)")


def byte_level_bpe(file: Path, vocab: dict[str, int]) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE: `vocab` from `file`, and the merges in the file beside it."""
    names = dict.fromkeys((_MERGES.get(file.name, file.name.replace("vocab.json", "merges.txt")), *_MERGES.values()))
    found = [file.with_name(name) for name in names if file.with_name(name).is_file() and name != file.name]
    if not found:
        raise UserError(f"{file}: its merges are missing; expected {' or '.join(names)} beside it")
    merges = []
    for number, line in enumerate(found[0].read_text(encoding="utf-8").split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, separator, right = line.partition(" ")
        if not separator or left + right not in vocab:
            raise UserError(f"{found[0]}:{number}: expected two pieces that merge into one of {file.name}")
        merges.append((left, right))
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([token for token in vocab if re.fullmatch(r"<\|\w+\|>", token)])
    return backend


def wordpiece(file: Path) -> tokenizers.Tokenizer:
    """BERT's WordPiece: one piece a line, lower-casing if tokenizer_config.json says so or no piece has a capital."""
    pieces = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    pieces = [piece.removesuffix("\r") for piece in pieces]
    if "[UNK]" not in pieces:
        raise UserError(f"{file}: not a WordPiece vocabulary (no [UNK]); expected one piece a line")
    special = [piece for piece in pieces if re.fullmatch(r"\[(PAD|UNK|CLS|SEP|MASK)\]", piece)]
    config_file = file.with_name("tokenizer_config.json")
    config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
    cased = any(char.isupper() for piece in set(pieces) - set(special) if not piece.startswith("[") for char in piece)
    vocab = {piece: index for index, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", not cased),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(special)
    return _with_chinese_joined(backend)


def _with_chinese_joined(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """BERT's decoder puts a space between any two words; a script without spaces must get none between characters."""
    if isinstance(backend.decoder, decoders.WordPiece):
        marks = f"[{SPACELESS}\u3000-\u303f\uff00-\uff65]"
        between = tokenizers.Regex(f"(?<={marks}) | (?={marks})")
        backend.decoder = decoders.Sequence([backend.decoder, decoders.Fuse(), decoders.Replace(between, "")])
    return backend

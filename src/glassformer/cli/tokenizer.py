"""`glassformer tokenizer`: train, use, or inspect a tokenizer."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.text.tokenizer import Tokenizer

_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*")

app = typer.Typer(help="Train, use, or inspect a tokenizer.", no_args_is_help=True, add_completion=False)

_TOKENIZER = typer.Option(
    "-t", "--tokenizer", "-m", "--model", help="tokenizer.json, .model, vocab.txt, or a directory."
)
TokenizerPath = Annotated[Path, _TOKENIZER]
Texts = Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Standard input, if none is given.")]


@app.command()
def train(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Plain text, or .tsv: its language columns.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A directory, or a .json file.")],
    kind: Annotated[str, typer.Option(help="bpe, wordpiece, or unigram.")] = "bpe",
    vocab_size: Annotated[int, typer.Option(help="Pieces in all, specials and 256 bytes included.")] = 8000,
    normalizer: Annotated[str, typer.Option(help="none, nfc, or nfkc (which spares ，！？（）).")] = "nfc",
    languages: Annotated[str, typer.Option(help="Codes that get a token <2xx>, as in zh,en.")] = "",
    byte_fallback: Annotated[bool, typer.Option(help="Spell characters without a piece in bytes.")] = True,
    min_frequency: Annotated[int, typer.Option(min=1, help="Rarer characters and merges get no piece.")] = 2,
    limit_alphabet: Annotated[int | None, typer.Option(min=1, help="At most so many single characters.")] = None,
) -> None:
    """Learn a vocabulary from text; the same text gives the same file. A coverage report goes to stderr."""
    from glassformer.text.tokenizer import Tokenizer

    lines = [line for file in files for line in _training_lines(file)]
    tokenizer = Tokenizer.train(
        lines,
        kind=kind,
        vocab_size=vocab_size,
        normalizer=normalizer,
        languages=[code.strip() for code in languages.split(",") if code.strip()],
        byte_fallback=byte_fallback,
        min_frequency=min_frequency,
        limit_alphabet=limit_alphabet,
    )
    tokenizer.save(output)
    print(_coverage(tokenizer, lines), file=sys.stderr)


@app.command()
def encode(
    tokenizer: TokenizerPath,
    texts: Texts = None,
    pieces: Annotated[bool, typer.Option("--pieces", help="Print pieces instead of ids.")] = False,
) -> None:
    """Text to ids, one line of output for each line of input."""
    loaded = _load(tokenizer)
    for text in texts if texts else _input_lines():
        ids = loaded.encode(text)
        print(" ".join(loaded.tokens(ids) if pieces else map(str, ids)))


@app.command()
def decode(
    tokenizer: TokenizerPath,
    texts: Annotated[list[str] | None, typer.Argument(metavar="[IDS]...", help="Standard input, if none.")] = None,
    pieces: Annotated[bool, typer.Option("--pieces", help="Read pieces instead of ids.")] = False,
) -> None:
    """Ids to text, one line of output for each line of input."""
    loaded = _load(tokenizer)
    for number, line in enumerate(texts if texts else _input_lines(), start=1):
        where = f"argument {number}" if texts else f"<stdin>:{number}"
        print(loaded.decode([_id(loaded, word, where, pieces) for word in line.split(" ") if word]))


@app.command()
def info(
    path: Annotated[Path | None, typer.Argument(metavar="[TOKENIZER]", help="The same as --tokenizer.")] = None,
    tokenizer: Annotated[Path | None, _TOKENIZER] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Kind, vocabulary size, normaliser, special tokens, and hash."""
    chosen = path or tokenizer
    if chosen is None:
        raise UserError("no tokenizer given: name a file or a directory (--tokenizer)")
    loaded = _load(chosen)
    specials = {"pad": loaded.pad_id, "bos": loaded.bos_id, "eos": loaded.eos_id, "unk": loaded.unk_id}
    facts = {
        "kind": loaded.kind,
        "vocab_size": loaded.vocab_size,
        "normalizer": loaded.normalizer,
        "specials": {name: {"id": i, "token": loaded.id_to_token(i)} for name, i in specials.items() if i is not None},
        "languages": loaded.language_ids,
        "hash": loaded.hash,
    }
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    print(f"kind        {loaded.kind}\nvocabulary  {loaded.vocab_size} pieces\nnormaliser  {loaded.normalizer}")
    named = [f"{name} {loaded.id_to_token(i)} {i}" for name, i in specials.items() if i is not None]
    print(f"specials    {', '.join(named) or 'none'}")
    print(f"languages   {', '.join(f'{code} {i}' for code, i in loaded.language_ids.items()) or 'none'}")
    print(f"hash        {loaded.hash}")


def _load(path: Path) -> Tokenizer:
    from glassformer.text.tokenizer import Tokenizer

    return Tokenizer.load(path)


def _id(tokenizer: Tokenizer, word: str, where: str, piece: bool) -> int:
    if piece:
        index = tokenizer.token_to_id(word)
        if index is None:
            raise UserError(f"{where}: {word!r} is not a piece of this tokenizer")
        return index
    if not (word.isascii() and word.isdigit()) or int(word) >= tokenizer.vocab_size:
        raise UserError(f"{where}: {word!r} is not an id from 0 to {tokenizer.vocab_size - 1} (pieces need --pieces)")
    return int(word)


def _input_lines() -> Iterator[str]:
    from glassformer.data.corpus import read_lines

    return read_lines(sys.stdin.buffer)


def _training_lines(file: Path) -> Iterator[str]:
    from glassformer.data.corpus import read_lines

    lines = read_lines(file)
    if file.suffix != ".tsv":
        yield from lines
        return
    first = next(lines, "").split("\t")
    # A header starts with two language codes; its other columns, such as `source`, hold no text to learn from.
    codes = [index for index, name in enumerate(first) if _LANGUAGE_CODE.fullmatch(name)]
    header = codes[:2] == [0, 1]
    if not header:
        yield from first
    for line in lines:
        fields = line.split("\t")
        yield from (fields[index] for index in codes if index < len(fields)) if header else fields


def _coverage(tokenizer: Tokenizer, lines: list[str]) -> str:
    """What share of the text's characters are in pieces, and into how many pieces words and characters fall."""
    pieces = spelled = characters = words = 0
    start_of_bytes = {tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256) if byte & 0xC0 != 0x80} - {None}
    for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True):
        pieces += len(ids)
        spelled += sum(index in start_of_bytes or index == tokenizer.unk_id for index in ids)
        characters += len(line)
        words += len(line.split())
    return (
        f"{tokenizer.kind}, {tokenizer.vocab_size} pieces; of {characters:,} characters "
        f"{100 * (1 - spelled / max(1, characters)):.3f} % in pieces, {spelled:,} as bytes or unknown; "
        f"{pieces / max(1, words):.2f} pieces a space-separated word, {pieces / max(1, characters):.3f} a character"
    )

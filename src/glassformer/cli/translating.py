"""`glassformer translate`: text in, as many lines of translation out. Loads no Typer."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli import files
from glassformer.decoding import LENGTH_PENALTY, Decoding, check_streamed
from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.translation import Translation


class Format(StrEnum):
    text = "text"
    jsonl = "jsonl"
    moses = "moses"


def run(
    text: list[str] | None = None,
    model: str = "zh-en",
    input: Path | None = None,
    output: Path | None = None,
    source: str | None = None,
    to: str | None = None,
    format: Format = Format.text,
    beam_size: int | None = None,
    n_best: int = 1,
    length_penalty: float = LENGTH_PENALTY,
    max_new_tokens: int | None = None,
    beam_groups: int = 1,
    diversity: float = 0.5,
    repetition_penalty: float = 1.0,
    no_repeat_ngram: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    seed: int | None = None,
    prefix_file: Path | None = None,
    glossary: Path | None = None,
    banned: str | None = None,
    split_above: int | None = None,
    no_split: bool = False,
    no_protect: bool = False,
    alignments: bool = False,
    alignment_layers: str | None = None,
    alignment_heads: str | None = None,
    stream: bool = False,
    errors: str = "strict",
    engine: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    shortlist: Path | None = None,
    batch_tokens: int = 4000,
) -> None:
    """Translates what the flags of `glassformer.cli.translate` say."""
    from glassformer.text.glossary import Glossary

    decoding: dict[str, Any] = {
        "beam_size": beam_size,
        "n_best": n_best,
        "length_penalty": length_penalty,
        "max_new_tokens": max_new_tokens,
        "beam_groups": beam_groups,
        "diversity": diversity,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram": no_repeat_ngram,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "seed": seed,
    }
    if stream:
        check_streamed(beam_size)
        if format is not Format.text:
            raise UserError(f"--stream with --format {format}: its records are whole; leave out one of them")
        if glossary is not None and (no_protect or prefix_file is not None):
            other = "--no-protect" if no_protect else "--prefix-file"
            raise UserError(f"--stream with --glossary and {other}: forced terms need beam search; leave out one")
        decoding["beam_size"] = 1
    Decoding(**decoding)  # told before a model is read
    if n_best > 1 and format is Format.text:
        raise UserError(f"--n-best {n_best}: text has one line for each line read; add --format jsonl or moses")
    if alignments and format is not Format.jsonl:
        raise UserError(f"--alignments: {format} has no place for them; add --format jsonl")
    layers, heads = _numbers("--alignment-layers", alignment_layers), _numbers("--alignment-heads", alignment_heads)
    files.spare(output, {"--input": input, "--prefix-file": prefix_file, "--glossary": glossary})

    lines = files.input_lines(text, input, errors, "a sentence a line")
    first = list(islice(lines, 1))  # a missing file or a bad first byte is told before the model is read
    lines = chain(first, lines)
    prefixes = None
    if prefix_file is not None:
        lines, prefixes = _matched(list(lines), prefix_file, errors)
    text_options: dict[str, Any] = {"mask": None} if no_protect else {}
    if no_split or split_above is not None:
        text_options["split_above"] = None if no_split else split_above
    terms = None if glossary is None else Glossary.read(glossary)
    words = _words(banned)
    translator = files.open_translator(model, engine, precision, threads, shortlist)
    text_options |= {"banned": words, **decoding}
    written: Iterator[Iterable[str]]
    if stream:
        asked = zip(lines, repeat("") if prefixes is None else prefixes, strict=False)
        text_options["glossary"] = terms
        streams = (translator.stream(line, to, source, prefix=prefix, **text_options) for line, prefix in asked)
        written = (chain(map(_one_line, pieces), ["\n"]) for pieces in streams)
    else:
        records = translator.translate_lines(
            lines,
            to,
            source,
            prefixes=prefixes,
            glossary=terms,
            alignments=alignments,
            alignment_layers=layers,
            alignment_heads=heads,
            batch_tokens=batch_tokens,
            batch_sentences=1 if not text and input is None and sys.stdin.isatty() else 1024,
            **text_options,
        )
        written = ([_written(record, format, number)] for number, record in enumerate(records))
    progress = files.Progress("lines")
    with files.output_stream(output) as out:
        for pieces in written:
            for piece in pieces:
                out.write(piece)
                out.flush()
            progress.add(1)
    progress.close()
    if not progress.done:
        print("the input is empty: nothing to translate", file=sys.stderr)


def _matched(lines: list[str], path: Path, errors: str) -> tuple[Iterator[str], Sequence[str]]:
    """Lines and as many prefixes."""
    from glassformer.data.lines import read_lines

    prefixes = list(read_lines(path, errors=errors))
    if len(prefixes) != len(lines):
        raise UserError(
            f"--prefix-file {path}: has {len(prefixes)} lines, but the input has {len(lines)}; "
            "give each line its prefix, or a blank line"
        )
    return iter(lines), prefixes


def _words(banned: str | None) -> list[str]:
    from glassformer.data.lines import read_lines

    if banned is None:
        return []
    if os.path.isfile(banned):
        return [word for line in read_lines(banned) if (word := line.strip())]
    if os.sep in banned or os.path.splitext(banned)[1] in (".txt", ".tsv", ".csv", ".list"):
        raise UserError(f"--banned {banned}: no such file; give a file of words, or words with commas between them")
    words = [stripped for word in banned.split(",") if (stripped := word.strip())]
    if not words:
        raise UserError(f"--banned {banned!r}: expected a file, or words with commas between them")
    return words


def _numbers(flag: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    numbers = [part.strip() for part in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise UserError(f"{flag} {text!r}: expected numbers from 0, with commas between them")
    return [int(number) for number in numbers]


def _written(record: "Translation", format: Format, number: int = 0) -> str:
    if format is Format.jsonl:
        return json.dumps(record, ensure_ascii=False) + "\n"
    if format is Format.moses:
        return "".join(
            f"{number} ||| {_one_line(c['translation'])} ||| {c['score']!r} ||| {c['score']!r}\n"
            for c in record["n_best"]
        )
    return _one_line(record["translation"]) + "\n"


def _one_line(text: str) -> str:
    return text.replace("\n", " ")  # a line's end that byte pieces spell would shift all later lines

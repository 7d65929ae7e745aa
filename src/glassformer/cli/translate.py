"""`glassformer translate`: text in, as many lines of translation out."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import options
from glassformer.decoding import LENGTH_PENALTY, Decoding, check_streamed
from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.translation import Translation

app = typer.Typer(add_completion=False)


class Format(StrEnum):
    text = "text"
    jsonl = "jsonl"
    moses = "moses"


_SAMPLING = "Sampling"
_TERMS = "Words"
_TEXT = "Text"


@app.command()
def translate(
    text: Annotated[list[str] | None, typer.Argument(help="What to translate.", show_default="standard input")] = None,
    model: options.Model = "zh-en",
    input: Annotated[Path | None, typer.Option("--input", "-i", help="A text file, a sentence a line.")] = None,
    output: options.Output = None,
    source: options.From = None,
    to: options.To = None,
    format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="text: a line each; jsonl: scores and n-best too; moses: NUMBER ||| TEXT ||| SCORE ||| SCORE for each "
            "of the n best, lines numbered from 0.",
        ),
    ] = Format.text,
    beam_size: options.SearchedBeamSize = None,
    n_best: Annotated[int, typer.Option("--n-best", help="Translations of each line; needs jsonl or moses.")] = 1,
    length_penalty: options.LengthPenalty = LENGTH_PENALTY,
    max_new_tokens: options.MaxNewTokens = None,
    beam_groups: Annotated[
        int, typer.Option("--beam-groups", help="Groups of a diverse beam; divides --beam-size.")
    ] = 1,
    diversity: Annotated[
        float, typer.Option("--diversity", help="What a token costs a group for each earlier group that chose it.")
    ] = 0.5,
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", help="Above 1, words already written get less likely.")
    ] = 1.0,
    no_repeat_ngram: Annotated[
        int | None, typer.Option("--no-repeat-ngram", help="Never write so many tokens in a row a second time.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", help="Sample; 1 is the model's own distribution, 0 is greedy.", rich_help_panel=_SAMPLING
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Sample from the k likeliest tokens.", rich_help_panel=_SAMPLING)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Sample from the nucleus of this probability.", rich_help_panel=_SAMPLING),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            "--min-p", help="Sample tokens at least so likely, relative to the likeliest.", rich_help_panel=_SAMPLING
        ),
    ] = None,
    typical_p: Annotated[
        float | None,
        typer.Option("--typical-p", help="Sample from the typical set of this probability.", rich_help_panel=_SAMPLING),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Draw the same translations each time.", rich_help_panel=_SAMPLING),
    ] = None,
    prefix_file: Annotated[
        Path | None,
        typer.Option(
            "--prefix-file", help="What each line's translation begins with, a line each.", rich_help_panel=_TERMS
        ),
    ] = None,
    glossary: Annotated[
        Path | None,
        typer.Option("--glossary", help="A TSV of terms and the translations they must have.", rich_help_panel=_TERMS),
    ] = None,
    banned: Annotated[
        str | None,
        typer.Option(
            "--banned", help="Words never to write: a file, a word a line; or WORD,WORD…", rich_help_panel=_TERMS
        ),
    ] = None,
    split_above: Annotated[
        int | None,
        typer.Option(
            "--split-above",
            help="Translate lines of more tokens sentence by sentence.",
            show_default="60",
            rich_help_panel=_TEXT,
        ),
    ] = None,
    no_split: Annotated[
        bool, typer.Option("--no-split", help="Never split; cut what is too long, and flag it.", rich_help_panel=_TEXT)
    ] = False,
    no_protect: Annotated[
        bool,
        typer.Option("--no-protect", help="Leave placeholders, URLs and tags to the model.", rich_help_panel=_TEXT),
    ] = False,
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments", help="Tell which words say the same, as 0-0 1-2; needs jsonl.", rich_help_panel=_TEXT
        ),
    ] = False,
    alignment_layers: Annotated[
        str | None,
        typer.Option("--alignment-layers", help="Decoder layers to read it from, such as 2,3.", rich_help_panel=_TEXT),
    ] = None,
    alignment_heads: Annotated[
        str | None,
        typer.Option("--alignment-heads", help="Heads of these layers, such as 0,3.", rich_help_panel=_TEXT),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Show each translation as it is written; greedy, or sampled.")
    ] = False,
    errors: options.Errors = "strict",
    engine: options.Engine = "auto",
    precision: options.Precision = "auto",
    threads: options.Threads = None,
    shortlist: options.Shortlist = None,
    batch_tokens: options.BatchTokens = 4000,
) -> None:
    """Translate text, a file, or standard input: a line out for each line in, in order."""
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
    options.spare(output, {"--input": input, "--prefix-file": prefix_file, "--glossary": glossary})

    lines = options.input_lines(text, input, errors, "a sentence a line")
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
    translator = options.open_translator(model, engine, precision, threads, shortlist)
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
    progress = options.Progress("lines")
    with options.output_stream(output) as out:
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

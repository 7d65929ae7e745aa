"""The flags of `glassformer translate`; `translating.run` does the work."""

from pathlib import Path
from typing import Annotated

import typer

from glassformer.cli import options
from glassformer.cli.translating import Format, run
from glassformer.decoding import LENGTH_PENALTY

app = typer.Typer(add_completion=False)


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
    run(**locals())

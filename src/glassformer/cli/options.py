"""Flags that several commands share; and, by one name, the streams that they share."""

from pathlib import Path
from typing import Annotated

import typer

from glassformer.cli.files import Progress as Progress
from glassformer.cli.files import input_lines as input_lines
from glassformer.cli.files import open_translator as open_translator
from glassformer.cli.files import output_stream as output_stream
from glassformer.cli.files import partial_file as partial_file
from glassformer.cli.files import read_limited_pairs as read_limited_pairs
from glassformer.cli.files import spare as spare

Model = Annotated[str, typer.Option("--model", "-m", help="A MODEL directory, or the name of a bundled model.")]
AnyModel = Annotated[
    str, typer.Option("--model", "-m", help="A MODEL or a Hugging Face directory.", show_default=False)
]
From = Annotated[str | None, typer.Option("--from", help="Source language, such as zh.")]
To = Annotated[str | None, typer.Option("--to", help="Target language, such as en.")]
BeamSize = Annotated[
    int,
    typer.Option("--beam-size", "--beam", "--num-beams", "-b", help="Hypotheses kept a sentence; 1 is greedy search."),
]
SearchedBeamSize = Annotated[
    int | None,
    typer.Option(
        "--beam-size",
        "--beam",
        "--num-beams",
        "-b",
        help="Hypotheses kept a sentence; 1 is greedy search.",
        show_default="5, or 1 when sampling",
    ),
]
LengthPenalty = Annotated[
    float,
    typer.Option("--length-penalty", help="α of the score: the sum of log-probabilities over ((5 + length) / 6)^α."),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option("--max-new-tokens", help="Longest translation in tokens.", show_default="twice the source's plus 10"),
]
BatchTokens = Annotated[int, typer.Option("--batch-tokens", help="Bound on a batch: padded tokens times beam size.")]
Engine = Annotated[
    str,
    typer.Option("--engine", help="What computes: native, torch, model (PyTorch's module); auto takes the first able."),
]
Precision = Annotated[
    str, typer.Option("--precision", help="Matrix products in fp32, bf16 or int8; auto is the engine's choice.")
]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads.", show_default="the engine's choice")]
Errors = Annotated[str, typer.Option("--errors", help="A byte that is not UTF-8: strict stops, replace reads U+FFFD.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Where to write.", show_default="standard output")]
PairsFile = Annotated[
    Path,
    typer.Option(
        "--tsv", help="Pairs: a TSV whose first line may name its columns by language code, or a .jsonl file."
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", help="Read only so many pairs from the start.")]


Shortlist = Annotated[
    Path | None,
    typer.Option("--shortlist", help="A file of glassformer shortlist: compute these pieces' logits only."),
]

"""`glassformer score`: how probable the model finds given translations."""

import json
import math

import typer

from glassformer.cli import options
from glassformer.decoding import LENGTH_PENALTY
from glassformer.errors import UserError

app = typer.Typer(add_completion=False)


@app.command()
def score(
    tsv: options.PairsFile,
    model: options.Model = "zh-en",
    output: options.Output = None,
    source: options.From = None,
    to: options.To = None,
    length_penalty: options.LengthPenalty = LENGTH_PENALTY,
    engine: options.Engine = "auto",
    precision: options.Precision = "auto",
    threads: options.Threads = None,
    batch_tokens: options.BatchTokens = 4000,
) -> None:
    """Log-probability of given translations: a JSON line for each pair, with its score and its tokens'."""
    if not math.isfinite(length_penalty):
        raise UserError(f"--length-penalty {length_penalty}: must be a finite number")
    options.spare(output, {"--tsv": tsv})
    if batch_tokens < 1:
        raise UserError(f"--batch-tokens {batch_tokens}: must be 1 or more")
    translator = options.open_translator(model, engine, precision, threads)
    source, to = translator.one_direction(source, to)
    pairs = options.read_limited_pairs(tsv, source, to, None)
    scores = translator.score(pairs, to, source, length_penalty=length_penalty, batch_tokens=batch_tokens)
    with options.output_stream(output) as stream:
        stream.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in scores)

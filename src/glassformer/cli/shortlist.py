"""`glassformer shortlist`: learn which pieces a translator's targets are made of, from parallel text."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from glassformer.cli import options
from glassformer.errors import UserError

app = typer.Typer(add_completion=False)


@app.command()
def shortlist(
    tsv: options.PairsFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    model: options.Model = "zh-en",
    per_piece: Annotated[int, typer.Option("--per-piece", help="Most target pieces of a source piece.")] = 50,
    frequent: Annotated[int, typer.Option("--frequent", help="Most frequent target pieces, always allowed.")] = 200,
) -> None:
    """Learn a shortlist from pairs, in all of the model's directions, for `translate --shortlist`."""
    from glassformer.runtime.shortlist import Shortlist

    options.spare(output, {"--tsv": tsv})
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UserError(f"--output {output}: must be a file in a directory that exists")
    for flag, value in (("per-piece", per_piece), ("frequent", frequent)):
        if value < 1:
            raise UserError(f"--{flag} {value}: must be 1 or more")
    translator = options.open_translator(model, "auto", "auto", None)
    encode = translator.tokenizer.encode
    directions = translator.possible_directions()
    if not directions:
        raise UserError(f"-m {model}: it names no languages; save it with its translation's source and target")
    source, target = directions[0]
    pairs = [(encode(a), encode(b)) for a, b in options.read_limited_pairs(tsv, source, target, None)]
    both = [*pairs, *((b, a) for a, b in pairs)] if len(directions) > 1 else pairs
    learnt = Shortlist.learn(both, translator.engine.vocab_size, per_piece=per_piece, frequent=frequent)
    learnt.save(output)
    print(f"{output}: {len(learnt.targets):,} pairs of pieces", file=sys.stderr)

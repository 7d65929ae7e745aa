"""`glassformer evaluate`: BLEU, chrF++ and TER of a model on a test set."""

import json
from typing import Annotated, Any

import typer

from glassformer.cli import options
from glassformer.decoding import LENGTH_PENALTY, Decoding

app = typer.Typer(add_completion=False)

CHUNK = 512


@app.command()
def evaluate(
    tsv: options.PairsFile,
    model: options.Model = "zh-en",
    source: options.From = None,
    to: options.To = None,
    beam_size: options.BeamSize = 5,
    length_penalty: options.LengthPenalty = LENGTH_PENALTY,
    max_new_tokens: options.MaxNewTokens = None,
    engine: options.Engine = "auto",
    precision: options.Precision = "auto",
    threads: options.Threads = None,
    shortlist: options.Shortlist = None,
    batch_tokens: options.BatchTokens = 4000,
    limit: options.Limit = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object rather than a table.")] = False,
) -> None:
    """Translate a test set and score it: BLEU, chrF++, TER, their signatures, and sentences a second."""
    from glassformer.train.evaluate import corpus_scores

    Decoding(beam_size, length_penalty=length_penalty, max_new_tokens=max_new_tokens)  # told before a model is read
    translator = options.open_translator(model, engine, precision, threads, shortlist)
    source, to = translator.one_direction(source, to)
    pairs = options.read_limited_pairs(tsv, source, to, limit)
    progress = options.Progress("sentences", len(pairs))
    hypotheses: list[str] = []
    for start in range(0, len(pairs), CHUNK):
        texts = [text for text, _ in pairs[start : start + CHUNK]]
        hypotheses += translator.translate(
            texts,
            to,
            source,
            beam_size=beam_size,
            length_penalty=length_penalty,
            max_new_tokens=max_new_tokens,
            batch_tokens=batch_tokens,
        )
        progress.add(len(texts))
    seconds = progress.seconds
    progress.close()
    scores = corpus_scores(hypotheses, [reference for _, reference in pairs], to)
    report: dict[str, Any] = {
        **scores,
        "model": model,
        "tsv": str(tsv),
        "from": source,
        "to": to,
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "sentences": len(pairs),
        "seconds": seconds,
        "sentences_per_second": len(pairs) / seconds,
    }
    print(json.dumps(report, ensure_ascii=False) if as_json else _table(report))


def _table(report: dict[str, Any]) -> str:
    names = {"bleu": "BLEU", "chrf": "chrF++", "ter": "TER"}
    rows = [f"{name:8}{report[key]:7.2f}   {report['signatures'][key]}" for key, name in names.items()]
    head = f"{report['model']}  {report['from']} → {report['to']}  {report['tsv']}  beam {report['beam_size']}"
    speed = (
        f"{report['sentences']} sentences in {report['seconds']:.1f} s, {report['sentences_per_second']:.1f} a second"
    )
    return "\n".join([head, *rows, speed])

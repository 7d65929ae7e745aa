"""`glassformer data`: count, clean, and split parallel text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import options
from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.data.clean import Cleaner
    from glassformer.data.lines import Located

app = typer.Typer(
    help="Count, clean, and split parallel text: tsv, two plain files, jsonl, tmx, po.",
    no_args_is_help=True,
    add_completion=False,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The corpus, or its source side; - is standard input.")]
TargetFile = Annotated[Path | None, typer.Argument(metavar="[TARGET_FILE]", help="The target side, of plain text.")]
Format = Annotated[str | None, typer.Option("--format", help="tsv, plain, jsonl, tmx, or po.", show_default="suffix")]
OutputFormat = Annotated[
    str | None, typer.Option("--output-format", help="The same, of what is written.", show_default="suffix, or as read")
]
From = Annotated[str | None, typer.Option("--from", help="Source language: a column, a key, or an xml:lang.")]
To = Annotated[str | None, typer.Option("--to", help="Target language.")]


@app.command()
def stats(
    file: File,
    target_file: TargetFile = None,
    source: From = None,
    to: To = None,
    format: Format = None,
    errors: options.Errors = "strict",
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", "-t", help="Count tokens too, by this tokenizer or MODEL.")
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option("--against", help="A test set to look for in FILE; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object rather than a table.")] = False,
) -> None:
    """Sizes, lengths, ratios, duplicates, scripts, odd characters, and what test sets share with it."""
    from glassformer.data.stats import Overlap, Statistics

    corpus = _Corpus.open(file, target_file, source, to, format, errors)
    encoder = None
    if tokenizer is not None:
        from glassformer.text.tokenizer import Tokenizer

        encoder = Tokenizer.load(tokenizer)
    statistics, overlap = Statistics(corpus.languages, encoder), Overlap(corpus.languages) if against else None
    with corpus.rows() as rows:
        for row in rows:
            statistics.add(row.pair)
            if overlap:
                overlap.add(row.pair)
    report = statistics.report()
    if overlap:
        report["against"] = {}
        for path in dict.fromkeys(against or ()):
            with corpus.like(path).rows() as rows:
                report["against"][str(path)] = overlap.compare(rows)
    print(json.dumps(report, ensure_ascii=False) if as_json else _table(report))


@app.command()
def clean(
    file: File,
    target_file: TargetFile = None,
    output: options.Output = None,
    target_output: Annotated[
        Path | None, typer.Option("--target-output", "-O", help="The target side of what is written, as plain text.")
    ] = None,
    rejected: Annotated[
        Path | None, typer.Option("--rejected", help="Where to write what is dropped, with its reason and place.")
    ] = None,
    source: From = None,
    to: To = None,
    format: Format = None,
    output_format: OutputFormat = None,
    errors: options.Errors = "strict",
    duplicates: Annotated[
        str, typer.Option(help="Drop pairs seen before: exact, blind (to case, width, punctuation, spaces), or keep.")
    ] = "exact",
    drop_identical: Annotated[
        bool, typer.Option("--drop-identical/--keep-identical", help="Drop pairs whose source is their target.")
    ] = True,
    length_ratio: Annotated[
        float,
        typer.Option(help="Drop pairs this far from the corpus's median ratio of characters, either way; 0 is off."),
    ] = 3.0,
    max_chars: Annotated[int, typer.Option(help="Drop pairs with more characters on a side; 0 is off.")] = 1000,
    script_share: Annotated[
        float, typer.Option(help="Drop pairs with less of a side's words in its language's script; 0 is off.")
    ] = 0.5,
    strip_control: Annotated[
        bool, typer.Option("--strip-control/--keep-control", help="Remove control and zero-width characters.")
    ] = True,
    nfc: Annotated[bool, typer.Option("--nfc/--no-nfc", help="Bring text to Unicode's composed form.")] = False,
) -> None:
    """Drop pairs that teach something false, and say how many for which reason; outer and blank lines always go.

    With every filter off it converts one format into another.
    """
    from glassformer.data.clean import CleanConfig, Cleaner
    from glassformer.data.writers import open_writer

    options.spare(rejected, {"--input": file, "the target file": target_file}, "--rejected")
    if rejected is not None and rejected in (output, target_output):
        raise UserError(f"--rejected {rejected}: is where the pairs that are kept go; name another file")
    config = CleanConfig(duplicates, drop_identical, length_ratio, max_chars, script_share, strip_control, nfc)
    corpus = _Corpus.open(file, target_file, source, to, format, errors)
    chosen = corpus.output_format(output, target_output, output_format)
    if script_share and not corpus.languages:
        print("languages unknown, so that no script is wrong: name them with --from and --to", file=sys.stderr)
    cleaner = Cleaner(config, corpus.languages)
    with ExitStack() as stack:
        keep = stack.enter_context(open_writer(output, target_output, languages=corpus.languages, format=chosen))
        drop = rejected and stack.enter_context(open_writer(rejected, languages=corpus.languages))
        for row, reason in cleaner.clean(stack.enter_context(corpus.rows())):
            if not reason:
                keep.write(row)
            elif drop:
                drop.write(row._replace(extra={**row.extra, "reason": reason, "at": row.source_at}))
    print(_cleaned(cleaner), file=sys.stderr)


@app.command()
def split(
    file: File,
    target_file: TargetFile = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A directory for train, dev, and test; existing ones are replaced.")
    ] = Path("."),
    dev: Annotated[str, typer.Option(help="So many pairs (1000) or a share (0.01, 1%).")] = "1%",
    test: Annotated[str, typer.Option(help="The same.")] = "1%",
    seed: Annotated[int, typer.Option(help="Another seed, another choice.")] = 1,
    source: From = None,
    to: To = None,
    format: Format = None,
    output_format: OutputFormat = None,
    errors: options.Errors = "strict",
) -> None:
    """Cut a corpus into train, dev, and test, leak-free.

    Pairs that share a source or a target stay together, whatever their case, width, punctuation, spacing, contractions,
    or the gender of their pronouns.
    """
    from glassformer.data.splits import SPLITS, Share, split_pairs
    from glassformer.data.writers import open_writer

    shares = Share.parse(dev, "--dev"), Share.parse(test, "--test")
    corpus = _Corpus.open(file, target_file, source, to, format, errors)
    if not corpus.path.is_file():
        raise UserError(f"{corpus.path}: it is read twice, so it must be a file, not a pipe")
    with corpus.rows() as rows:
        filled = (row.pair for row in rows if any(map(str.strip, row.pair)))
        choice = split_pairs(filled, *shares, languages=corpus.languages or ("", ""), seed=seed)
    if not choice:
        raise UserError(f"{corpus.path}: no sentence pairs in it; expected at least three")
    output.mkdir(parents=True, exist_ok=True)
    two = corpus.target_path is not None and output_format in (None, "plain")
    chosen = output_format or corpus.format
    suffixes = [path.suffix for path in (corpus.path, corpus.target_path) if path] if two else [f".{chosen}"]
    if two and len(set(suffixes)) == 1:
        suffixes = [f".{name}" for name in corpus.languages or ("source", "target")]
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                open_writer(
                    *(output / f"{name}{suffix}" for suffix in suffixes), languages=corpus.languages, format=chosen
                )
            )
            for name in SPLITS
        ]
        again = (row for row in stack.enter_context(corpus.rows()) if any(map(str.strip, row.pair)))
        for row, index in zip(again, choice, strict=True):
            writers[index].write(row)
    counts = [choice.count(index) for index in range(len(SPLITS))]
    print(", ".join(f"{name} {count:,}" for name, count in zip(SPLITS, counts, strict=True)), file=sys.stderr)
    for share, flag, got in zip(shares, ("--dev", "--test"), counts[1:], strict=True):
        if got < share.of(len(choice)):
            print(f"{flag}: {got} of {share.of(len(choice))}; the groups that are left are too large", file=sys.stderr)


@dataclass(frozen=True)
class _Corpus:
    path: Path
    target_path: Path | None
    languages: tuple[str, str] | None
    format: str
    errors: str

    @classmethod
    def open(
        cls,
        path: Path,
        target_path: Path | None,
        source: str | None,
        target: str | None,
        format: str | None,
        errors: str,
    ) -> _Corpus:
        from glassformer.data.corpus import format_of
        from glassformer.data.languages import find_languages

        if (source is None) != (target is None):
            raise UserError("--from and --to: give both languages, or neither")
        if source is not None and source == target:
            raise UserError(f"--from {source} --to {target}: expected two languages")
        path = Path("/dev/stdin") if path == Path("-") else path
        chosen = format_of(path, target_path, format)
        named = (source, target) if source and target else find_languages(path, target_path, chosen)
        return cls(path, target_path, named, chosen, errors)

    def like(self, path: Path) -> _Corpus:
        """Another corpus, in one file, of the same languages."""
        from glassformer.data.corpus import format_of

        return _Corpus(path, None, self.languages, format_of(path), self.errors)

    @contextmanager
    def rows(self) -> Iterator[Iterator[Located]]:
        """One pass, whose progress is shown."""
        from glassformer.cli.reading import shown
        from glassformer.data.corpus import stream_pairs
        from glassformer.data.lines import open_binary

        names = dict(zip(("source", "target"), self.languages or (), strict=False))
        with ExitStack() as stack:
            files = [stack.enter_context(open_binary(str(path))) for path in (self.path, self.target_path) if path]
            rows = stream_pairs(*files, errors=self.errors, format=self.format, **names)
            yield stack.enter_context(shown(rows, files, self.path.name))

    def output_format(self, output: Path | None, target_output: Path | None, format: str | None) -> str:
        """The format to write: the one named, or that of the suffix, or that which was read."""
        from glassformer.data.corpus import FORMATS, format_of

        if target_output is not None and output is None:
            raise UserError("--target-output: give the source's file too (--output)")
        if format or target_output or (output and output.suffix[1:].lower() in FORMATS):
            return format_of(output or "", target_output, format)
        return "tsv" if self.format == "plain" else self.format


def _cleaned(cleaner: Cleaner) -> str:
    config = cleaner.config
    limits = {
        "too long": f"over {config.max_chars} characters (--max-chars)",
        "identical": "source = target (--keep-identical)",
        "length ratio": f"over {config.length_ratio:g} × the median of {cleaner.median_ratio:.2f} (--length-ratio)",
        "wrong script": f"under {config.script_share:g} of the words (--script-share)",
        "duplicate": f"{config.duplicates} (--duplicates)",
    }
    share = 100 * cleaner.kept / max(cleaner.read, 1)
    lines = [f"read {cleaner.read:,} pairs, kept {cleaner.kept:,} ({share:.2f} %)"]
    lines += [f"  dropped {count:>9,}  {name:18} {limits.get(name, '')}" for name, count in cleaner.dropped.items()]
    lines += [f"  mended  {count:>9,}  {name}" for name, count in cleaner.edited.items()]
    return "\n".join(map(str.rstrip, lines))


def _table(report: dict[str, Any]) -> str:
    sides = report["source"], report["target"]
    names = report["languages"] or ("source", "target")
    rows: list[tuple[str, ...]] = [("", *names)]
    for key in ("characters", "words", "tokens"):
        if key in sides[0]:
            rows.append((key, *(f"{side[key]:,}" for side in sides)))
    for key, label in (("length", "characters"), ("length_in_tokens", "tokens")):
        for point in sides[0].get(key, ()):
            rows.append((f"{label} a text, {point}", *(f"{side[key][point]:,}" for side in sides)))
    for key in ("blank", "wrong_script", "mixed_scripts", "control", "not_nfc"):
        rows.append((key.replace("_", " "), *("?" if side[key] is None else f"{side[key]:,}" for side in sides)))
    for key in sides[0]["alphabet"]:
        label = f"characters, {key.replace('_', ' ')}" + " %" * key.startswith("cover")
        rows.append((label, *(f"{side['alphabet'][key]:,}" for side in sides)))
    for place in range(max(min(len(side["scripts"]), 5) for side in sides)):
        tops = [list(side["scripts"].items())[place : place + 1] for side in sides]
        rows.append(("scripts" * (place == 0), *(f"{top[0][0]} {top[0][1]:,}" if top else "" for top in tops)))
    pairs = [(key, report[key]) for key in ("pairs", "blank", "duplicates", "blind_duplicates", "identical")]
    pairs += [(key, report[key]) for key in ("sources_with_several_targets", "targets_with_several_sources")]
    width = max(len(label) for label, *_ in (*rows, *pairs))
    lines = [f"{key.replace('_', ' '):{width}}  {count:>14,}" for key, count in pairs]
    lines.append("length ratio  " + "  ".join(f"{key} {value:g}" for key, value in report["length_ratio"].items()))
    lines += ["", *(f"{label:{width}}" + "".join(f"  {cell:>14}" for cell in cells) for label, *cells in rows)]
    for path, found in report.get("against", {}).items():
        shared = ", ".join(f"{key.replace('_', ' ')} {found[key]:,}" for key in found if "_" in key)
        at = f"; see {', '.join(found['examples'])}" if found["examples"] else ""
        lines += ["", f"{path}: {found['any']:,} of {found['pairs']:,} pairs share something ({shared}){at}"]
    return "\n".join(map(str.rstrip, lines))

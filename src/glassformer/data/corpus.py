"""Parallel text from disk: TSV, two plain files, JSON lines, TMX, or PO, all under one contract of what a line is."""

import json
import logging
import math
import os
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest
from pathlib import Path

from glassformer.data.lines import Located, Pair, TextFile, TextPath, name_of, read_lines
from glassformer.data.po import read_po
from glassformer.data.tmx import read_tmx
from glassformer.errors import UserError

log = logging.getLogger(__name__)

FORMATS = ("tsv", "plain", "jsonl", "tmx", "po")


def format_of(path: TextFile, target_path: TextFile | None = None, format: str | None = None) -> str:
    """The format of a corpus: the one named, else by the suffix; two files are plain, and anything unknown a TSV.

    Raises:
        UserError: a format that is not in `FORMATS`, or one that does not go with the number of files.
    """
    if format is not None and format not in FORMATS:
        raise UserError(f"format {format!r}: expected {', '.join(FORMATS)} (--format)")
    if target_path is not None:
        if format not in (None, "plain"):
            raise UserError(f"format {format}: two files are given, which is plain; give one file, or --format plain")
        return "plain"
    suffix = Path(name_of(path)).suffix.lower()[1:]
    found = format or {"pot": "po"}.get(suffix, suffix if suffix in FORMATS else "tsv")
    if found == "plain":
        raise UserError(f"{name_of(path)}: plain text comes as two files, source and target; only one is given")
    return found


def stream_pairs(
    path: TextFile,
    target_path: TextFile | None = None,
    *,
    source: str = "source",
    target: str = "target",
    errors: str = "strict",
    format: str | None = None,
) -> Iterator[Located]:
    """Yield the pairs of a corpus as they stand, one at a time, blank ones too: memory does not grow with the file.

    The formats and arguments are those of `read_pairs`; a file may also be an open binary stream.

    Raises:
        UserError: naming file and line, at a record that is malformed; at the end, if two files are of unequal length.
    """
    match format_of(path, target_path, format):
        case "plain":
            assert target_path is not None
            return _plain(path, target_path, errors)
        case "jsonl":
            return _jsonl(path, source, target, errors)
        case "tmx":
            return read_tmx(path, source, target, errors)
        case "po":
            return read_po(path, source, target, errors)
        case _:
            return _tsv(path, source, target, errors)


def read_pairs(
    path: TextPath,
    target_path: TextPath | None = None,
    *,
    source: str = "source",
    target: str = "target",
    errors: str = "strict",
    format: str | None = None,
) -> list[Pair]:
    """Read a parallel corpus.

    With `target_path`, both are plain files whose n-th lines belong together. A `.jsonl` file holds an object a line
    with the keys `source` and `target`, at the top or under `"translation"`. A `.tmx` file is a translation memory, and
    a `.po` or `.pot` file a gettext catalogue (`read_tmx`, `read_po`). Anything else is a TSV: its first line names the
    columns when it holds both names, and otherwise columns one and two are source and target.

    A pair that is blank on both sides is skipped, and the number of those is logged as a warning.

    Args:
        path: the corpus, or its source side.
        target_path: the target side, if that is a file of its own.
        source: the name of the source's column or key, such as `zh`.
        target: the name of the target's column or key, such as `en`.
        errors: what to do with a byte that is not UTF-8: `"strict"` or `"replace"`.
        format: one of `FORMATS`, where the suffix does not tell.

    Raises:
        UserError: naming file and line, when the corpus is missing, empty, malformed, blank on one side, or of unequal
            lengths.
    """
    rows = stream_pairs(path, target_path, source=source, target=target, errors=errors, format=format)
    pairs, blank, mistake = [], 0, ""
    for pair, source_at, target_at, _ in rows:
        match bool(pair.source.strip()), bool(pair.target.strip()):
            case True, True:
                pairs.append(pair)
            case False, False:
                blank += 1
            case False, True:
                mistake = mistake or _one_sided("source", source_at, "target", target_at)
            case True, False:
                mistake = mistake or _one_sided("target", target_at, "source", source_at)
    # Kept until here: where two files are of unequal length, that is the mistake, and a blank side only its shadow.
    if mistake:
        raise UserError(mistake)
    if blank:
        log.warning("%s: skipped %d pairs that are blank on both sides", os.fspath(path), blank)
    if not pairs:
        raise UserError(f"{os.fspath(path)}: no sentence pairs in it; expected at least one")
    return pairs


def _one_sided(blank: str, blank_at: str, other: str, other_at: str) -> str:
    if blank_at == other_at:
        return f"{blank_at}: the {blank} is blank but the {other} is not; fill it in, or delete the line"
    return f"{blank_at}: blank, but its {other} {other_at} is not; fill it in, or delete both lines"


def _tsv(file: TextFile, source: str, target: str, errors: str) -> Iterator[Located]:
    columns = {"source": 0, "target": 1}
    others: dict[str, int] | None = None
    name = name_of(file)
    for number, line in enumerate(read_lines(file, errors), 1):
        cells = line.split("\t")
        if number == 1:
            names = [cell.strip() for cell in cells]
            if source != target and source in names and target in names:
                columns = {"source": names.index(source), "target": names.index(target)}
                others = {name: index for index, name in enumerate(names) if index not in columns.values()}
                continue
        at = f"{name}:{number}"
        if not line or line.isspace():
            yield Located(Pair("", ""), at, at)
            continue
        for side, column in columns.items():
            if column >= len(cells):
                raise UserError(
                    f"{at}: {len(cells)} column{'s' * (len(cells) > 1)}, but the {side} is column {column + 1}; "
                    "put one tab between the sides, or give source and target as two files"
                )
        pair = Pair(cells[columns["source"]], cells[columns["target"]])
        if len(cells) == 2:
            yield Located(pair, at, at)
        elif others is None:
            yield Located(pair, at, at, {str(index): cell for index, cell in enumerate(cells[2:], 3)})
        else:
            yield Located(pair, at, at, {name: cells[i] for name, i in others.items() if i < len(cells)})


def _jsonl(file: TextFile, source: str, target: str, errors: str) -> Iterator[Located]:
    name = name_of(file)
    for number, line in enumerate(read_lines(file, errors), 1):
        at = f"{name}:{number}"
        if not line.strip():
            yield Located(Pair("", ""), at, at)
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{at}: not JSON: {error}; expected one object a line") from None
        extra: dict[str, object] = {}
        if isinstance(record, dict) and isinstance(record.get("translation"), dict):
            extra = {key: value for key, value in record.items() if key != "translation"}
            record = record["translation"]
        if not isinstance(record, dict):
            raise UserError(f'{at}: expected an object {{"{source}": …, "{target}": …}}, found {type(record).__name__}')
        sides = []
        for key in (source, target):
            if key not in record:
                found = ", ".join(json.dumps(name, ensure_ascii=False) for name in list(record)[:5]) or "none"
                raise UserError(
                    f'{at}: no key "{key}" (found: {found}); name the keys with data.source and data.target, '
                    "or with --from and --to"
                )
            text = record[key]
            if not isinstance(text, str):
                raise UserError(f'{at}: "{key}" is a {type(text).__name__}, expected a string')
            sides.append(_without_surrogates(text, at, errors))
        extra |= {key: value for key, value in record.items() if key not in (source, target)}
        yield Located(Pair(*sides), at, at, extra)


def _without_surrogates(text: str, at: str, errors: str) -> str:
    r"""Refuse or replace half a character: JSON can spell `"\ud83d"`, which no UTF-8 encoder accepts later on."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        if errors == "strict":
            escape = ascii(text[error.start])[1:-1]
            raise UserError(
                f"{at}: {escape} is half of a surrogate pair, not a character; mend it, or pass --errors replace"
            ) from None
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _plain(file: TextFile, target_file: TextFile, errors: str) -> Iterator[Located]:
    source_name, target_name = name_of(file), name_of(target_file)
    # Eight bytes a pair, against reading again what may be a pipe, should the files turn out unequal.
    lengths = array("I"), array("I")
    sides = zip_longest(read_lines(file, errors), read_lines(target_file, errors))
    for number, (source, target) in enumerate(sides, 1):
        for side, text in zip(lengths, (source, target), strict=True):
            if text is not None:
                side.append(len(text.strip()))
        if source is not None and target is not None:
            yield Located(Pair(source, target), f"{source_name}:{number}", f"{target_name}:{number}")
    sources, targets = lengths
    if len(sources) != len(targets):
        longer = source_name if len(sources) > len(targets) else target_name
        raise UserError(
            f"{source_name} has {len(sources)} lines but {target_name} has {len(targets)}, and line n of one must "
            f"translate line n of the other; first suspect: {longer}:{first_suspect(sources, targets)}, from where "
            "the lengths fit better with the surplus taken out; add or delete lines there"
        )


def first_suspect(source_lengths: Sequence[int], target_lengths: Sequence[int]) -> int:
    """Guess where two unequal files part, from the lengths of their lines alone.

    Supposes that the longer file holds one run of surplus lines, and takes the cut that fits best: lines before it pair
    up as they stand, lines after it pair up with the surplus taken out. A pair fits the worse the further its length
    ratio is from that of the whole text (log ratio, absolute); that lengths alone can align a translation is from Gale
    and Church (1993), "A Program for Aligning Sentences in Bilingual Corpora".

    Args:
        source_lengths: characters in each source line.
        target_lengths: characters in each target line; another number of lines.

    Returns:
        The 1-based line of the longer file where the surplus seems to start.
    """
    short, long = sorted((source_lengths, target_lengths), key=len)
    usual = math.log((sum(long) / len(long) + 1) / (sum(short) / max(len(short), 1) + 1))

    def misfit(a: int, b: int) -> float:
        return abs(math.log((b + 1) / (a + 1)) - usual)

    before = accumulate(map(misfit, short, long), initial=0.0)
    after = list(accumulate(map(misfit, reversed(short), reversed(long)), initial=0.0))[::-1]
    total = [head + tail for head, tail in zip(before, after, strict=True)]
    return min(range(len(total)), key=lambda cut: (total[cut], -cut)) + 1

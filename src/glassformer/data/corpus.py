"""Parallel text from disk: TSV, two plain files, or JSON lines, all under one contract of what a line is."""

import json
import logging
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, NamedTuple

from glassformer.errors import UserError

log = logging.getLogger(__name__)

BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")

TextPath = str | os.PathLike[str]


class Pair(NamedTuple):
    """One sentence and its translation, verbatim."""

    source: str
    target: str


class Located(NamedTuple):
    """A pair, and where each side stands, for messages."""

    pair: Pair
    source_at: str
    target_at: str


def read_lines(path_or_stream: TextPath | BinaryIO, errors: str = "strict") -> Iterator[str]:
    r"""Yield the lines of a UTF-8 text, one at a time.

    Only `\n` ends a line: U+2028, U+2029, U+0085 and a lone carriage return belong to its text, because whoever splits
    on them shifts every later line against its translation. The `\r` of a CRLF and a leading byte-order mark go.

    Args:
        path_or_stream: a path, or an open binary stream such as `sys.stdin.buffer`, which is left open.
        errors: `"strict"`, or `"replace"` to read each bad byte as U+FFFD.

    Raises:
        UserError: on the first `next`, if the file cannot be opened; at a byte that is not UTF-8, with its line and
            its offset in the file.
    """
    if errors not in ("strict", "replace"):
        raise UserError(f"--errors {errors}: expected strict or replace")
    if isinstance(path_or_stream, (str, os.PathLike)):
        name = os.fspath(path_or_stream)
        opened: AbstractContextManager[BinaryIO] = _open(name)
    else:
        name = str(getattr(path_or_stream, "name", "<input>"))
        opened = nullcontext(path_or_stream)
    offset = 0
    with opened as stream:
        for number, raw in enumerate(stream, 1):
            start, offset = offset, offset + len(raw)
            if number == 1 and raw.startswith(BOM):
                raw, start = raw.removeprefix(BOM), len(BOM)
                if not raw:
                    return
            raw = raw[:-2] if raw.endswith(b"\r\n") else raw.removesuffix(b"\n")
            try:
                text = raw.decode("utf-8", errors)
            except UnicodeDecodeError as error:
                looks = " (it looks like UTF-16)" if number == 1 and raw.startswith(UTF16_BOMS) else ""
                byte, at = raw[error.start], start + error.start
                raise UserError(
                    f"{name}:{number}: byte 0x{byte:02x} at offset {at} is not UTF-8{looks}; "
                    "save the file as UTF-8, or pass --errors replace"
                ) from None
            yield text


def read_pairs(
    path: TextPath,
    target_path: TextPath | None = None,
    *,
    source: str = "source",
    target: str = "target",
    errors: str = "strict",
) -> list[Pair]:
    """Read a parallel corpus.

    With `target_path`, both are plain files whose n-th lines belong together. A `.jsonl` file holds an object a line
    with the keys `source` and `target`, at the top or under `"translation"`. Anything else is a TSV: its first line
    names the columns when it holds both names, and otherwise columns one and two are source and target.

    A pair that is blank on both sides is skipped, and the number of those is logged as a warning.

    Args:
        path: the corpus, or its source side.
        target_path: the target side, if that is a file of its own.
        source: the name of the source's column or key, such as `zh`.
        target: the name of the target's column or key, such as `en`.
        errors: what to do with a byte that is not UTF-8: `"strict"` or `"replace"`.

    Raises:
        UserError: naming file and line, when the corpus is missing, empty, malformed, blank on one side, or of unequal
            lengths.
    """
    if target_path is not None:
        rows = _plain(path, target_path, errors)
    elif Path(path).suffix.lower() == ".jsonl":
        rows = _jsonl(path, source, target, errors)
    else:
        rows = _tsv(path, source, target, errors)
    pairs, blank = [], 0
    for pair, source_at, target_at in rows:
        match bool(pair.source.strip()), bool(pair.target.strip()):
            case True, True:
                pairs.append(pair)
            case False, False:
                blank += 1
            case False, True:
                raise UserError(_one_sided("source", source_at, "target", target_at))
            case True, False:
                raise UserError(_one_sided("target", target_at, "source", source_at))
    if blank:
        log.warning("%s: skipped %d pairs that are blank on both sides", os.fspath(path), blank)
    if not pairs:
        raise UserError(f"{os.fspath(path)}: no sentence pairs in it; expected at least one")
    return pairs


def _open(name: str) -> BinaryIO:
    try:
        return open(name, "rb")
    except OSError as error:
        raise UserError(f"{name}: cannot read it: {error.strerror}; give the path of a text file") from None
    except ValueError as error:
        raise UserError(f"{name!r}: not a path: {error}") from None


def _one_sided(blank: str, blank_at: str, other: str, other_at: str) -> str:
    if blank_at == other_at:
        return f"{blank_at}: the {blank} is blank but the {other} is not; fill it in, or delete the line"
    return f"{blank_at}: blank, but its {other} {other_at} is not; fill it in, or delete both lines"


def _tsv(path: TextPath, source: str, target: str, errors: str) -> Iterator[Located]:
    columns = {"source": 0, "target": 1}
    for number, line in enumerate(read_lines(path, errors), 1):
        cells = line.split("\t")
        if number == 1:
            names = [cell.strip() for cell in cells]
            if source != target and source in names and target in names:
                columns = {"source": names.index(source), "target": names.index(target)}
                continue
        at = f"{os.fspath(path)}:{number}"
        if not line.strip():
            yield Located(Pair("", ""), at, at)
            continue
        for side, column in columns.items():
            if column >= len(cells):
                raise UserError(
                    f"{at}: {len(cells)} column{'s' * (len(cells) > 1)}, but the {side} is column {column + 1}; "
                    "put one tab between the sides, or give source and target as two files"
                )
        yield Located(Pair(cells[columns["source"]], cells[columns["target"]]), at, at)


def _jsonl(path: TextPath, source: str, target: str, errors: str) -> Iterator[Located]:
    for number, line in enumerate(read_lines(path, errors), 1):
        at = f"{os.fspath(path)}:{number}"
        if not line.strip():
            yield Located(Pair("", ""), at, at)
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{at}: not JSON: {error}; expected one object a line") from None
        if isinstance(record, dict) and isinstance(record.get("translation"), dict):
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
        yield Located(Pair(*sides), at, at)


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


def _plain(path: TextPath, target_path: TextPath, errors: str) -> Iterator[Located]:
    sources, targets = list(read_lines(path, errors)), list(read_lines(target_path, errors))
    source_name, target_name = os.fspath(path), os.fspath(target_path)
    if len(sources) != len(targets):
        line = first_suspect([len(s.strip()) for s in sources], [len(t.strip()) for t in targets])
        longer = source_name if len(sources) > len(targets) else target_name
        raise UserError(
            f"{source_name} has {len(sources)} lines but {target_name} has {len(targets)}, and line n of one must "
            f"translate line n of the other; first suspect: {longer}:{line}, from where the lengths fit "
            "better with the surplus taken out; add or delete lines there"
        )
    for number, sides in enumerate(zip(sources, targets, strict=True), 1):
        yield Located(Pair(*sides), f"{source_name}:{number}", f"{target_name}:{number}")


def first_suspect(source_lengths: list[int], target_lengths: list[int]) -> int:
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

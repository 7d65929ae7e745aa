"""Finding out which languages a corpus is in, from how it names them."""

import json
import re
from pathlib import Path
from typing import Any

from glassformer.data.corpus import format_of
from glassformer.data.lines import TextPath, read_lines
from glassformer.data.po import languages_of_po
from glassformer.data.tmx import languages_of_tmx

# ISO 639-1, and what corpora of Chinese add to it from 639-3.
_CODES = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo
es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg
ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn
no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta
te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu cmn yue lzh nan wuu
"""
_REGION = re.compile(r"[-_][A-Za-z0-9]{2,8}([-_@.][A-Za-z0-9-]{2,8})*")


def is_language(name: str) -> bool:
    """Whether a name is a language code, with or without a region or script: `zh`, `zh-CN`, `zh_Hans`."""
    base = re.split("[-_]", name)[0]
    return base in _CODES.split() and (name == base or _REGION.fullmatch(name.removeprefix(base)) is not None)


def find_languages(
    path: TextPath, target_path: TextPath | None = None, format: str | None = None
) -> tuple[str, str] | None:
    """The languages of source and target as the corpus names them, or None where it does not.

    A TSV names them in the first two cells of its first line, JSON lines in two keys of the first record, two plain
    files in their suffixes (`train.zh`, `train.en`), TMX in its first unit, PO in its header.

    Raises:
        UserError: the file cannot be read, or its start is malformed.
    """
    if not Path(path).is_file() and Path(path).exists():
        return None  # a pipe can be read only once
    match format_of(path, target_path, format):
        case "tmx":
            return languages_of_tmx(path)
        case "po":
            return languages_of_po(path)
        case "plain":
            names = [Path(file).suffix[1:] for file in (path, target_path) if file is not None]
        case "jsonl":
            names = [name for name in _keys(next(read_lines(path, "replace"), "")) if is_language(name)]
        case _:
            names = [cell.strip() for cell in next(read_lines(path, "replace"), "").split("\t")[:2]]
    if len(names) == 2 and names[0] != names[1] and all(map(is_language, names)):
        return names[0], names[1]
    return None


def _keys(line: str) -> list[str]:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError):
        return []
    if isinstance(record, dict) and isinstance(record.get("translation"), dict):
        record = record["translation"]
    return list(record) if isinstance(record, dict) else []

"""Documents in: plain text files, and JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from glassformer.data.lines import read_lines
from glassformer.errors import UserError


def read_documents(path: str, document: str = "file", key: str = "text") -> list[str]:
    """Reads the documents of a file, leaving out blank ones.

    Args:
        path: Plain text; or, if it ends in ``.jsonl``, an object a line.
        document: What of plain text is one: the ``file``, a ``paragraph`` or a ``line``.
        key: Of an object's text.

    Raises:
        UserError: The file is missing, blank, not UTF-8, or a line is no object with that key.
    """
    lines = list(read_lines(path))
    if Path(path).suffix.lower() == ".jsonl":
        texts: Sequence[str] = [_text(line, key, f"{path}:{number}") for number, line in enumerate(lines, 1) if line]
    elif document == "line":
        texts = lines
    else:
        whole = "\n".join(lines)
        texts = [whole] if document == "file" else re.split(r"\n(?:[^\S\n]*\n)+", whole)
    found = [text for text in texts if text.strip()]
    if not found:
        raise UserError(f"{path}: no text in it; expected at least one {document} of words")
    return found


def _text(line: str, key: str, at: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UserError(f"{at}: not JSON: {error}; expected one object a line") from None
    if not isinstance(record, dict) or not isinstance(record.get(key), str):
        raise UserError(f'{at}: expected an object {{"{key}": "…"}}; name the key with data.text')
    return str(record[key])

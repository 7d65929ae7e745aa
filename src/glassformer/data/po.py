r"""Gettext catalogues (PO, GNU gettext manual 0.22, "The Format of PO Files"), read as a stream and written valid."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from logging import getLogger
from typing import TextIO

from glassformer.data.digests import DigestSet, digest
from glassformer.data.lines import Located, Pair, TextFile, TextPath, name_of, read_lines
from glassformer.errors import UserError

log = getLogger(__name__)

SOURCE_LANGUAGE = "en"
"""What `msgid`s are written in, by convention; the header names only the language of the translations."""

_LINE = re.compile(r'(?:(msgctxt|msgid_plural|msgid|msgstr)(?:\[(\d{1,2})\])?\s*)?"((?:[^"\\]|\\.)*)"')
_ORDER = re.compile(r"(msgctxt )?msgid( msgstr| msgid_plural( msgstr\[\d+\])*)?|msgctxt")
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)", re.S)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", '"': '"', "\\": "\\"}
_WRITTEN = {ord(char): f"\\{letter}" for letter, char in _LETTERS.items()}


@dataclass
class _Entry:
    texts: dict[str, str] = field(default_factory=dict)
    """Keyword, such as `msgid` or `msgstr[1]`, to text."""
    lines: dict[str, int] = field(default_factory=dict)
    fuzzy: bool = False

    @property
    def complete(self) -> bool:
        return any(keyword.startswith("msgstr") for keyword in self.texts)

    @property
    def is_header(self) -> bool:
        return self.texts["msgid"] == "" and "msgctxt" not in self.texts


def read_po(file: TextFile, source: str, target: str, errors: str = "strict") -> Iterator[Located]:
    """Yield the translated entries, in order: `msgid` is the source, `msgstr` the target.

    They change places when the header's `Language` is that of `source` and not of `target`. The header, obsolete
    entries (`#~`) and contexts are passed over; fuzzy and untranslated entries are counted in a warning. Of an entry
    with plural forms, the first form translates `msgid` and the last one `msgid_plural`; the only form of a language
    without plurals translates `msgid_plural`.

    Args:
        file: a catalogue in UTF-8.
        source: the language of the sources, such as `en`.
        target: the language of the targets, such as `zh_CN`.
        errors: what to do with a byte that is not UTF-8: `"strict"` or `"replace"`.

    Raises:
        UserError: at a line that is not PO, with its place.
    """
    name = name_of(file)
    swap = False
    skipped: Counter[str] = Counter()
    for entry in _entries(file, errors):
        if entry.is_header:
            language = _base(_header_language(entry))
            swap = language == _base(source) != _base(target)
        elif entry.fuzzy:
            skipped["fuzzy"] += 1
        else:
            translated = [(one, other) for one, other in _sides(entry) if entry.texts[other]]
            skipped["untranslated"] += not translated
            for one, other in translated:
                if swap:
                    one, other = other, one
                pair = Pair(entry.texts[one], entry.texts[other])
                yield Located(pair, f"{name}:{entry.lines[one]}", f"{name}:{entry.lines[other]}")
    if skipped.total():
        log.warning("%s: skipped %d fuzzy and %d untranslated entries", name, skipped["fuzzy"], skipped["untranslated"])


def languages_of_po(path: TextPath) -> tuple[str, str] | None:
    """The languages of `msgid` and `msgstr`, if the header tells the latter."""
    first = next(_entries(path, "replace"), None)
    language = _header_language(first) if first and first.is_header else ""
    return (SOURCE_LANGUAGE, language) if language else None


def _header_language(header: _Entry) -> str:
    found = re.search(r"^Language:[ \t]*(\S+)", header.texts.get("msgstr", ""), re.M)
    return found[1] if found else ""


def _base(language: str) -> str:
    return re.split("[-_@.]", language.lower())[0]


def _sides(entry: _Entry) -> list[tuple[str, str]]:
    if "msgid_plural" not in entry.texts:
        return [("msgid", "msgstr")]
    forms = [keyword for keyword in entry.texts if keyword.startswith("msgstr")]
    return [("msgid", forms[0]), ("msgid_plural", forms[-1])] if len(forms) > 1 else [("msgid_plural", forms[0])]


def _entries(file: TextFile, errors: str) -> Iterator[_Entry]:
    entry, keyword, number, name = _Entry(), "", 0, name_of(file)
    for number, line in enumerate(read_lines(file, errors), 1):
        line = line.strip()
        at = f"{name}:{number}"
        if not line or line.startswith("#"):
            # A comment belongs to the entry below it.
            if entry.complete:
                yield entry
                entry, keyword = _Entry(), ""
            entry.fuzzy |= line.startswith("#,") and "fuzzy" in re.split(r"[,\s]+", line)
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise UserError(f'{at}: not PO: expected msgid, msgstr, or "text" in double quotes, found {line[:40]!r}')
        word, index, text = found.groups()
        if word is None:
            if not keyword:
                raise UserError(f"{at}: text without a msgid or msgstr before it")
            entry.texts[keyword] += _unescape(text, at)
            continue
        if entry.complete and word != "msgstr":
            yield entry
            entry = _Entry()
        keyword = word if index is None else f"{word}[{index}]"
        _check_order(entry, keyword, at)
        entry.texts[keyword], entry.lines[keyword] = _unescape(text, at), number
    if entry.complete:
        yield entry
    elif entry.texts:
        raise UserError(f"{name}:{number}: the file ends within an entry: a msgstr is missing")


def _check_order(entry: _Entry, keyword: str, at: str) -> None:
    """Refuse a keyword that cannot stand where it does."""
    forms = sum(known.startswith("msgstr") for known in entry.texts)
    numbered = keyword.startswith("msgstr[")
    if not _ORDER.fullmatch(" ".join([*entry.texts, keyword])) or (numbered and keyword != f"msgstr[{forms}]"):
        raise UserError(
            f"{at}: {keyword} out of place; an entry is msgctxt, if any, then msgid and msgstr, "
            "or msgid, msgid_plural, msgstr[0], msgstr[1] and so on"
        )


def _unescape(text: str, at: str) -> str:
    def replace(found: re.Match[str]) -> str:
        code = found[1]
        if code in _LETTERS:
            return _LETTERS[code]
        try:
            value = int(code[1:], 16) if code[0] == "x" else int(code, 8)
        except ValueError:
            raise UserError(f"{at}: \\{code} is not an escape of PO; a backslash itself is written \\\\") from None
        if value > 127:
            raise UserError(f"{at}: \\{code} is a single byte above 127, no character; write the character itself")
        return chr(value)

    return _ESCAPE.sub(replace, text) if "\\" in text else text


class PoWriter:
    """Writes pairs as entries of a catalogue; extras are left out.

    A catalogue may not hold one `msgid` twice, so that a repeated source gets a `msgctxt` that tells it from the first.

    Args:
        stream: where to write.
        target: the language of the translations.
    """

    def __init__(self, stream: TextIO, target: str) -> None:
        self._stream, self._seen, self._repeats = stream, DigestSet(), 0
        header = f"Language: {target}\nMIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\n"
        stream.write(f'msgid ""\nmsgstr {_quote(header + "Content-Transfer-Encoding: 8bit" + chr(10))}\n')

    def write(self, located: Located) -> None:
        """Write one entry.

        Raises:
            UserError: an empty source, which is how a catalogue marks its header, or a NUL, which ends a text in C.
        """
        source, target = located.pair
        if not source or "\0" in source + target:
            what = "holds U+0000" if source else "is an empty source"
            raise UserError(f"{located.source_at}: {what}, which PO cannot hold; `glassformer data clean` removes it")
        context = ""
        if not self._seen.add(digest(source)):
            self._repeats += 1
            context = f'msgctxt "repeat {self._repeats}"\n'
        self._stream.write(f"\n{context}msgid {_quote(source)}\nmsgstr {_quote(target)}\n")

    def close(self) -> None:
        """Nothing ends a catalogue."""


def _quote(text: str) -> str:
    lines = [f'"{line.translate(_WRITTEN)}"' for line in re.findall(r"[^\n]*\n|[^\n]+", text)]
    return "\n".join(lines if len(lines) == 1 else ['""', *lines])

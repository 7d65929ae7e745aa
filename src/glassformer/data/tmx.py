"""Translation memories: TMX 1.4b (LISA OSCAR, 2005), read as a stream and written valid."""

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterator
from logging import getLogger
from typing import Any, NamedTuple, TextIO
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from glassformer.data.lines import UTF16_BOMS, Located, Pair, TextFile, TextPath, name_of, opened
from glassformer.errors import UserError

log = getLogger(__name__)

CHUNK = 1 << 16
NATIVE_CODE = {"bpt", "ept", "ph", "it", "ut", "sub"}
"""Inline elements that hold the formatting of the tool a text came from; `hi` alone marks text to be translated."""
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
PROP_PREFIX = "x-"
WRITER_VERSION = 1
"""Of the writer, not of the package: the same pairs give the same bytes from one release to the next."""


def read_tmx(file: TextFile, source: str, target: str, errors: str = "strict") -> Iterator[Located]:
    """Yield the units that hold both languages, in order.

    A unit's side is the text of its first variant in that language: `zh` finds `zh` and failing that `zh-CN`, and
    `zh-CN` finds `zh-CN` and failing that `zh`, case aside. Inline codes (`bpt`, `ept`, `ph`, `it`, `ut`) are left out
    with what they hold, which is another tool's markup; the text inside `hi` stays. A unit's `prop`s come as extras.
    Units that lack one of the languages are counted in a warning.

    Entity declarations are refused, since a few lines of them can expand to gigabytes; a DOCTYPE alone is allowed, and
    nothing outside the file is ever read.

    Args:
        file: an XML file in UTF-8, UTF-16, or what its declaration says.
        source: the language of the source, such as `zh` or `zh-CN`.
        target: the language of the target.
        errors: `"replace"` to read a file as UTF-8 with each bad byte as U+FFFD.

    Raises:
        UserError: at XML that is not well-formed or not TMX, with its line; at the end, if no unit has both languages.
    """
    reader = _Reader(name_of(file))
    matched = lacking = 0
    seen: Counter[str] = Counter()
    for unit in reader.units(file, errors):
        one, other = (_variant(unit.variants, language) for language in (source, target))
        if one is None or other is None:
            seen.update({variant.language for variant in unit.variants})
            lacking += 1
            continue
        matched += 1
        at, other_at = (f"{reader.name}:{side.line}" for side in (one, other))
        yield Located(Pair(one.text, other.text), at, other_at, unit.props)
    if lacking and not matched:
        found = ", ".join(sorted(seen)[:8]) or "none"
        raise UserError(
            f"{reader.name}: no unit holds both {source} and {target} (found: {found}); see --from and --to"
        )
    if lacking:
        log.warning("%s: skipped %d units without %s or without %s", reader.name, lacking, source, target)


def languages_of_tmx(path: TextPath) -> tuple[str, str] | None:
    """The languages of the first unit that has two, its header's source language first."""
    reader = _Reader(os.fspath(path))
    for unit in reader.units(path, "replace"):
        languages = list(dict.fromkeys(variant.language for variant in unit.variants))
        if len(languages) > 1:
            # sort() is stable: the others keep their order.
            languages.sort(key=lambda language: not _matches(language, reader.source_language))
            return languages[0], languages[1]
    return None


class _Variant(NamedTuple):
    language: str
    text: str
    line: int


def _variant(variants: list[_Variant], language: str) -> _Variant | None:
    exact = [variant for variant in variants if variant.language.lower() == language.lower()]
    return next(iter(exact or [variant for variant in variants if _matches(variant.language, language)]), None)


def _matches(tag: str, language: str) -> bool:
    short, long = sorted((tag.lower().replace("_", "-"), language.lower().replace("_", "-")), key=len)
    return short == long or (bool(short) and long.startswith(f"{short}-"))


class _Unit:
    def __init__(self) -> None:
        self.variants: list[_Variant] = []
        self.props: dict[str, str] = {}


class _Reader:
    """Expat's events gathered into units; what lies inside one unit is all that is ever in memory."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source_language = ""
        self._ready: list[_Unit] = []
        self._path: list[str] = []
        self._unit = _Unit()
        self._language = self._prop = ""
        self._line = 0
        self._text: list[str] | None = None

    def units(self, file: TextFile, errors: str) -> Iterator[_Unit]:
        """The units, as soon as each is complete."""
        with opened(file) as stream:
            chunk = stream.read(CHUNK)
            replace = errors == "replace" and not chunk.startswith(UTF16_BOMS)
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            self._parser = parser = expat.ParserCreate("utf-8" if replace else None)
            parser.buffer_text = True
            parser.StartElementHandler = self._start
            parser.EndElementHandler = self._end
            parser.CharacterDataHandler = self._characters
            parser.EntityDeclHandler = self._entity
            while True:
                mistake: UserError | None = None
                try:
                    parser.Parse(decoder.decode(chunk, not chunk).encode() if replace else chunk, not chunk)
                except UserError as error:
                    mistake = error
                except expat.ExpatError as error:
                    # str(error) would repeat the line that we tell as file:line.
                    what = expat.errors.messages.get(error.code, str(error))
                    hint = "; if it is a bad byte, --errors replace reads on" if "token" in what and not replace else ""
                    mistake = UserError(f"{self.name}:{error.lineno}: not well-formed XML: {what}{hint}")
                except (LookupError, ValueError) as error:
                    mistake = UserError(f"{self.name}:1: {error}; save the file as UTF-8")
                # What stands before a mistake is good.
                yield from self._ready
                self._ready.clear()
                if mistake:
                    raise mistake
                if not chunk:
                    return
                chunk = stream.read(CHUNK)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._path.append(tag)
        match self._path:
            case [root] if root != "tmx":
                raise self._mistake(f"the root is <{root[:40]}>, expected <tmx>")
            case ["tmx", "header"]:
                self.source_language = attributes.get("srclang", "")
            case ["tmx", "body", "tu"]:
                self._unit = _Unit()
            case ["tmx", "body", "tu", "prop"]:
                self._prop, self._text = attributes.get("type", "prop").removeprefix(PROP_PREFIX), []
            case ["tmx", "body", "tu", "tuv"]:
                # TMX 1.1 wrote `lang`.
                self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
                if not self._language:
                    raise self._mistake("a <tuv> without xml:lang")
            case ["tmx", "body", "tu", "tuv", "seg"]:
                self._line, self._text = self._parser.CurrentLineNumber, []

    def _characters(self, text: str) -> None:
        if self._text is not None and NATIVE_CODE.isdisjoint(self._path[4:]):
            self._text.append(text)

    def _end(self, tag: str) -> None:
        match self._path:
            case ["tmx", "body", "tu", "tuv", "seg"]:
                self._unit.variants.append(_Variant(self._language, "".join(self._text or ()), self._line))
                self._text = None
            case ["tmx", "body", "tu", "prop"]:
                self._unit.props[self._prop] = "".join(self._text or ())
                self._text = None
            case ["tmx", "body", "tu"]:
                self._ready.append(self._unit)
        self._path.pop()

    def _entity(self, name: str, *_: Any) -> None:
        raise self._mistake(f"it declares the entity {name[:40]!r}, which is refused; write the text itself instead")

    def _mistake(self, what: str) -> UserError:
        return UserError(f"{self.name}:{self._parser.CurrentLineNumber}: {what}")


class TmxWriter:
    """Writes pairs as the units of a TMX 1.4 document; extras become `prop`s of the unit.

    Args:
        stream: where to write.
        source: the language of the sources.
        target: the language of the targets.
    """

    def __init__(self, stream: TextIO, source: str, target: str) -> None:
        self._stream = stream
        self._languages = quoteattr(source), quoteattr(target)
        stream.write(
            '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n'
            f'<header creationtool="glassformer" creationtoolversion="{WRITER_VERSION}" segtype="sentence" '
            f'o-tmf="plain" adminlang="en" srclang={self._languages[0]} datatype="plaintext"/>\n<body>\n'
        )

    def write(self, located: Located) -> None:
        """Write one unit.

        Raises:
            UserError: a character that XML 1.0 has no way to write.
        """
        props = "".join(
            f"<prop type={quoteattr(PROP_PREFIX + name)}>{_escape(str(value), located.source_at)}</prop>"
            for name, value in located.extra.items()
        )
        variants = "".join(
            f"<tuv xml:lang={language}><seg>{_escape(text, at)}</seg></tuv>"
            for language, text, at in zip(
                self._languages, located.pair, (located.source_at, located.target_at), strict=True
            )
        )
        self._stream.write(f"<tu>{props}{variants}</tu>\n")

    def close(self) -> None:
        """Write what ends the document."""
        self._stream.write("</body>\n</tmx>\n")


def _escape(text: str, at: str) -> str:
    bad = NOT_XML.search(text)
    if bad:
        raise UserError(
            f"{at}: U+{ord(bad[0]):04X} cannot be written in XML; `glassformer data clean` removes control characters"
        )
    # A bare carriage return would be read back as a line feed.
    return escape(text, {"\r": "&#13;"})

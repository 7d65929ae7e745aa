"""Terms with the translations that they must have."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from glassformer.data.lines import read_lines
from glassformer.errors import UserError
from glassformer.text.lazy import lazy
from glassformer.text.recipe import SPACELESS
from glassformer.text.script import detect_language

# A letter of a script with spaces: a term does not begin or end beside one, as `cat` does in `concatenate`.
_LETTER = rf"[^\W{SPACELESS}]"

WIDE = lazy(rf"[{SPACELESS}\u3000-\u303f\uff00-\uffef]")
_BEGIN = lazy(r"[.!?][\"'”’)\]]*\s+[\"'“‘(\[]*$")


class Term(NamedTuple):
    """Where a term stands in a text, and the translation that it must have."""

    start: int
    end: int
    translation: str


class Glossary:
    """Terms and their translations, for every direction between the two languages of their columns.

    Args:
        entries: a term in one language and in the other; of several for one term the first counts. The first entry may
            be the two languages' codes. If it is not, the script of each column tells its language, and where that
            does not either, the columns are the model's source and target.
    """

    def __init__(self, entries: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        self._entries = [(first.strip(), second.strip()) for first, second in pairs]
        if not all(first and second for first, second in self._entries):
            raise UserError("--glossary: a term or its translation is blank")
        self._table = cache(self._table_of)

    @classmethod
    def of(cls, glossary: Glossary | Mapping[str, str]) -> Glossary:
        """A glossary as it is, or one of a dictionary's entries."""
        return glossary if isinstance(glossary, Glossary) else cls(glossary)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Glossary:
        """Reads a TSV: a term, a tab, its translation; blank lines and further columns are passed over.

        Raises:
            UserError: naming file and line, where a column is missing or blank.
        """
        entries = []
        for number, line in enumerate(read_lines(path), 1):
            columns = [column.strip() for column in line.split("\t")]
            if not any(columns):
                continue
            if len(columns) < 2 or not (columns[0] and columns[1]):
                raise UserError(
                    f"{os.fspath(path)}:{number}: expected a term, a tab and its translation (--glossary), "
                    f"got {line.strip()!r:.60}"
                )
            entries.append((columns[0], columns[1]))
        return cls(entries)

    def find(self, text: str, direction: tuple[str, str] | None, directions: Sequence[tuple[str, str]]) -> list[Term]:
        """The terms of a text, in its order; a longer term goes before those inside of it.

        Args:
            text: what is translated.
            direction: from which language into which; None where the model names no languages.
            directions: all those of the model.
        """
        pattern, table = self._table(direction, tuple(directions))
        if pattern is None:
            return []
        found = ((match, table.get(match[0].casefold())) for match in pattern.finditer(text))
        return [Term(*match.span(), translation) for match, translation in found if translation is not None]

    def forced(self, text: str, direction: tuple[str, str] | None, directions: Sequence[tuple[str, str]]) -> list[str]:
        """The translations that a text's terms must have, each once; arguments as in `find`."""
        return list(dict.fromkeys(term.translation for term in self.find(text, direction, directions)))

    def _table_of(
        self, direction: tuple[str, str] | None, directions: tuple[tuple[str, str], ...]
    ) -> tuple[re.Pattern[str] | None, dict[str, str]]:
        first, entries = self._first_language(directions)
        table: dict[str, str] = {}
        for pair in entries:
            term, translation = pair if direction is None or direction[0] == first else pair[::-1]
            table.setdefault(term.casefold(), translation)
        if not table:
            return None, table
        terms = sorted(table, key=len, reverse=True)
        return re.compile("|".join(map(_whole, terms)), re.IGNORECASE), table

    def _first_language(self, directions: Sequence[tuple[str, str]]) -> tuple[str | None, list[tuple[str, str]]]:
        """The language of the first column, and the entries without a first line that names the languages."""
        if not directions or not self._entries:
            return None, self._entries
        pair = directions[0]
        if self._entries[0] in (pair, pair[::-1]):
            return self._entries[0][0], self._entries[1:]
        found = tuple(detect_language("\n".join(column), pair) for column in zip(*self._entries, strict=True))
        return (pair[1] if found == pair[::-1] else pair[0]), self._entries


def capitalised(translation: str) -> str:
    """A term's translation as it begins a sentence: with a capital, unless it has capitals of its own."""
    return translation[0].upper() + translation[1:] if translation == translation.lower() else translation


def opens_sentence(before: str, text: str) -> bool:
    """Whether what follows `before` begins a sentence of a text whose script has capitals."""
    return bool(text.strip()) and not WIDE.search(text) and bool(_BEGIN.search((". " + before)[-12:]))


def holds(text: str, translation: str) -> bool:
    """Whether a text holds a term's translation, as it stands, with a capital at its beginning, or in the plural."""
    return bool(_held(translation).search(text))


@lru_cache(maxsize=4096)
def _held(translation: str) -> re.Pattern[str]:
    forms = dict.fromkeys((translation, capitalised(translation)))
    return re.compile("|".join(_whole(form, "(?:e?s)?") for form in forms))


def _whole(term: str, ending: str = "") -> str:
    """A regular expression of a term, of whole words where its script has spaces."""
    before = f"(?<!{_LETTER})" if re.match(_LETTER, term[0]) else ""
    after = f"{ending}(?!{_LETTER})" if re.match(_LETTER, term[-1]) else ""
    return before + re.escape(term) + after

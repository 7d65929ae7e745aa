"""Dropping the pairs that would teach a model something false, each for a reason that is counted."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from statistics import median

from glassformer.data.characters import script_share, strip_control
from glassformer.data.digests import DigestSet, blind_key, pair_digest
from glassformer.data.lines import Located, Pair
from glassformer.errors import UserError

SAMPLE = 10_000
"""Pairs from the start that tell the usual ratio of lengths."""
SLACK = 10
"""Characters added to both lengths before they are compared: a short answer may well be three times its translation."""
REASONS = ("empty", "too long", "identical", "length ratio", "wrong script", "duplicate")
EDITS = ("control characters", "not NFC")


@dataclass(frozen=True)
class CleanConfig:
    """Which pairs to drop, and what to mend in those that stay.

    Attributes:
        duplicates: drop a pair seen before: `exact`ly, or `blind` to case, width, punctuation and spaces; or `keep`.
        drop_identical: drop a pair whose sides are the same but for case, width, punctuation and spaces.
        length_ratio: drop a pair when one side is more than so many times as long as the other (characters, the source
            scaled by the corpus's median target/source ratio, `SLACK` added to each); 0 is off.
        max_chars: drop a pair with more characters on either side; 0 is off.
        script_share: drop a pair when a smaller share of a side's words is in its language's script; 0 is off.
        strip_control: remove control and zero-width characters; a tab or line break within a text becomes a space.
        nfc: bring both sides to Unicode's composed form, NFC.
    """

    duplicates: str = "exact"
    drop_identical: bool = True
    length_ratio: float = 3.0
    max_chars: int = 1000
    script_share: float = 0.5
    strip_control: bool = True
    nfc: bool = False

    def __post_init__(self) -> None:
        if self.duplicates not in ("exact", "blind", "keep"):
            raise UserError(f"--duplicates {self.duplicates}: expected exact, blind, or keep")
        if self.length_ratio and not self.length_ratio >= 1:
            raise UserError(f"--length-ratio {self.length_ratio}: must be 1 or more, or 0 for no such filter")
        if self.max_chars < 0:
            raise UserError(f"--max-chars {self.max_chars}: must be 1 or more, or 0 for no such filter")
        if not 0 <= self.script_share <= 1:
            raise UserError(f"--script-share {self.script_share}: must be from 0 (no such filter) to 1")


class Cleaner:
    """One pass over a corpus: a pure function of the pairs' order and the config.

    Memory holds the first `SAMPLE` pairs and a digest of each pair kept: 17 MB a million, 25 MB while the table grows.

    Args:
        config: which filters to use.
        languages: codes of source and target; None turns the filter by script off.

    Attributes:
        read: pairs so far.
        dropped: pairs by reason; a pair has the first reason of `REASONS` that applies.
        edited: kept pairs by what was mended in them.
        median_ratio: the corpus's usual target/source ratio of characters, once reading has begun.
    """

    def __init__(self, config: CleanConfig, languages: tuple[str, str] | None = None) -> None:
        self.config, self.languages = config, languages
        self.read = 0
        self.dropped, self.edited = Counter(dict.fromkeys(REASONS, 0)), Counter(dict.fromkeys(EDITS, 0))
        self.median_ratio = 1.0
        self._seen = DigestSet()

    @property
    def kept(self) -> int:
        """Pairs that stayed."""
        return self.read - self.dropped.total()

    def clean(self, rows: Iterable[Located]) -> Iterator[tuple[Located, str]]:
        """Yield each pair as mended, outer spaces gone, with the reason to drop it, or `""` to keep it."""
        rows = iter(rows)
        sample = list(islice(rows, SAMPLE))
        lengths = [(len(row.pair.source.strip()), len(row.pair.target.strip())) for row in sample]
        self.median_ratio = median([target / source for source, target in lengths if source and target] or [1.0])
        for row in chain(sample, rows):
            self.read += 1
            pair, edits = self._mend(row.pair)
            reason = self._reason(pair)
            if reason:
                self.dropped[reason] += 1
            else:
                self.edited.update(edits)
            yield row._replace(pair=pair), reason

    def _mend(self, pair: Pair) -> tuple[Pair, list[str]]:
        edits = []
        pair = Pair(pair.source.strip(), pair.target.strip())
        if self.config.strip_control:
            mended = Pair(*(strip_control(side).strip() for side in pair))
            if mended != pair:
                edits.append("control characters")
            pair = mended
        if self.config.nfc:
            mended = Pair(*(unicodedata.normalize("NFC", side) for side in pair))
            if mended != pair:
                edits.append("not NFC")
            pair = mended
        return pair, edits

    def _reason(self, pair: Pair) -> str:
        config = self.config
        source, target = pair
        if not source or not target:
            return "empty"
        if config.max_chars and max(len(source), len(target)) > config.max_chars:
            return "too long"
        blind: tuple[str, str] | None = None
        if config.drop_identical or config.duplicates == "blind":
            blind = blind_key(source), blind_key(target)
            if config.drop_identical and blind[0] == blind[1]:
                return "identical"
        if config.length_ratio:
            short, long = sorted((len(source) * self.median_ratio + SLACK, len(target) + SLACK))
            if long > config.length_ratio * short:
                return "length ratio"
        if config.script_share and self.languages:
            for side, language in zip(pair, self.languages, strict=True):
                if script_share(side, language) < config.script_share:
                    return "wrong script"
        if config.duplicates != "keep":
            key = blind if config.duplicates == "blind" and blind else (source, target)
            if not self._seen.add(pair_digest(*key)):
                return "duplicate"
        return ""

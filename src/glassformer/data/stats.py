"""What a parallel corpus is made of, counted in one pass."""

import math
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from glassformer.data.characters import own_scripts, script_share, scripts_in, strip_control
from glassformer.data.digests import DigestSet, blind_key, digest, leak_key, pair_digest
from glassformer.data.lines import Located, Pair

PERCENTILES = (0, 1, 5, 25, 50, 75, 95, 99, 100)
OWN_SCRIPT = 0.5
RATIO_STEP = 0.01
EXAMPLES = 3
SHARED = ("same_pair", "near_pair", "same_source", "near_source", "same_target", "near_target")


class Encodes(Protocol):
    """Anything that gives a text's ids, such as a `Tokenizer`."""

    def encode(self, text: str) -> Sequence[int]: ...


def percentiles(counts: Counter[int], points: Iterable[int] = PERCENTILES) -> dict[str, int]:
    """For each p the smallest value that at least p % of the values do not exceed (nearest rank); empty for none."""
    values = sorted(counts)
    below = list(accumulate(counts[value] for value in values))
    if not below:
        return {}
    found = {}
    for point in points:
        rank = max(1, math.ceil(point * below[-1] / 100))
        found[f"p{point}"] = values[next(i for i, total in enumerate(below) if total >= rank)]
    return found


class SideStatistics:
    """One side of a corpus.

    Args:
        language: its code; None to count no wrong script.
        tokenizer: to count tokens; None for none.
    """

    def __init__(self, language: str | None, tokenizer: Encodes | None = None) -> None:
        self.language, self.tokenizer = language, tokenizer
        self.lengths: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.characters: Counter[str] = Counter()
        self.scripts: Counter[frozenset[str]] = Counter()
        self.words = self.blank = self.wrong_script = self.control = self.not_nfc = 0

    def add(self, text: str) -> None:
        """Count one text, outer spaces aside."""
        text = text.strip()
        self.lengths[len(text)] += 1
        self.characters.update(text)
        self.words += len(text.split())
        self.blank += not text
        self.control += strip_control(text) != text
        self.not_nfc += not unicodedata.is_normalized("NFC", text)
        scripts = frozenset(scripts_in(text))
        self.scripts[scripts] += 1
        if self.language and not scripts <= own_scripts(self.language):
            self.wrong_script += script_share(text, self.language) < OWN_SCRIPT
        if self.tokenizer:
            self.tokens[len(self.tokenizer.encode(text))] += 1

    def report(self) -> dict[str, Any]:
        """The counts under their names; lengths are in characters."""
        counts = sorted(self.characters.values(), reverse=True)
        total, held = sum(counts), list(accumulate(counts))
        report: dict[str, Any] = {
            "characters": total,
            "words": self.words,
            "length": percentiles(self.lengths),
            "blank": self.blank,
            "wrong_script": self.wrong_script if self.language else None,
            "mixed_scripts": sum(count for scripts, count in self.scripts.items() if len(scripts) > 1),
            "scripts": {"+".join(sorted(names)) or "none": count for names, count in self.scripts.most_common()},
            "control": self.control,
            "not_nfc": self.not_nfc,
            "alphabet": {
                "distinct": len(counts),
                "once": counts.count(1),
                "under_5": sum(count < 5 for count in counts),
                # How many of the commonest characters make up this share of the text.
                **{f"cover_{s}": sum(100 * h < s * total for h in held) + 1 if total else 0 for s in (99, 99.9, 99.99)},
            },
        }
        if self.tokenizer:
            report["tokens"] = sum(length * count for length, count in self.tokens.items())
            report["length_in_tokens"] = percentiles(self.tokens)
        return report


class Statistics:
    """A corpus, pair by pair; memory grows by four digests of eight bytes a pair, twice that while they are reported.

    Args:
        languages: codes of source and target, if known.
        tokenizer: to count tokens; None for none.
    """

    def __init__(self, languages: tuple[str, str] | None = None, tokenizer: Encodes | None = None) -> None:
        source, target = languages or (None, None)
        self.pairs = self.blank = self.identical = 0
        self.sides = SideStatistics(source, tokenizer), SideStatistics(target, tokenizer)
        self._ratios: Counter[int] = Counter()
        # Of both sides, of both but for spelling, and of each side.
        self._exact, self._blind, self._source, self._target = (array("Q") for _ in range(4))

    def add(self, pair: Pair) -> None:
        """Count one pair; one that is blank on both sides counts as blank and as nothing else."""
        texts = pair.source.strip(), pair.target.strip()
        if not any(texts):
            self.blank += 1
            return
        self.pairs += 1
        for side, text in zip(self.sides, texts, strict=True):
            side.add(text)
        if not all(texts):
            return
        self._ratios[round(math.log(len(texts[1]) / len(texts[0])) / RATIO_STEP)] += 1
        blind = blind_key(texts[0]), blind_key(texts[1])
        self.identical += blind[0] == blind[1]
        self._blind.append(pair_digest(*blind))
        self._exact.append(pair_digest(*texts))
        self._source.append(digest(texts[0]))
        self._target.append(digest(texts[1]))

    def report(self) -> dict[str, Any]:
        """Everything counted, ready for JSON; ratios are target / source in characters, to 1 %."""
        source, target = self.sides
        ratios = percentiles(self._ratios)
        _, first = np.unique(self._exact, return_index=True)
        _, several_targets = np.unique(np.asarray(self._source)[first], return_counts=True)
        _, several_sources = np.unique(np.asarray(self._target)[first], return_counts=True)
        return {
            "pairs": self.pairs,
            "blank": self.blank,
            "languages": [source.language, target.language] if source.language else None,
            "source": source.report(),
            "target": target.report(),
            "length_ratio": {name: round(math.exp(value * RATIO_STEP), 3) for name, value in ratios.items()},
            "duplicates": len(self._exact) - len(first),
            "blind_duplicates": len(self._blind) - len(np.unique(self._blind)),
            "identical": self.identical,
            "sources_with_several_targets": int(np.count_nonzero(several_targets > 1)),
            "targets_with_several_sources": int(np.count_nonzero(several_sources > 1)),
        }


class Overlap:
    """What other corpora share with one, such as tests with a training set; memory holds six digests a pair.

    `same` is equal but for outer spaces; `near` is equal by `leak_key`.

    Args:
        languages: codes of source and target, if known.
    """

    def __init__(self, languages: tuple[str, str] | None = None) -> None:
        self._languages = languages or ("", "")
        self._known = {name: DigestSet() for name in SHARED}

    def add(self, pair: Pair) -> None:
        """Add a pair of the corpus that others are compared with."""
        for name, key in self._keys(pair).items():
            self._known[name].add(key)

    def compare(self, rows: Iterable[Located]) -> dict[str, Any]:
        """Count the pairs of another corpus that share something, and name the places of the first few."""
        found = Counter(dict.fromkeys(["pairs", "any", *SHARED], 0))
        examples: list[str] = []
        for row in rows:
            keys = self._keys(row.pair)
            found["pairs"] += bool(keys)
            shared = [name for name, key in keys.items() if key in self._known[name]]
            found.update([*shared, *["any"] * bool(shared)])
            if shared and len(examples) < EXAMPLES:
                examples.append(row.source_at)
        return {**found, "examples": examples}

    def _keys(self, pair: Pair) -> dict[str, int]:
        source, target = pair.source.strip(), pair.target.strip()
        if not (source and target):
            return {}
        near = leak_key(source, self._languages[0]), leak_key(target, self._languages[1])
        values = pair_digest(source, target), pair_digest(*near), *map(digest, (source, near[0], target, near[1]))
        return dict(zip(SHARED, values, strict=True))

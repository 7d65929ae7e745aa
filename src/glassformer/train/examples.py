"""From parallel text to training examples."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import NamedTuple

from glassformer.data.corpus import Pair, read_pairs
from glassformer.errors import UserError
from glassformer.header import Framing, Translation
from glassformer.text.bpe_dropout import BpeDropout
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.config import Corpus, DataSection, TokenizerSection
from glassformer.train.masking import Masking


class Example(NamedTuple):
    """One source and target as ids; the source carries its special tokens, the target gets them when collated."""

    source: list[int]
    target: list[int]


def read_corpus(entries: Corpus, data: DataSection) -> list[Pair]:
    """Reads the files of ``data.train`` or ``data.dev`` in order."""
    pairs: list[Pair] = []
    for entry in [entries] if isinstance(entries, str) else entries:
        path, target_path = (entry, None) if isinstance(entry, str) else entry
        pairs += read_pairs(path, target_path, source=data.source, target=data.target)
    return pairs


def make_tokenizer(section: TokenizerSection, pairs: Sequence[Pair], translation: Translation) -> Tokenizer:
    """Loads the tokenizer that the config names, or learns one from both sides of the text."""
    if section.source is None:
        texts = (text for pair in pairs for text in pair)
        return Tokenizer.train(texts, languages=_tags(translation), **section.model_dump(exclude={"source"}))
    tokenizer = Tokenizer.load(section.source)
    check_tokenizer(tokenizer, translation, section.source)
    return tokenizer


def _tags(translation: Translation) -> list[str]:
    return [translation.source, translation.target] if translation.both_directions else []


def check_tokenizer(
    tokenizer: Tokenizer, translation: Translation, where: str | os.PathLike[str], framing: Framing | None = None
) -> None:
    """Refuses a tokenizer without the special tokens that training needs, unless the model's framing has them."""
    languages = _tags(translation)
    missing = [f"<2{code}>" for code in languages if code not in tokenizer.language_ids]
    framed = framing is not None and framing.start is not None and framing.ends
    needed = ("pad_id",) if framed else ("pad_id", "bos_id", "eos_id")
    missing += [name for name in needed if getattr(tokenizer, name) is None]
    if missing:
        raise UserError(
            f"{where}: the tokenizer lacks {', '.join(missing)}; train one with "
            f"glassformer tokenizer train --languages {','.join(languages) or 'zh,en'}"
        )


class Examples:
    """A parallel text as examples, masked and segmented anew for each epoch when masking and BPE dropout are on.

    Each pair is one example for each direction of the translation. What an epoch holds is a pure function of the text,
    the seed and the epoch, so that a resumed run sees what an uninterrupted one would have seen.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizer: Tokenizer,
        translation: Translation,
        bpe_dropout: float = 0.0,
        masking: Masking | None = None,
        around: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        """Args:
        around: What a source begins and ends with; by default nothing, and ``</s>``.
        """
        self._pairs = pairs
        self._masking = masking
        self._tokenizer = tokenizer
        self._translation = translation
        ends = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
        self._before, self._after = around or ((), ends)
        self._dropout = BpeDropout(tokenizer, bpe_dropout) if bpe_dropout else None

    def plain(self) -> list[Example]:
        """Every example, unmasked and in the segmentation that translation uses."""
        return self._plain(self._pairs)

    def sampled(self, seed: int, epoch: int, *, dropout: bool = True) -> list[Example]:
        """Every example with the masks and, if `dropout`, the segmentation drawn for this epoch."""
        pairs = self._masking.epoch(seed, epoch) if self._masking else self._pairs
        if self._dropout is None or not dropout:
            return self._plain(pairs)
        rng = random.Random(f"bpe/{seed}/{epoch}")
        sides = [[self._dropout.encode(text, rng) for text in pair] for pair in pairs]
        return self._directed([side[0] for side in sides], [side[1] for side in sides])

    def _plain(self, pairs: Sequence[Pair]) -> list[Example]:
        sources = self._tokenizer.encode_batch([pair.source for pair in pairs])
        targets = self._tokenizer.encode_batch([pair.target for pair in pairs])
        return self._directed(sources, targets)

    def _directed(self, sources: list[list[int]], targets: list[list[int]]) -> list[Example]:
        examples: list[Example] = []
        for origin, goal in self._translation.directions:
            read, written = (sources, targets) if origin == self._translation.source else (targets, sources)
            prefix = [*self._before, *self._translation.tag(goal, self._tokenizer)]
            examples += [Example([*prefix, *a, *self._after], b) for a, b in zip(read, written, strict=True)]
        return examples


def thin_reverse(examples: list[Example], forward: int, share: float, seed: int, epoch: int) -> list[Example]:
    """Keeps the first ``forward`` examples and a random share of the others, which are in the reverse direction."""
    if share == 1.0:
        return examples
    rng = random.Random(f"reverse/{seed}/{epoch}")
    return examples[:forward] + [example for example in examples[forward:] if rng.random() < share]

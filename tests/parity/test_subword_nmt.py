"""The published reference of subword-nmt (Sennrich et al. 2016): 1,000 merges, and a corpus segmented with them.

`learn_merges` reproduces both exactly. The `bpe` kind is trained by the `tokenizers` library, whose definition differs
in one point: of equally frequent pairs it takes the one made of the oldest pieces, not the lexicographically largest.
What that changes is measured here: no frequency, and after the first tie only which of the equals comes first.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from glassformer.text.merges import END_OF_WORD, learn_merges


@pytest.fixture
def golden(shared: Path) -> Path:
    folder = shared / "data/golden_tests/subword-nmt"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent")
    return folder


def _lines(file: Path) -> list[str]:
    return [line.strip("\r\n ") for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


def _words(golden: Path) -> dict[tuple[str, ...], int]:
    counts = Counter(word for line in _lines(golden / "corpus.en") for word in line.split(" ") if word)
    return {(*word[:-1], word[-1] + END_OF_WORD): count for word, count in counts.items()}


def _reference(golden: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split(" ")) for line in _lines(golden / "bpe.ref")[1:]]


def test_merges_equal_the_reference(golden: Path) -> None:
    reference = _reference(golden)
    assert len(reference) == 1000
    assert learn_merges(_words(golden), 1000) == reference


def test_segmentation_equals_the_reference(golden: Path) -> None:
    words = _words(golden)
    merges = learn_merges(words, 1000)
    symbols = {symbol for word in words for symbol in word} | {char for word in words for char in "".join(word)}
    pieces = sorted(symbols.union(*merges, (left + right for left, right in merges)))
    backend = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, end_of_word_suffix=END_OF_WORD)
    )
    backend.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    ours = [
        " ".join(
            piece.removesuffix(END_OF_WORD) if piece.endswith(END_OF_WORD) else piece + "@@"
            for piece in backend.encode(line).tokens
        )
        for line in _lines(golden / "corpus.en")
    ]
    assert ours == _lines(golden / "corpus.bpe.ref.en")


def test_the_library_differs_only_in_its_choice_among_equals(golden: Path) -> None:
    backend = Tokenizer(models.BPE(end_of_word_suffix=END_OF_WORD))
    backend.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    trainer = trainers.BpeTrainer(vocab_size=1200, end_of_word_suffix=END_OF_WORD, show_progress=False)
    backend.train_from_iterator(_lines(golden / "corpus.en"), trainer)
    library = [tuple(merge) for merge in json.loads(backend.to_str())["model"]["merges"]][:1000]
    reference = _reference(golden)
    parting = next(i for i, (a, b) in enumerate(zip(library, reference, strict=True)) if a != b)
    assert parting == 14
    assert len(set(library) & set(reference)) == 879

    counts = _pair_counts_after(_words(golden), reference[:parting])
    assert counts[library[parting]] == counts[reference[parting]] == max(counts.values())


def _pair_counts_after(words: dict[tuple[str, ...], int], merges: list[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    """Pair counts from scratch: slow, and independent of the incremental ones."""
    counts: Counter[tuple[str, ...]] = Counter()
    for word, frequency in words.items():
        symbols = list(word)
        for left, right in merges:
            at = 0
            while at < len(symbols) - 1:
                if (symbols[at], symbols[at + 1]) == (left, right):
                    symbols[at : at + 2] = [left + right]
                at += 1
        for pair in zip(symbols, symbols[1:], strict=False):
            counts[pair] += frequency
    return counts

"""How well alignments agree with a small Chinese–English dictionary, on real pairs of sentences.

    python -m tests.oracles.dictionary MODEL PAIRS.tsv

prints it for every choice of layers and each way of choosing links, which is how a model's default is found.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence

from glassformer.text.words import words

# Concrete words, whose translation hardly varies.
DICTIONARY = {
    "学校": "school schools",
    "老师": "teacher teachers",
    "学生": "student students",
    "书": "book books",
    "水": "water",
    "狗": "dog dogs",
    "猫": "cat cats",
    "朋友": "friend friends",
    "日本": "japan",
    "英语": "english",
    "法语": "french",
    "音乐": "music",
    "医生": "doctor doctors",
    "今天": "today",
    "明天": "tomorrow",
    "昨天": "yesterday",
    "钱": "money",
    "房子": "house",
    "车": "car cars",
    "妈妈": "mother mom mum",
    "父亲": "father",
    "孩子": "child children",
    "火车": "train trains",
    "三": "three",
    "两": "two",
    "红": "red",
    "白": "white",
    "波士顿": "boston",
    "问题": "problem problems question questions",
    "咖啡": "coffee",
    "苹果": "apple apples",
    "城市": "city cities",
    "医院": "hospital",
    "电影": "movie movies film films",
    "篮球": "basketball",
    "足球": "football soccer",
    "汤姆": "tom tom's",
    "玛丽": "mary mary's",
    "现在": "now",
    "总是": "always",
    "喜欢": "like likes liked",
    "知道": "know knows knew",
}


def known(chinese: str, english: str) -> list[tuple[set[int], int]]:
    """The numbers of the Chinese words and of the English word of each dictionary entry in a pair, if it is unique."""
    zh, en = [word.text for word in words(chinese)], [word.text.lower() for word in words(english)]
    found = []
    for term, translations in DICTIONARY.items():
        starts = [i for i in range(len(zh)) if zh[i : i + len(term)] == list(term)]
        places = [i for i, word in enumerate(en) if word in translations.split()]
        longer = any(term in other and other in chinese for other in DICTIONARY if other != term)
        if len(starts) == len(places) == 1 and not longer:
            found.append((set(range(starts[0], starts[0] + len(term))), places[0]))
    return found


def agreement(rows: Iterable[tuple[Sequence[tuple[set[int], int]], Iterable[tuple[int, int]]]]) -> tuple[float, float]:
    """Precision and recall of (Chinese word, English word) links at dictionary entries.

    Args:
        rows: what `known` says of a pair, and its links.

    Returns:
        The share of links at one end of an entry that have the other end there too, and the share of entries that have
        such a link. Articles and particles, linked rightly to a noun, keep the first well below 1.
    """
    inside = touching = hits = entries = 0
    for known_terms, links in rows:
        pairs = list(links)
        for term, word in known_terms:
            good = sum(z in term and e == word for z, e in pairs)
            inside, hits, entries = inside + good, hits + bool(good), entries + 1
            touching += sum(z in term or e == word for z, e in pairs)
    return inside / max(touching, 1), hits / max(entries, 1)


def pairs_with_entries(lines: Iterable[str], n: int) -> list[tuple[str, str]]:
    """The first `n` pairs of a TSV with zh and en columns that hold a dictionary entry."""

    def candidates() -> Iterator[tuple[str, str]]:
        for line in itertools.islice(lines, 1, None):
            chinese, english, *_ = line.rstrip("\n").split("\t")
            if known(chinese, english):
                yield chinese, english

    return list(itertools.islice(candidates(), n))


def main(model_path: str, tsv: str) -> None:
    from glassformer.alignment import align_texts
    from glassformer.generate.align import METHODS
    from glassformer.store import load_model

    loaded = load_model(model_path)
    model, tokenizer = loaded.model.eval(), loaded.tokenizer
    with open(tsv, encoding="utf-8") as lines:
        pairs = pairs_with_entries(lines, 200)
    entries = [known(*pair) for pair in pairs]
    ids = {language: [[tokenizer.language_ids[language]]] * len(pairs) for language in ("zh", "en")}
    n_layers = len(model.config.decoder.blocks)
    for layers in (c for k in range(1, n_layers + 1) for c in itertools.combinations(range(n_layers), k)):
        for method in METHODS:
            options = dict(layers=layers, method=method)
            swapped = [pair[::-1] for pair in pairs]
            forward = [a.links for a in align_texts(model, tokenizer, pairs, ids["en"], **options)]
            backward = [a.links for a in align_texts(model, tokenizer, swapped, ids["zh"], **options)]
            both = [a.links for a in align_texts(model, tokenizer, pairs, ids["en"], ids["zh"], **options)]
            turned = [[(z, e) for e, z in links] for links in backward]
            for way, found in (("zh-en", forward), ("en-zh", turned), ("both", both)):
                precision, recall = agreement(zip(entries, found, strict=True))
                print(f"layers {layers} {method:12} {way:5} precision {precision:.3f} recall {recall:.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

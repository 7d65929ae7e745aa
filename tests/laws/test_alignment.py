"""Alignments: attention that is known gives the links that it spells, alone or in a batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import sentencepiece
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.alignment import align_texts, cross_attention
from glassformer.api import bundled_models, load
from glassformer.config import ModelConfig
from glassformer.errors import UserError
from glassformer.generate.align import METHODS, from_pharaoh, to_pharaoh, word_links
from glassformer.models.build import build_model
from glassformer.text.sentencepiece import SentencePieceTokenizer
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.words import pieces_to_words, words
from tests.oracles.dictionary import agreement, known, pairs_with_entries
from tests.randomised import random_model

LINES = [
    "我们喜欢打篮球。",
    "We like playing basketball, don't we?",
    "我爱你，你爱我。",
    "I love you and you love me.",
] * 3
SIZE = 16


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES, vocab_size=360, languages=("zh", "en"), min_frequency=1)


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory) -> SentencePieceTokenizer:
    prefix = tmp_path_factory.mktemp("sp") / "model"
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES), model_prefix=str(prefix), vocab_size=75, hard_vocab_limit=False, minloglevel=2
    )
    return SentencePieceTokenizer.read(prefix.with_suffix(".model"))


@pytest.fixture(params=["tokenizer", "sentence_piece"], scope="module")
def any_tokenizer(request) -> Tokenizer:
    return request.getfixturevalue(request.param)


@settings(max_examples=30)
@given(st.text())
def test_words_are_all_of_a_text_but_its_blanks(text):
    found = words(text)
    edges = [0, *itertools.chain.from_iterable((word.start, word.end) for word in found), len(text)]
    assert edges == sorted(edges)
    assert all(word.text == text[word.start : word.end] and word.text for word in found)
    assert not any(word.text != "".join(word.text.split()) for word in found)
    assert "".join(word.text for word in found) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I don't like 3.14, well-known.", "I|don't|like|3.14|,|well-known|."),
        ("我用Python写代码。", "我|用|Python|写|代|码|。"),
        ("'quoted' e\u0301t\u00e9 - 1,000", "'|quoted|'|e\u0301t\u00e9|-|1,000"),
        ("हिन्दी ok", "हिन्दी|ok"),
        (" \n", ""),
    ],
)
def test_what_a_word_is(text, expected):
    assert "|".join(word.text for word in words(text)) == expected


@settings(max_examples=30)
@given(data=st.data())
def test_a_words_pieces_are_the_fewest_that_spell_it(any_tokenizer, data):
    text = "".join(data.draw(st.lists(st.sampled_from([*"".join(LINES), " We like", "喜欢"]), max_size=20)))
    text = " ".join(text.split())
    ids = any_tokenizer.encode(text)

    def reach(count: int) -> int:
        """How much of the text the first pieces spell."""
        return len(any_tokenizer.decode(ids[:count]).rstrip())

    for word, pieces in pieces_to_words(any_tokenizer, text):
        assert pieces
        assert reach(pieces.start) <= word.start < reach(pieces.start + 1)
        assert reach(pieces.stop - 1) < word.end <= reach(pieces.stop)


@settings(max_examples=30)
@given(text=st.text(max_size=30))
def test_pieces_of_any_text_are_in_range_and_in_order(any_tokenizer, text):
    found = pieces_to_words(any_tokenizer, text)
    assert [word for word, _ in found] == words(text)
    bounds = [bound for _, pieces in found if pieces for bound in (pieces.start, pieces.stop - 1)]
    assert bounds == sorted(bounds)
    assert all(0 <= bound < len(any_tokenizer.encode(text)) for bound in bounds)


def singles(n: int, first: int = 0) -> list[range]:
    return [range(i, i + 1) for i in range(first, first + n)]


def naive_mutual(matrix):
    """Pairs that are the largest of their row and of their column, the first of equals."""
    columns = list(zip(*matrix, strict=True))
    return {
        (s, t)
        for t, row in enumerate(matrix)
        for s, column in enumerate(columns)
        if row[s] > 0 and row.index(max(row)) == s and column.index(max(column)) == t
    }


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10_000))
def test_each_method_is_its_definition(n, m, seed):
    matrix = np.random.default_rng(seed).random((n, m))
    shares = (matrix / matrix.sum(1, keepdims=True)).tolist()
    best = {(max(range(m), key=shares[t].__getitem__), t) for t in range(n)}
    first = naive_mutual(shares)
    sources, targets = {s for s, _ in first}, {t for _, t in first}
    factor = {0: 1.0, 1: 0.9, 2: 0.0}
    left = [[shares[t][s] * factor[(s in sources) + (t in targets)] for s in range(m)] for t in range(n)]
    expected = {"argmax": best, "intersection": first, "itermax": first | naive_mutual(left)}
    for method in METHODS:
        assert word_links(matrix, singles(m), singles(n), method) == sorted(expected[method]), method


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(0, 10_000), st.sampled_from(METHODS), st.randoms(use_true_random=False))
def test_permuted_source_words_permute_the_links(n, seed, method, random):
    matrix = np.random.default_rng(seed).random((4, n))
    order = list(range(n))
    random.shuffle(order)
    plain = word_links(matrix, singles(n), singles(4), method)
    permuted = word_links(matrix[:, order], singles(n), singles(4), method)
    assert sorted((order[s], t) for s, t in permuted) == plain


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from(METHODS))
def test_what_goes_to_special_tokens_is_scaled_away(seed, method):
    rng = np.random.default_rng(seed)
    matrix = rng.random((5, 4))
    framed = np.hstack([9 * rng.random((5, 1)), matrix * rng.uniform(0.01, 1, (5, 1)), 9 * rng.random((5, 1))])
    assert word_links(framed, singles(4, first=1), singles(5), method) == word_links(
        matrix, singles(4), singles(5), method
    )


def test_a_word_that_gives_all_to_special_tokens_has_no_link():
    matrix = [[1.0, 0.0, 0.0], [0.2, 0.5, 0.3]]
    assert word_links(matrix, singles(2, first=1), singles(2)) == [(0, 1)]


def test_words_that_share_a_piece_are_linked_as_one_and_pieces_of_a_word_count_together():
    matrix = [[0.4, 0.3, 0.3], [0.9, 0.1, 0.0], [0.0, 0.0, 1.0]]
    source = [range(0, 1), range(0, 1), range(1, 3), range(3, 3)]
    assert word_links(matrix, source, [range(0, 1), range(1, 2), range(2, 3)]) == [(0, 1), (1, 1), (2, 0), (2, 2)]
    assert word_links(matrix, source, [range(0, 2), range(2, 3)]) == [(0, 0), (1, 0), (2, 1)]


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500))))
def test_pharaoh_round_trip(links):
    assert from_pharaoh(to_pharaoh(links)) == links


@pytest.mark.parametrize("line", ["0-1 2", "a-b", "1--2", "0-1-2", "-1-2", "٣-1"])
def test_what_is_not_pharaoh_is_refused(line):
    with pytest.raises(UserError, match="0-2"):
        from_pharaoh(line)


LAYERS, HEADS = 2, 2


def planted(orders: dict[tuple[int, int], list[int]]):
    """A real model whose head (layer, head) looks, to write piece t, at source token 1 + orders[layer, head][t].

    Nothing but positions goes through it: one-hot embeddings of them meet in the queries and keys of each head.
    """
    cross = dict(n_heads=HEADS, d_head=SIZE, causal=False, bias=False)
    part = dict(norm=dict(eps=1e-5, bias=False), order="pre", ffn=None)
    position = dict(type="learned", max_len=SIZE)
    config = dict(
        d_model=SIZE,
        embed=dict(vocab_size=400, scale=False),
        encoder=dict(position=position, final_norm=None, blocks=[dict(mixer=cross, **part)]),
        decoder=dict(
            position=position, final_norm=None, blocks=[dict(mixer={**cross, "causal": True}, cross=cross, **part)] * 2
        ),
        tie=True,
    )
    model = build_model(ModelConfig.from_dict(config)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("norm.weight"):
                parameter.zero_()
        model.encoder.position.weight[1:] = torch.eye(SIZE)[:-1]
        model.decoder.position.weight.copy_(torch.eye(SIZE))
        for (layer, head), order in orders.items():
            rows = slice(head * SIZE, (head + 1) * SIZE)
            attention = model.decoder.layers[layer].cross
            attention.query.weight[rows] = 9 * torch.eye(SIZE)
            for t, s in enumerate(order):
                attention.key.weight[rows][t, s] = 9
    return model


CASES = list(itertools.product(range(LAYERS), range(HEADS)))
TARGET = "you love me , and we ?"


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    """A tokenizer in which each word of `TARGET` is a piece."""
    return Tokenizer.train([TARGET] * 5, vocab_size=310, languages=("zh", "en"), limit_alphabet=20)


def test_known_attention_gives_the_known_links(letters):
    rng = np.random.default_rng(0)
    source_words, target_words = [[w.text for w in words(text)] for text in (TARGET, TARGET[4:])]
    n = len(target_words)
    assert [len(pieces) for _, pieces in pieces_to_words(letters, TARGET)] == [1] * len(source_words)
    orders = {case: rng.permutation(len(source_words))[:n].tolist() for case in CASES}
    model = planted(orders)
    tag = [letters.language_ids["en"]]
    for (layer, head), method in itertools.product(CASES, ("argmax", "intersection")):
        (found,) = align_texts(
            model, letters, [(TARGET, TARGET[4:])], [tag], layers=[layer], heads=[head], method=method
        )
        assert found.source_words == source_words and found.target_words == target_words
        assert found.links == sorted((s, t) for t, s in enumerate(orders[layer, head]))


def test_layers_and_heads_are_averaged():
    model = random_model(decoder_layers=3)
    sources, targets = [[4, 5, 6, 2]], [[1, 7, 8]]
    one = {
        (layer, head): cross_attention(model, sources, targets, layers=[layer], heads=[head])[0]
        for layer in range(3)
        for head in range(2)
    }
    assert len({tuple(weights.flatten().tolist()) for weights in one.values()}) == 6
    for layers, heads in ((None, None), ([0], None), ([0, 2], [1]), ([1], [1, 0])):
        chosen = [one[case] for case in itertools.product(layers or (1, 2), heads or (0, 1))]
        expected = np.mean(chosen, 0)
        (found,) = cross_attention(model, sources, targets, layers=layers, heads=heads)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(expected.sum(-1), 1, rtol=1e-6)


TEXTS = ["我们喜欢打篮球。", "We like playing basketball, don't we?", "", "  ", "I love you.", "爱", "你" * 30]


@pytest.mark.parametrize("both_ways", [False, True])
def test_a_batch_is_aligned_as_one_by_one(tokenizer, both_ways):
    model = random_model(vocab_size=tokenizer.vocab_size, max_len=24)
    pairs = list(itertools.product(TEXTS, TEXTS))[::2]
    tags = [[tokenizer.language_ids["en"]] * (i % 2) for i in range(len(pairs))]
    back = [[tokenizer.language_ids["zh"]]] * len(pairs)
    alone = [
        align_texts(model, tokenizer, [pair], [tag], back[:1] if both_ways else None)[0]
        for pair, tag in zip(pairs, tags, strict=True)
    ]
    assert align_texts(model, tokenizer, pairs, tags, back if both_ways else None) == alone
    assert any(found.links for found in alone)
    assert align_texts(model, tokenizer, []) == []


def test_both_ways_is_the_geometric_mean(letters):
    model = random_model(vocab_size=letters.vocab_size)
    source, target = TARGET, TARGET[4:]
    ids, other = letters.encode(source), letters.encode(target)
    (en,), (zh,) = [[letters.language_ids[language]] for language in ("en", "zh")]

    def shares(tag, source, target):
        (weights,) = cross_attention(model, [[tag, *source, 2]], [[1, *target[:-1]]])
        return weights[:, 1:-1] / weights[:, 1:-1].sum(1, keepdims=True)

    matrix = np.sqrt(shares(en, ids, other) * shares(zh, other, ids).T)
    for method in METHODS:
        (found,) = align_texts(model, letters, [(source, target)], [[en]], [[zh]], method=method)
        assert found.links == word_links(matrix, singles(len(ids)), singles(len(other)), method)


def test_what_is_longer_than_the_positions_has_no_link(letters):
    model = planted({(1, 0): list(range(SIZE - 2))})
    source, target = " ".join(["you"] * 40), " ".join(["me"] * 30)
    (found,) = align_texts(model, letters, [(source, target)], [[4]], layers=[1], heads=[0], method="argmax")
    assert (len(found.source_words), len(found.target_words)) == (40, 30)
    assert found.links == [(i, i) for i in range(SIZE - 2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(layers=[2]), "--alignment-layers 2: .* 0, 1"),
        (dict(layers=[-1]), "--alignment-layers -1"),
        (dict(layers=[]), "--alignment-layers"),
        (dict(heads=[2]), "--alignment-heads 2: .* 0 to 1"),
        (dict(heads=[-1]), "--alignment-heads -1"),
        (dict(heads=[]), "--alignment-heads"),
        (dict(method="best"), "argmax, intersection, itermax"),
    ],
)
def test_what_does_not_exist_is_refused(letters, options, message):
    with pytest.raises(UserError, match=message):
        align_texts(random_model(vocab_size=letters.vocab_size), letters, [("you", "me")], **options)


@pytest.mark.slow
def test_the_bundled_model_agrees_with_a_dictionary(shared):
    if "zh-en" not in bundled_models():
        pytest.skip("the bundled model zh-en is absent")
    translator = load("zh-en", device="cpu")
    with open(shared / "data/zh-en/dev.tsv", encoding="utf-8") as lines:
        pairs = pairs_with_entries(lines, 200)
    ids = {language: [[translator.tokenizer.language_ids[language]]] * len(pairs) for language in ("zh", "en")}
    found = align_texts(translator.model, translator.tokenizer, pairs, ids["en"], ids["zh"])
    _, recall = agreement((known(*pair), alignment.links) for pair, alignment in zip(pairs, found, strict=True))
    shuffled = [(known(*pair), alignment.links) for pair, alignment in zip(pairs, [*found[1:], found[0]], strict=True)]
    assert recall > 0.85 > 2 * agreement(shuffled)[1]

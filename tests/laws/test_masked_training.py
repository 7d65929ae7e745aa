"""The laws of masked training: what masks in training pairs have in common with those that translation makes."""

from __future__ import annotations

import re
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.placeholders import cases, survivors
from glassformer.data.corpus import Pair, read_pairs
from glassformer.store import Translation, load_model
from glassformer.text.masks import MASK
from glassformer.text.protect import protect
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.examples import Examples
from glassformer.train.loop import train
from glassformer.train.masking import Masking, shared_places
from tests.digits import EN, ZH, write_tsv
from tests.laws.test_resume import assert_same_end, hard, kill, stop_after, train_until_killed

TERMS = [
    Pair("汤姆", "Tom"),
    Pair("波士顿", "Boston"),
    Pair("纽约", "New York"),
    Pair("约", "York"),
    Pair("三", "three"),
]
FILLERS = ["", "", "他", "，", " ", "-", "X1", "X2 ", "X3", "3.5", "%", "Bo", "12", "é", "Tom", "三"]


@st.composite
def pairs_with_terms(draw) -> Pair:
    """A few terms between anything else, in another order on the other side."""
    chosen = draw(st.lists(st.sampled_from([*TERMS, Pair("7", "7"), Pair("eBay", "eBay")]), max_size=4, unique=True))
    sides = []
    for side, terms in enumerate([chosen, draw(st.permutations(chosen))]):
        fillers = draw(st.lists(st.sampled_from(FILLERS), min_size=len(terms) + 1, max_size=len(terms) + 1))
        sides.append(fillers[0] + "".join(term[side] + filler for term, filler in zip(terms, fillers[1:], strict=True)))
    return Pair(*sides)


MASKED = re.compile(re.escape(MASK).replace(r"\{\}", r"\d+"))


def corpus(count: int = 400) -> list[Pair]:
    """Half of the pairs hold something to mask, one or two places of it; every pair is another."""
    pairs = []
    for n in range(0, count, 2):
        pairs.append(Pair(f"她{n}走了", f"she left {n * 10 + 7}"))
        pairs.append(Pair(f"汤姆去了波士顿共{n}次", f"Tom went to Boston {n} times"))
    return pairs


@given(pairs_with_terms())
def test_a_place_holds_the_same_thing_on_both_sides_exactly_once_and_touches_no_other(pair):
    places = shared_places(pair, TERMS)
    for place in places:
        source, target = pair.source[slice(*place.source)], pair.target[slice(*place.target)]
        assert Pair(source, target) in TERMS or source == target
        assert (pair.source.count(source), pair.target.count(target)) == (1, 1)
    for side in Pair._fields:
        spans = sorted(getattr(place, side) for place in places)
        assert all(one[1] < other[0] for one, other in zip(spans, spans[1:], strict=False))


@given(pairs_with_terms(), st.integers(0, 99), st.sampled_from([MASK, "X{}", "[{}]", "@{}"]))
def test_masks_are_spelled_as_translation_spells_them(pair, seed, style):
    """The oracle is `protect` itself, told to protect some of the places; only the numbers may differ."""
    masked, places = Masking([pair], TERMS, 1.0, style).epoch(seed, 0)[0], shared_places(pair, TERMS)
    number = re.escape(style).replace(r"\{\}", r"\d+")
    for before, after, spans in zip(pair, masked, zip(*places, strict=True), strict=False):
        literals = [re.escape(before[slice(*span)]) for span in spans]
        some = [c for size in range(1, 1 + len(spans)) for c in combinations(literals, size)]
        made = {re.sub(number, "\0", protect(before, mask=style, patterns=chosen).text) for chosen in some}
        assert re.sub(number, "\0", after) in made


@given(pairs_with_terms(), st.integers(0, 99))
def test_both_sides_hold_the_same_new_masks_and_undoing_them_gives_the_pair(pair, seed):
    masked, places = Masking([pair], TERMS, 1.0).epoch(seed, 0)[0], shared_places(pair, TERMS)
    own = set(MASKED.findall(" ".join(pair)))
    new = [[name for name in MASKED.findall(side) if name not in own] for side in masked]
    assert sorted(new[0]) == sorted(new[1]) and len(set(new[0])) == len(new[0])
    assert bool(new[0]) == bool(places)
    literals = [(pair.source[slice(*p.source)], pair.target[slice(*p.target)]) for p in places]
    undone = [
        tuple(MASKED.sub(lambda mask: named.get(mask[0], (mask[0],) * 2)[side], masked[side]) for side in range(2))  # noqa: B023
        for chosen in permutations(literals, len(new[0]))
        for named in [dict(zip(new[0], chosen, strict=True))]
    ]
    assert undone.count(pair) == 1


def test_a_mask_is_never_one_that_the_pair_holds_already():
    pair = Pair(MASK.format(1) + "，汤姆，" + MASK.format(3), "Tom: " + MASK.format(2))
    masked = [Masking([pair], TERMS, 1.0).epoch(seed, 0)[0] for seed in range(20)]
    assert all(len(set(MASKED.findall(" ".join(sides)))) == 4 for sides in masked)


def test_an_epoch_is_a_pure_function_of_seed_and_epoch_and_leaves_the_other_pairs_alone():
    pairs = corpus()
    first, again = Masking(pairs, TERMS, 0.3), Masking(pairs, TERMS, 0.3)
    assert first.count == 200
    later = first.epoch(1, 5)
    assert again.epoch(1, 5) == later  # asked of one that has drawn nothing before
    drawn = [tuple(first.epoch(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)]
    assert len(set(drawn)) == 4
    for epoch in drawn:
        changed = [row for row, pair in enumerate(pairs) if epoch[row] != pair]
        assert all(row % 2 for row in changed) and 30 < len(changed) < 90
    assert Masking(pairs, TERMS, 1.0).epoch(1, 0)[::2] == pairs[::2]
    assert all(a != b for a, b in zip(Masking(pairs, TERMS, 1.0).epoch(1, 0)[1::2], pairs[1::2], strict=True))


def test_numbers_of_one_digit_and_of_two_are_learnt_and_some_places_stay():
    masked = Masking(corpus(), TERMS, 1.0).epoch(0, 0)[1::2]
    names = [MASKED.findall(pair.source) for pair in masked]
    assert {len(found) for found in names} == {1, 2, 3}
    numbers = [int(re.sub(r"\D", "", name)) for found in names for name in found]
    assert min(numbers) == 1 and set(range(1, 31)) == set(numbers)
    assert sum(number <= 4 for number in numbers) > len(numbers) / 2


def test_examples_show_a_masked_pair_in_both_directions_and_the_plain_ones_never(tmp_path):
    pairs, translation = corpus(40), Translation("zh", "en", both_directions=True)
    tokenizer = Tokenizer.train((text for pair in pairs for text in pair), languages=["zh", "en"], vocab_size=300)
    masking = Masking(pairs, TERMS, 0.5)
    examples = Examples(pairs, tokenizer, translation, 0.2, masking)
    expected = [
        *masking.epoch(7, 3),
        *(Pair(pair.target, pair.source) for pair in masking.epoch(7, 3)),
    ]
    for dropout in (False, True):
        drawn = examples.sampled(7, 3, dropout=dropout)
        assert [(tokenizer.decode(e.source), tokenizer.decode(e.target)) for e in drawn] == expected
    assert examples.sampled(7, 3) == examples.sampled(7, 3) != examples.sampled(7, 3, dropout=False)
    assert examples.plain() == Examples(pairs, tokenizer, translation).plain()


def masked_run(folder, **data):
    config = hard(folder, steps=16)
    terms = str(write_tsv(folder / "terms.tsv", list(zip(ZH, EN, strict=True))))
    config["data"] |= {"masked_share": 0.5, "mask_terms": terms, **data}
    return config


def test_a_killed_run_resumes_to_the_same_masks_and_ends_bit_equal(tmp_path, monkeypatch, capsys):
    whole = train(masked_run(tmp_path / "whole"))
    terms = read_pairs(tmp_path / "whole" / "terms.tsv", source="zh", target="en")
    pairs = read_pairs(tmp_path / "whole" / "train.tsv", source="zh", target="en")
    count = Masking(pairs, terms, 0.5).count
    assert count and f"{count} pairs can be masked, and 50% of them are in each epoch" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        stop_after(patch, 8, kill)
        train_until_killed(masked_run(tmp_path / "killed"))
    train(masked_run(tmp_path / "killed"), resume=True)
    assert_same_end(whole.run, tmp_path / "killed" / "run")

    unmasked = train(masked_run(tmp_path / "unmasked", masked_share=0.0, mask_terms=None))
    weights = [load_model(run / "last").model.state_dict()["embed.weight"] for run in (whole.run, unmasked.run)]
    assert weights[0].ne(weights[1]).any()


@pytest.mark.parametrize(
    ("source", "target", "masked"),
    [
        ("100%", "100%", []),
        ("汤姆3点", "Tom at 3", ["3"]),
        ("第3.5", "3.5", ["3.5"]),
        ("第3", "3.5", []),
        ("五十三", "fifty-three", []),
        ("三十三", "three", []),
        ("汤姆波士顿", "Tom, Boston", ["波士顿"]),
    ],
)
def test_what_would_touch_a_letter_a_number_or_a_mask_stays(source, target, masked):
    assert [source[slice(*place.source)] for place in shared_places(Pair(source, target), TERMS)] == masked


def test_the_benchmark_of_placeholders_counts_those_that_stand_in_the_answer_exactly_once():
    found = cases([pair for pair in corpus(16) if "汤姆" in pair.source], TERMS)
    assert len(found) == 8
    for case in found:
        protected = protect(case.pair.source)
        texts = [span.text for span in protected.spans]
        assert len(texts) == 3 - case.pair.source.startswith("<b>")  # a tag at the edge never meets the model
        assert all(case.pair.target.count(text) == 1 for text in texts)
        first, *others = [span.mask for span in protected.spans]
        assert survivors(protected, " ".join([first, *others])) == len(texts)
        assert survivors(protected, " ".join([first, first.lower(), *others])) == len(others)
        assert survivors(protected, " ".join([*others, first + "0"])) == len(others)

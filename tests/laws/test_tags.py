"""Inline tags: whatever the alignment, each comes back once, well nested, and around the words it belongs to."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.text.pipeline import translate_text
from glassformer.text.tags import carry_tags, strip_tags
from glassformer.text.words import words
from glassformer.translation import line_links

TAG = re.compile(r"</?[a-z][^<>]*>")
VOCABULARY = ["cat", "don't", "我", "爱", "。", ",", "3.14"]
WORDS = st.sampled_from(VOCABULARY)
LINKS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=20)
SEEDS = st.integers(0, 1 << 32)


def tagged_text(rng: random.Random) -> str:
    """Words in elements of any shape; each tag has a number of its own, so that it can be told from others."""
    numbers = itertools.count()

    def content(depth: int) -> str:
        parts = []
        for _ in range(rng.randint(0, 4)):
            kind = rng.choice(["word", "element", "element", "single"])
            if kind == "word" or not depth:
                parts.append(rng.choice(VOCABULARY))
            elif kind == "single":
                parts.append(f'<br id="{next(numbers)}"/>')
            else:
                name = rng.choice("bi")
                parts.append(f'<{name} id="{next(numbers)}">{content(depth - 1)}</{name}>')
        return rng.choice([" ", ""]).join(parts)

    return content(3)


def tree(text: str) -> dict[str, tuple[str | None, list[str]]]:
    """For each opening tag its parent, and the words around which the element stands; refuses bad nesting."""
    found: dict[str, tuple[str | None, list[str]]] = {}
    stack: list[str] = []
    end = 0
    for match in [*TAG.finditer(text), None]:
        inner = text[end : match.start() if match else len(text)]
        for tag in stack:
            found[tag][1].append(inner)
        if match is None:
            break
        end, tag = match.end(), match[0]
        if tag.startswith("</"):
            assert stack and stack.pop()[1] == tag[2]
            continue
        assert tag not in found
        found[tag] = (stack[-1] if stack else None, [])
        if not tag.endswith("/>"):
            stack.append(tag)
    assert not stack
    return {tag: (parent, [w.text for w in words("".join(inside))]) for tag, (parent, inside) in found.items()}


@settings(max_examples=200)
@given(SEEDS)
def test_each_tag_comes_back_once_in_its_parent_and_the_translation_is_untouched(seed):
    rng = random.Random(seed)
    source = tagged_text(rng)
    target = rng.choices(VOCABULARY, k=rng.randint(0, 8))
    translation = rng.choice([" ", ""]).join(target)
    n_source = len(words(strip_tags(source).text))
    links = [(rng.randint(0, n_source), rng.randint(0, len(target))) for _ in range(rng.randint(0, 12))]
    result = carry_tags(source, translation, links)
    assert TAG.sub("", result) == translation
    assert sorted(TAG.findall(result)) == sorted(TAG.findall(source))
    before, after = tree(source), tree(result)
    assert {tag: parent for tag, (parent, _) in after.items()} == {tag: parent for tag, (parent, _) in before.items()}


@settings(max_examples=60)
@given(SEEDS)
def test_a_translation_word_by_word_keeps_every_word_in_its_elements(seed):
    source = re.sub(r"(<[^<>]*>)", r" \1 ", tagged_text(random.Random(seed)))
    plain = strip_tags(source).text
    translated = str.maketrans("cadont我爱。,3", "xyzuvw你恨！:7")
    result = carry_tags(source, plain.translate(translated), [(i, i) for i in range(len(words(plain)))])
    before, after = tree(source), tree(result)
    expected = {tag: [word.translate(translated) for word in inside] for tag, (_, inside) in before.items()}
    assert {tag: inside for tag, (_, inside) in after.items()} == expected


@settings(max_examples=60)
@given(SEEDS, LINKS)
def test_a_text_that_came_back_as_it_was_keeps_its_tags_where_they_were(seed, links):
    source = tagged_text(random.Random(seed))
    assert carry_tags(source, strip_tags(source).text, links) == source


@settings(max_examples=100)
@given(st.lists(WORDS, min_size=1, max_size=8), st.data())
def test_an_element_around_words_that_stay_together_goes_around_their_partners(source, data):
    n = len(source)
    first = data.draw(st.integers(0, n - 1))
    last = data.draw(st.integers(first, n - 1))
    order = data.draw(st.permutations([*range(first), range(first, last + 1), *range(last + 1, n)]))
    flat = [i for item in order for i in (item if isinstance(item, range) else [item])]
    tagged = " ".join([*source[:first], f"<b>{' '.join(source[first : last + 1])}</b>", *source[last + 1 :]])
    links = [(s, t) for t, s in enumerate(flat)]
    result = carry_tags(tagged, " ".join(f"w{s}" for s in flat), links)
    assert tree(result)["<b>"][1] == [f"w{s}" for s in range(first, last + 1)]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["<b>", "</b>", "<i>", "</i>", "<br/>", "<", ">", " ", "a", "我"]), max_size=12), LINKS)
def test_tags_that_cross_or_lack_a_partner_come_back_once_too(parts, links):
    source = "".join(parts)
    text, _ = strip_tags(source)
    result = carry_tags(source, "one two 三", links)
    assert TAG.sub("", result) == "one two 三"
    assert sorted(TAG.findall(result)) == sorted(TAG.findall(source))
    assert text.count("a") == source.replace("<br", "").replace("</b", "").count("a")


@settings(max_examples=50)
@given(st.text(alphabet=st.characters(exclude_characters="<`&{%$\\")), LINKS)
def test_a_text_without_tags_is_left_alone(text, links):
    assert strip_tags(text) == (text, [])
    assert carry_tags(text, "a b c", links) == "a b c"


def test_depth_and_number_of_tags_have_no_limit():
    deep = "<b>" * 3000 + "word" + "</b>" * 3000
    assert carry_tags(deep, "Wort", [(0, 0)]).replace("<b>", "").replace("</b>", "") == "Wort"
    assert carry_tags("<br/>" * 3000, "Wort", []).count("<br/>") == 3000


@pytest.mark.parametrize(
    ("source", "translation", "links", "expected"),
    [
        ("我喜欢<b>篮球</b>。", "I like basketball.", "0-0 1-1 2-1 3-2 4-2 5-3", "I like <b>basketball</b>."),
        ("<p>你好。</p>", "Well, hello.", "0-2", "<p>Well, hello.</p>"),
        ("a <b>x</b><sup/> and <u>y</u>", "Y 和 X a", "0-3 1-2 2-1 3-0", "<u>Y</u> 和 <b>X</b><sup/> a"),
        ("<b>x</b> y", "X1 Y X2 X3", "0-0 0-2 0-3 1-1", "X1 Y <b>X2 X3</b>"),
        ("un<b>believ</b>able tale", "conte incroyable", "0-1 1-0", "conte <b>incroyable</b>"),
        ("<b>of</b> course <br/>not", "natürlich nicht", "1-0 2-1", "<b></b>natürlich <br/>nicht"),
        ("one<br>two", "eins zwei", "0-0 1-1", "eins <br>zwei"),
        ("see `<b>` <i>x</i>", "siehe `<b>` X", "6-6", "siehe `<b>` <i>X</i>"),
    ],
)
def test_where_tags_go(source, translation, links, expected):
    pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
    assert carry_tags(source, translation, pairs) == expected


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from(["cat", "dog", "3.14", "don't"]), min_size=1, max_size=4), max_size=90))
def test_links_of_sentences_are_links_of_the_line(sentences):
    text = " ".join("The " + " ".join(sentence) + "." for sentence in sentences)
    sizes = []

    def one_by_one(pairs):
        sizes.append(len(pairs))
        return [[(place, place) for place in range(len(words(source)))] for source, _ in pairs]

    shouted = [line for line in translate_text([text], lambda parts: [p.protected.text.upper() for p in parts])]
    assert line_links(shouted[0], one_by_one) == [(place, place) for place in range(len(words(text)))]
    assert sum(sizes) == len(shouted[0].parts) and max(sizes, default=0) <= 64

"""Laws of protected texts: each comes back exactly once, byte for byte, whatever a translator makes of its mask."""

import random
import re
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import UserError
from glassformer.text.glossary import Glossary, holds
from glassformer.text.masks import LITERAL, MASK
from glassformer.text.patterns import find
from glassformer.text.protect import Protected, protect

STYLES = [MASK, "⟦{}⟧", "__{}__", "<{}>", LITERAL]
SPELLINGS = r"""
%s %d %1$s %2$d %.2f %5d %@ %% %(name)s %(total).2f %{count} %USER% {0} {} {name} {user.name} {x!r} {{name}} {{{raw}}}
${HOME} #{title} $variable <b> </b> <br/> <1> </1> <!--note--> &amp; &#39;
&#x27; https://example.com/a?b=c&d=%20e#f http://localhost:8080 ftp://example.org/x.tar.gz
www.example.com/a_(b) https://a.b/c(d)e
mailto:me@example.com example.com/path/x me@example.com first.last+tag@mail.example.co.uk /usr/local/bin
~/.bashrc ./run.sh C:\Users\me\x.txt `code` ``x`` \n \t
"""
PLACEHOLDERS = [
    *SPELLINGS.split(),
    "{{ name }}", "{ name }", '<img src="a.png" />', '<a href="/x" class="y z">', "<a href='https://a.com'>", "`a b`",
]  # fmt: skip
WORDS = ["Hello", "world", "你好", "文件", "the", "42", "3.14", "née", "X", "X1", "x 2", "Max1", "a%b", "𠮷", "<", "{"]
MARKS = [" ", " ", ", ", "，", "。", ". ", ": ", "(", ")", "-", "/", "'"]

placeholders = st.sampled_from(PLACEHOLDERS)
sentences = st.lists(placeholders | st.sampled_from(WORDS) | st.sampled_from(MARKS), max_size=14).map("".join)


def masked(protected: Protected) -> list[str]:
    return [span.mask for span in protected.spans]


def counted(text: str, literals: list[str]) -> Counter[str]:
    """How often each literal stands in a text, read from the left, the longest first."""
    longest_first = sorted(set(literals), key=len, reverse=True)
    return Counter(re.findall("|".join(map(re.escape, longest_first)), text)) if literals else Counter()


@pytest.mark.parametrize("literal", PLACEHOLDERS)
@pytest.mark.parametrize("frame", ["Open {}, please.", "打开{}吧。", "{} x", "Go to {}"])
def test_every_kind_of_placeholder_is_found_whole(literal: str, frame: str) -> None:
    text = frame.replace("{}", literal)
    assert [text[f.start : f.end] for f in find(text)] == [literal]


@pytest.mark.parametrize(
    "text",
    ["50% discount, 20 %sure, 100% done", "and/or 1/2/3 km/h", "a < b and c > d", "x<y and z>w", "it costs $5 or US$20"]
    + ["AT&T; R&D", "I <3 you", "don't", "他说：好。", "Node.js v2.0", "me @ home", "a.m./p.m.", "{not a placeholder}"],
)
def test_plain_text_is_left_to_the_model(text: str) -> None:
    assert protect(text) == Protected(text)


@settings(max_examples=200)
@given(
    sentences | st.text(max_size=30) | st.text("%dDs{}<>/bXx &`$\\n.@2１ｘ＞\u3000", max_size=14),
    st.sampled_from(STYLES),
)
def test_a_translator_that_changes_nothing_gives_the_text_back(text: str, style: str) -> None:
    protected = protect(text, mask=style)
    assert protected.restore(protected.text) == text


@settings(max_examples=100)
@given(st.lists(placeholders | st.sampled_from(WORDS[:-2]), max_size=14).map(" ".join))
def test_masks_are_told_apart_and_hold_no_placeholder(text: str) -> None:
    protected = protect(text)
    assert len(set(masked(protected))) == len(protected.spans)
    assert not find(protected.text)
    for mask in masked(protected):
        assert not re.search(re.escape(mask) + r"(?!\d)", text, re.IGNORECASE)


def garbled(protected: Protected, rng: random.Random) -> str:
    """What a bad translator might answer: masks dropped, doubled, moved, in capitals, in full width, with blanks."""
    words = rng.choices(["foo", "bar", "你好", "世界", "。", "Straße", "end.", ",", "née"], k=rng.randrange(8))
    for mask in masked(protected):
        change = rng.randrange(7)
        if change == 0:
            continue
        if change == 1:
            mask = mask.upper()
        elif change == 2:
            mask = mask.lower()
        elif change == 3:
            mask = " ".join([mask[0], mask[1:]])
        elif change == 4:
            mask = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in mask)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            words.insert(rng.randint(0, len(words)), mask)
    return "".join(word + rng.choice([" ", " ", ""]) for word in words)


@settings(max_examples=300)
@given(
    st.lists(placeholders, min_size=1, max_size=6), st.lists(st.sampled_from(WORDS), max_size=6),
    st.sampled_from([MASK, "⟦{}⟧"]), st.randoms(use_true_random=False),
)  # fmt: skip
def test_each_comes_back_exactly_once_whatever_the_translator_does(
    literals: list[str], words: list[str], style: str, rng: random.Random
) -> None:
    parts = [*literals, *words]
    rng.shuffle(parts)
    protected = protect(" ".join(parts), mask=style)
    answer = garbled(protected, rng)
    result = protected.restore(answer)
    expected = [span.text for span in protected.spans]
    inner = result[len(protected.prefix) : len(result) - len(protected.suffix)]
    assert counted(inner, expected) == Counter(expected)
    # What is left, blanks apart, is what the translator wrote, blanks and masks apart.
    left = re.sub("|".join(map(re.escape, sorted(set(expected), key=len, reverse=True))) or "(?!)", "", inner)
    written = unicodedata.normalize("NFKC", answer)
    for mask in masked(protected):
        written = re.sub(" ?".join(map(re.escape, mask)) + r"(?!\d)", "", written, flags=re.IGNORECASE)
    assert "".join(unicodedata.normalize("NFKC", left).split()) == "".join(written.split())


@settings(max_examples=100)
@given(sentences, st.text(max_size=30) | sentences, st.sampled_from(STYLES))
def test_any_text_at_all_is_taken_for_a_translation(text: str, answer: str, style: str) -> None:
    protected = protect(text, mask=style)
    result = protected.restore(answer)
    for literal, count in Counter(span.text for span in protected.spans).items():
        assert result.count(literal) >= count


@settings(max_examples=150)
@given(st.recursive(st.sampled_from(["one ", "two ", "三"]), lambda inside: st.tuples(
    st.sampled_from(["b", "i", "u", "em"]), st.lists(inside, max_size=3)).map(
        lambda node: f"<{node[0]}>{''.join(node[1])}</{node[0]}> "), max_leaves=8), st.randoms(use_true_random=False),
)  # fmt: skip
def test_tags_that_were_nested_stay_nested(tree: str, rng: random.Random) -> None:
    protected = protect(f"go {tree} now")
    open_tags: list[str] = []
    for closing, name in re.findall(r"<(/?)(\w+)>", protected.restore(garbled(protected, rng))):
        if closing:
            assert open_tags.pop() == name
        else:
            open_tags.append(name)
    assert not open_tags


@pytest.mark.parametrize(
    "source, answer, expected",
    [
        ("Hello {name}!", "你好！", "你好{name}！"),
        ("{name} is here.", "在这里。", "{name}在这里。"),
        ("Hello {name}, welcome to our shop.", "你好，欢迎来到我们的商店。", "你好{name}，欢迎来到我们的商店。"),
        ("See https://a.com/x.", "见 X1。", "见 https://a.com/x。"),
        ("见https://a.com/x。", "See.", "See https://a.com/x."),
        ("你有{n}条新消息", "You have new messages", "You have {n} new messages"),
        ("Move {a} to {b} now", "把X1移到X1", "把{a}移到{b}"),
        ("Move {a} to {b} now", "把X2移到X7", "把{b}移到{a}"),
        ("Click <b>here</b> now", "点击 X1 这里 X2 现在", "点击 <b>这里</b> 现在"),
        ("Click <b>here</b> now", "点击X2这里X1", "点击<b>这里</b>"),
        ("<p>Good <i>day</i></p>", "X1好X2天", "<p><i>好</i>天</p>"),
        ("It takes %ds.", "需要 X1 s。", "需要 %ds。"),
        ("Call X1 or {tel}", "打X1或ｘ２", "打X1或{tel}"),
    ],
)
def test_what_is_lost_goes_to_a_sensible_place(source: str, answer: str, expected: str) -> None:
    assert protect(source).restore(answer) == expected


def test_a_text_of_nothing_but_placeholders_needs_no_model() -> None:
    for text in ("{name}", "https://a.com/x me@x.org", "<br>", "100% &amp; 5", "%s: %d", "", "123"):
        assert not protect(text).has_words
    assert protect("{name} x").has_words


def test_a_users_patterns_go_first_and_bad_ones_are_named() -> None:
    protected = protect("Ask ACME-42 at https://a.com/ACME-42 now", patterns=[r"ACME-\d+"])
    assert [span.text for span in protected.spans][0] == "ACME-42"
    assert protected.restore(protected.text) == "Ask ACME-42 at https://a.com/ACME-42 now"
    assert protect("aXb", patterns=["x*"]) == Protected("aXb")
    with pytest.raises(UserError, match=r"pattern '\(': not a regular expression"):
        protect("x", patterns=["("])
    with pytest.raises(UserError, match="must hold {} once"):
        protect("x {n}", mask="X")


def test_megabytes_of_what_looks_like_a_beginning_end() -> None:
    for text in ("<a ", "{", "a.", "(", "`", "a@", "<!--", "/a", "&a", " b=c", "a-", "%(", "${", "aé", "\\"):
        for start in ("", "http://", "<a", "www.a"):
            find(start + text * 10_000)
            find(text * 10_000 + start)


@pytest.mark.parametrize(
    "after", ["查看", "，然后", "。好", "（官网）", "？", "”", "的", "が", "로", "页面.", "\u3000"]
)
@pytest.mark.parametrize(
    "place",
    ["https://a.com/x", "http://localhost:8080", "www.example.com", "me@example.com", "example.com/p", "/usr/local/bin"]
    + [
        "https://a.com/a_(b)",
        "https://a.com?q=1&r=%20",
        "mailto:me@a.com",
        "https://例子.com/x",
        "ftp://例.例子.cn",
        "~/.vimrc",
    ],
)
def test_chinese_behind_a_place_without_a_blank_does_not_belong_to_it(place, after):
    text = f"请看{place}{after}"
    assert [text[f.start : f.end] for f in find(text)] == [place]
    assert protect(text).restore("See X1, now") == f"See {place}, now"


GLOSSARY = Glossary([("机器", "robot"), ("网", "iNet"), ("你好", "good day"), ("文件", "文档")])
BOTH = (("zh", "en"), ("en", "zh"))


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(["机器", "网", "你好", "猫", "X1", "{a}", "%s", "。", " "]), max_size=10).map("".join),
    st.randoms(use_true_random=False),
)
def test_terms_and_placeholders_are_all_there_whatever_becomes_of_their_masks(text, rng) -> None:
    protected = protect(text, terms=GLOSSARY.find(text, BOTH[0], BOTH))
    spans = protected.spans
    assert [s.text for s in spans if s.term] == [dict(机器="robot", 网="iNet", 你好="good day")[w] for w in
        re.findall("机器|网|你好", text)]  # fmt: skip
    kept = [s.mask.lower() if rng.random() < 0.3 else s.mask for s in spans if rng.random() < 0.7]
    rng.shuffle(kept)
    restored = protected.restore("the " + " of ".join(kept) + " end")
    for term in ("robot", "iNet", "good day"):
        assert restored.lower().count(term.lower()) == sum(span.text == term for span in spans)
    for placeholder in ("{a}", "%s"):
        assert restored.count(placeholder) == sum(span.text.count(placeholder) for span in spans if not span.term)
    assert protected.held_by(restored)


@pytest.mark.parametrize(
    "source, answer, expected",
    [
        ("机器坏了。", "X1 is broken.", "Robot is broken."),
        ("机器坏了。", "It is the X1. X1 stops.", "It is the robot. Robot stops."),
        ("网坏了。", "X1 is broken.", "iNet is broken."),
        ("机器", "X1", "robot"),
        ("机器坏了。", "the robot is X1", "the robot is robot"),
        ("机器网", "X1 X2", "robot iNet"),
        ("他的文件。", "他 的 X1 。", "他 的文档。"),
        ("{a}机器", "X1 and X2", "{a} and robot"),
    ],
)
def test_a_term_stands_as_its_script_has_it(source: str, answer: str, expected: str) -> None:
    assert protect(source, terms=GLOSSARY.find(source, BOTH[0], BOTH)).restore(answer) == expected


@pytest.mark.parametrize(
    "text, translation, held",
    [
        ("The network", "network", True),
        ("Networks and", "network", True),
        ("networking", "network", False),
        ("an inet", "iNet", False),
        ("文档库", "文档", True),
    ],
)
def test_a_term_is_held_in_a_sentences_beginning_and_in_the_plural(text: str, translation: str, held: bool) -> None:
    assert holds(text, translation) == held

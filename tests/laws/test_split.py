"""Laws of the sentence splitter: nothing is lost, and real sentences end where a reader ends them."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.text.split import Sentence, split

pieces = st.sampled_from(
    [
        "Hello",
        "world",
        "Dr",
        "U.S",
        "e.g",
        "3",
        ".",
        "...",
        "!",
        "?",
        "。",
        "！",
        "；",
        "，",
        "…",
        " ",
        "  ",
        "\u3000",
        "\n",
        "\r\n",
    ]
    + [
        "\t",
        "你好",
        "说",
        "“",
        "”",
        '"',
        "'",
        "(",
        ")",
        "《",
        "》",
        "（",
        "https://a.com/x.y",
        "a@b.org",
        "{n}",
        "<b>",
        "</b>",
    ]
    + ["e\u0301", "👨‍👩‍👧", "👍🏽", "\u0301", "\u200d", "\x00", "\u2028", "\ud83d", "A", "と"]
)
texts = st.lists(pieces, max_size=30).map("".join) | st.text(st.characters(), max_size=40)


def joined(sentences: list[Sentence]) -> str:
    return "".join(text + separator for text, separator in sentences)


@settings(max_examples=200)
@given(texts, st.sampled_from([None, "zh", "en", "de"]), st.none() | st.integers(1, 30))
def test_the_sentences_and_their_separators_are_the_text(text: str, language: str | None, longest: int | None) -> None:
    sentences = split(text, language, max_length=longest)
    assert joined(sentences) == text
    for number, (sentence, separator) in enumerate(sentences):
        assert sentence or number == 0
        assert sentence == sentence.strip()
        assert not separator.strip()


@settings(max_examples=100)
@given(texts, st.integers(1, 12))
def test_no_part_is_longer_than_the_limit(text: str, longest: int) -> None:
    def length(part: str) -> int:
        return sum(2 if ord(character) > 127 else 1 for character in part)

    for sentence, _ in split(text, max_length=longest, length_of=length):
        assert length(sentence) <= longest or len(sentence) == 1


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["e\u0301", "a", "你", "👍🏽", "👨‍👩‍👧", "🇨🇳", "o\u0308\u0323"]), min_size=1, max_size=40)
)
def test_a_letter_keeps_its_accents_where_the_limit_has_room_for_them(characters: list[str]) -> None:
    for sentence, _ in split("".join(characters), max_length=8):
        assert not unicodedata.category(sentence[0]).startswith("M")
        assert sentence[0] not in "\u200d\U0001f3fd"
        assert sentence[-1] != "\u200d"


@settings(max_examples=60)
@given(texts)
def test_a_limit_that_nothing_reaches_changes_nothing(text: str) -> None:
    assert split(text, max_length=len(text) + 1) == split(text)


def test_clause_marks_go_before_blanks_and_blanks_before_letters() -> None:
    chinese = "我们在春天去了南方的海边，他们在冬天去了北方的雪山"
    assert [s.text for s in split(chinese, max_length=20)] == ["我们在春天去了南方的海边，", "他们在冬天去了北方的雪山"]
    english = "The old man went down to the sea, his daughter stayed at home"
    assert [s.text for s in split(english, max_length=40)] == [
        "The old man went down to the sea,",
        "his daughter stayed at home",
    ]
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    parts = split(" ".join(words), max_length=15)
    assert " ".join(s.text for s in parts).split() == words
    assert [len(s.text) for s in split("x" * 100, max_length=30)] == [25] * 4
    assert all(
        "https://example.com/a" in s.text or "h" not in s.text
        for s in split("去看https://example.com/a" * 3, max_length=30)
    )


def test_a_text_of_a_megabyte_is_split() -> None:
    for text in ("我" * 350_000, "x" * 1_000_000, "((((. " * 50_000, "\u0301" * 100_000, "我很好。" * 20_000):
        sentences = split(text, max_length=5000)
        assert joined(sentences) == text
        assert max(len(s.text) for s in sentences) <= 5000


# ‖ stands where a sentence ends.
EXAMPLES = r"""
今天天气很好。‖我们去公园吧。
你好！‖你叫什么名字？‖我叫小明。
他说：“走吧。”‖然后他就离开了。
“走吧。”他说。‖我们就走了。
“你去哪儿？”她问道。‖他没有回答。
老师问：“懂了吗？”‖学生们点点头。
我……我不知道该说什么。
真的吗？！‖太好了！！！‖我们出发。
《你好！李焕英》是一部电影。‖很感人。
他买了三样东西（苹果。梨。香蕉）。‖然后回家了。
圆周率约等于3.14。‖它是无理数。
请访问https://example.com/a.html?x=1。‖谢谢。
请写信到info@example.com。‖我们会回复。
第一，要努力；‖第二，要坚持。
我来了.‖我看见了.‖我征服了.
OK?‖好的，没问题。
他用的是Node.js和Vue.js。‖速度很快。
价格是$3.50。‖不贵。
等等……然后他笑了。
“为什么……”他低声说。
“我不去！”‖“那我也不去。”
『這是什麼？』他問。‖沒有人知道。
"你好。"‖"再见。"
他说："走吧。"‖我们就走了。
气温是-3.5度，明天会更冷。
公司成立于1999年。‖总部在北京。
你好 😀。‖再见 👋
太美了！😀
我喜欢U.S. News的文章。
这是No. 5香水。‖很贵。
雨です。‖ところで、元気ですか？
「はい。」と彼は言った。‖そして帰った。
本当？‖すごい！
Dr. Smith lives here.‖ He is kind.
Mr. and Mrs. Brown came.‖ They left early.
I like fruit, e.g. apples.‖ You too?
He lives in the U.S.‖ He likes it.
The U.S. Army arrived.‖ It was late.
See No. 5 on the list.‖ It is good.
Pi is 3.14 or so.‖ Remember it.
J. K. Rowling wrote it.‖ Everyone read it.
John F. Kennedy was president.
We met at 5 a.m. on Monday.‖ It was cold.
We met at 5 p.m.‖ Then we ate.
"Stop!" he said.‖ "Now!" she cried.
"Really?" she asked.‖ Nobody answered.
He said, "Go."‖ Then he left.
He said “I know.”‖ We believed him.
Wait...‖ What is that?
I was... well, tired.
Apples, pears, etc. are fruit.‖ Bread is not.
Acme Inc. makes tools.‖ It is big.
He works for Acme Inc.‖ He is happy.
(See Fig. 3.)‖ The curve rises.
It works (I tried it. Twice.) every time.
Visit https://example.com/a.b?c=d.‖ It is free.
Write to me.you@example.com.‖ I will answer.
Version 2.0.1 is out.‖ Please update.
1. Open the door.‖ 2. Close it.
He was born in 1999.‖ She was born later.
What?!‖ No way!‖ Yes.
Yahoo! is a company.
Is it true? yes, it is.
Prof. Li, Ph.D., teaches here.‖ She is strict.
On Jan. 5 it snowed.‖ Roads closed.
The cat vs. the dog.‖ Who wins?
<b>Hello.</b>‖ How are you?
He scored 5 pts. in the game.
She left at noon.‖ 😀 What a day!
First line‖\nSecond line
cell one‖\tcell two
"It rains."‖ "It pours."
¿Qué pasa?‖ ¡Nada!
Er kam am 3. Oktober.‖ Das war gut.
M. Dupont est là.‖ Elle aussi.
Save {file.name}.‖ Then quit.
Use `a. B` here.‖ It works.
""".strip().splitlines()
EXAMPLES = [line.replace(r"\n", "\n").replace(r"\t", "\t") for line in EXAMPLES]


@pytest.mark.parametrize("example", EXAMPLES)
def test_real_sentences_end_where_a_reader_ends_them(example: str) -> None:
    text = example.replace("‖", "")
    language = "de" if "Oktober" in example else None
    assert [sentence.text for sentence in split(text, language)] == [part.strip() for part in example.split("‖")]

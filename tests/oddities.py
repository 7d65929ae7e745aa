"""Lines as bad as files hold them, from a seed: what a translator has to give back one for one, in order."""

from __future__ import annotations

import random
from collections.abc import Callable

CHINESE, ENGLISH, PLACEHOLDERS, PLACES, TAGS = map(
    str.split,
    (
        "我爱打篮球。 今天天气很好！ 你想吃什么？ 他说：“走吧。” 火车，汽车；飞机 北京 𠮷野家 龘 《鸡》",
        "The cat sat. Hello, world! the a mat Dr. Smith e.g. I've U.S. 3.14 1,000 NASA well-known naïve",
        "%s %d %1$s %(name)s %{count} {0} {} {name} {{name}} {{{raw}}} ${HOME} $variable #{title} &amp; &#39; \\n "
        "`code` %% X1 X2 {missing } {{x} } %",
        "https://example.com/a?b=c&d=%20e#f http://localhost:8080 www.example.com/a_(b) mailto:me@example.com "
        "first.last+tag@mail.example.co.uk /usr/local/bin ~/.bashrc C:\\Users\\me example.com/path https:// @ a@ @b.c",
        "<b> </b> <i> </i> <br/> <br> </p> <a href='/x'> </a> <1> </1> <name> <!--note--> <b <> < > </ <<b>>",
    ),
)
RIGHT_TO_LEFT = ["مرحبا", "שלום", "\u202babc\u202c", "\u200fعربي", "\u2067x\u2069"]
INVISIBLE = ["\u200b", "\u200d", "\ufeff", "\u00ad", "\u2060", "\u180e", "\ufe0f"]
COMBINING = ["e\u0301", "n\u0303o\u0308", "\u0301", "a" + "\u0300" * 30, "각", "ﬁ", "क्षि", "Z͑ͫ̓a̴l̷g̸o"]
EMOJI = ["😀", "👨\u200d👩\u200d👧", "🇨🇳", "👍🏽", "❤\ufe0f", "\U0001f3fb"]
CONTROL = ["\x00", "\x1b[31m", "\x07", "\x7f", "\x9f", "\x0b", "\x0c", "\x1c", "\x1e"]
BREAKS = ["\r", "\u2028", "\u2029", "\x85", "\t"]
BLANKS = ["", " ", "   ", "\u3000", "\u3000 \u3000", "\u00a0", "\u2003", "\t", "\r", "\x85", "\u2028", "\x1f"]
MARKS = ["。", "！？", "...", "……", "—", "“”", "()", "《》", '"', "'", "·", "、", "!!!", "***", "=====", "|", "\\", "/"]
NUMBERS = ["0", "42", "3.14", "1,000,000", "１２３", "一百", "2024-01-31", "10%", "-5", "½", "1e10", "٣"]
WORDS = [CHINESE, ENGLISH]
THINGS = [RIGHT_TO_LEFT, INVISIBLE, COMBINING, EMOJI, CONTROL, BREAKS, PLACEHOLDERS, PLACES, TAGS, MARKS, NUMBERS]


def odd_bytes(seed: int, count: int) -> list[bytes]:
    """Lines as they stand in a file, without the `\\n` at their ends; many hold bytes that are no UTF-8."""
    rng = random.Random(seed)
    return [_KINDS[number % len(_KINDS)](rng) for number in range(count)]


def odd_lines(seed: int, count: int) -> list[str]:
    """The same as text, a bad byte being U+FFFD; a carriage return at a line's end is part of the line's end."""
    return [line.removesuffix(b"\r").decode(errors="replace") for line in odd_bytes(seed, count)]


def _line(*kinds: list[str], most: int = 12, least: int = 1) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        pieces = [rng.choice(rng.choice(kinds)) for _ in range(rng.randint(least, most))]
        return rng.choice(["", " "]).join(pieces).encode()

    return make


def _rubbish(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randint(1, 60)).replace(b"\n", b"\xff")


def _broken(rng: random.Random) -> bytes:
    """Text with bytes cut out of it or put in: halves of characters, of surrogate pairs, over-long forms."""
    line = bytearray(_line(*WORDS, EMOJI)(rng))
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(line) + 1)
        line[place : place + rng.randint(0, 1)] = rng.choice([b"", b"\xed\xa0\xbd", b"\xc0\xaf", b"\xff", b"\x80"])
    return bytes(line)


def _repeated(rng: random.Random) -> bytes:
    word = rng.choice([*CHINESE, *ENGLISH, *TAGS, *EMOJI, *PLACEHOLDERS, "ha", "哈"])
    return rng.choice(["", " "]).join([word] * rng.randint(2, 40)).encode()


def _long(rng: random.Random) -> bytes:
    """5,000 characters of a mixture, or of a single thing."""
    kinds = rng.choice([[CHINESE], [ENGLISH], [rng.choice(THINGS)], [*WORDS, *THINGS], [["a"]], [["我"]]])
    pieces: list[str] = []
    while sum(map(len, pieces)) < 5000:
        pieces += rng.choices(rng.choice(kinds), k=20)
    return rng.choice(["", " "]).join(pieces)[:5000].encode()


_KINDS: list[Callable[[random.Random], bytes]] = [
    lambda rng: rng.choice(BLANKS).encode(),
    lambda rng: b"\xef\xbb\xbf" + _line(*WORDS)(rng),
    _rubbish,
    _broken,
    _repeated,
    _line(CHINESE),
    _line(ENGLISH),
    *(_line(kind, most=5) for kind in THINGS),
    *(_line(kind, *WORDS) for kind in THINGS),
    _line(*WORDS),
    _line(*WORDS, *THINGS, most=30),
    lambda rng: b" " * rng.randint(1, 3) + _line(*WORDS)(rng) + "\u3000".encode() * rng.randint(1, 3),
    lambda rng: _line(*WORDS)(rng) + b"\r",
    lambda rng: _line(TAGS, CHINESE, most=40)(rng),
    lambda rng: _long(rng) if rng.random() < 0.3 else _line(*WORDS, PLACES)(rng),
]

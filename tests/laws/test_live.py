"""Laws of a translation told while it is written: joined it is the whole one, and no piece waits without a reason."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.api import Translator
from glassformer.engines.model import decode_ids, stream_ids
from glassformer.errors import UserError
from glassformer.header import Translation
from glassformer.text.tokenizer import Tokenizer
from tests.toys import EOS, TableModel

ANSWERS = [
    *(
        "The cat ",
        "sat",
        " on. ",
        " ",
        "  ",
        "\n",
        "\x07",
        "我爱",
        "。",
        "，",
        "?",
        "“",
        "”",
        "'",
        "…",
        ") ",
        "3.5 ",
        "é",
    ),
    *("🐉", "ß", "ǆ", "go go go go go ", "猫猫猫猫猫猫", "{name}", "<1>", "{"),
]
SOURCES = [
    *("我爱打篮球。", "The cat sat. ", "THE CAT SAT! ", "Hi {name}, ", "see https://a.com/x. ", " ", "\u2028", "100% "),
    *("“我”", "a\tb ", "…", "猫", "\n", "(x) ", "&amp; ", "％s", "<br>"),
]
LINES = [*ANSWERS, *SOURCES, "I love natural language processing."] * 3


class Scripted(TableModel):
    """Answers each source with a random text; wherever that is forbidden, with random tokens."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        super().__init__(seed, tokenizer.vocab_size)
        self.tokenizer = tokenizer

    def row_logits(self, source, prefix):
        rng = random.Random(repr((self.seed, source)))
        script = [*self.tokenizer.encode("".join(rng.choices(ANSWERS, k=rng.randint(0, 6)))), EOS]
        rng = random.Random(repr((self.seed, source, prefix)))
        logits = [0.0] * self.vocab
        for index in rng.sample(range(3, self.vocab), 9):
            logits[index] = rng.uniform(1.0, 4.0)
        logits[script[len(prefix) - 1] if len(prefix) <= len(script) else EOS] = 8.0
        return tuple(logits)


class Engine:
    """A `Decodable` as an engine."""

    name, precision, source_limit, target_limit = "toy", "fp32", None, 60

    def __init__(self, model: TableModel) -> None:
        self.model, self.vocab_size = model, model.vocab

    def groups_itself(self, config, request):
        return False

    def decode(self, sources, config, request):
        return decode_ids(self.model, sources, config, request)

    def stream(self, sources, config, request):
        return stream_ids(self.model, sources, config, request)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES, vocab_size=400, languages=("zh", "en"))


def toy(tokenizer: Tokenizer, seed: int) -> Translator:
    return Translator(Engine(Scripted(tokenizer, seed)), tokenizer, Translation("zh", "en", both_directions=True))


ways = st.fixed_dictionaries(
    {"split_above": st.sampled_from([0, 0, 8, None])},
    optional={
        "prefix": st.sampled_from(["", " ", "The cat", "我"]),
        "mask": st.none(),
        "no_repeat_ngram": st.integers(1, 3),
        "max_new_tokens": st.integers(4, 12),
        "banned": st.just(["cat"]),
        "seed": st.integers(0, 9),
    },
)


@settings(max_examples=120)
@given(text=st.lists(st.sampled_from(SOURCES), max_size=6).map("".join), seed=st.integers(0, 10**6), way=ways)
def test_the_pieces_of_a_translation_are_the_translation(tokenizer, text, seed, way):
    translator = toy(tokenizer, seed)
    if "seed" in way:
        way = {**way, "temperature": 1.5, "top_k": 20}
    pieces = list(translator.stream(text, **way))
    assert "".join(pieces) == translator.translate(text, beam_size=1, **way) and all(pieces)


def test_pieces_come_while_the_model_still_writes_and_only_where_nothing_can_change(tokenizer):
    translator = toy(tokenizer, 0)
    model = translator.engine.model

    def told(text: str, answer: str) -> list[tuple[str, int]]:
        """The pieces, and how many tokens were not yet written when each came."""
        script = [*tokenizer.encode(answer), EOS]
        model.row_logits = lambda source, prefix: tuple(
            8.0 * (i == (script[len(prefix) - 1] if len(prefix) <= len(script) else EOS)) for i in range(model.vocab)
        )
        model.batch_sizes.clear()
        pieces = [(piece, len(script) - len(model.batch_sizes)) for piece in translator.stream(text)]
        assert "".join(piece for piece, _ in pieces) == translator.translate(text, beam_size=1)
        return pieces

    plain = told("我爱打篮球。", "I love natural language processing.")
    assert len(plain) > 3 and plain[0][1] > len(plain) - 2
    assert [piece for piece, _ in told("Hi {name}", "我爱 {name}")] == ["我爱 {name}"]
    looping = told("我", "The cat sat on. go go go go go go go go go")
    assert "".join(piece for piece, left in looping if left > 0).startswith("The cat sat on. go")
    assert not any("go go go go" in piece for piece, _ in looping)


def test_what_cannot_be_told_piece_by_piece_is_refused_at_once(tokenizer):
    translator = toy(tokenizer, 0)
    with pytest.raises(UserError, match="^--stream with --beam-size 4: .*--beam-size 1, or leave out --stream$"):
        translator.stream("我", beam_size=4)
    with pytest.raises(UserError, match="--to fr"):
        translator.stream("我", to="fr")
    with pytest.raises(UserError, match="text 1: expected a string"):
        translator.stream(["我"])

"""Laws of streaming: the events tell the whole target, and the pieces of text join to the whole text."""

import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import UserError
from glassformer.generate import Allowed, End, SamplingConfig, SearchConfig, Token, collect, generate, search, stream
from glassformer.generate.constraints import Constraints
from glassformer.text import Tokenizer
from glassformer.text.foreign import wordpiece
from glassformer.text.stream import StreamDecoder
from tests.toys import EOS, ScriptModel, TableModel, batch, request

ragged = st.lists(st.lists(st.integers(3, 8), min_size=1, max_size=5).map(tuple), min_size=1, max_size=6)


def run(model, sources, config, **options):
    return stream(model, *batch(sources), config, request(**options))


@settings(max_examples=20)
@given(sources=ragged, seed=st.integers(0, 99))
def test_greedy_streaming_is_a_beam_of_one(sources, seed):
    model = TableModel(seed, vocab=9)
    searched = search(model, *batch(sources), SearchConfig(), request())
    assert collect(run(model, sources, SamplingConfig(temperature=0.0))) == searched


@settings(max_examples=20)
@given(sources=ragged, seed=st.integers(0, 99), samples=st.integers(1, 3))
def test_events_come_position_by_position_and_tell_each_target_once(sources, seed, samples):
    model, config = TableModel(seed, vocab=9), SamplingConfig(samples=samples, seed=seed, max_new_tokens=4)
    constraints = [Constraints((3,) * (i % 3)) for i in range(len(sources))]
    events = list(run(model, sources, config, constraints=constraints))
    whole = generate(
        model,
        *batch(sources),
        config,
        request(constraints=constraints),
    )
    for s, found in enumerate(whole):
        for k, h in enumerate(found):
            mine = [(place, e) for place, e in enumerate(events) if (e.sentence, e.sample) == (s, k)]
            tokens, ends = [e for _, e in mine if isinstance(e, Token)], [e for _, e in mine if isinstance(e, End)]
            assert len(ends) == 1 and mine[-1][1] is ends[0]
            assert tuple(t.id for t in tokens) == (*h.ids, *[EOS] * h.finished)
            assert tuple(t.logprob for t in tokens) == h.token_logprobs
            assert [t.forced for t in tokens] == [i < s % 3 for i in range(len(tokens))]
            assert ends[0].reason == ("eos" if h.finished else "limit")
    seen: dict = {}
    positions = []
    for e in events:
        if isinstance(e, Token):
            seen[e.sentence, e.sample] = seen.get((e.sentence, e.sample), 0) + 1
            positions.append(seen[e.sentence, e.sample])
    assert positions == sorted(positions)


def test_a_token_is_told_before_the_next_one_is_computed():
    model = ScriptModel({(): {4: 1.0}, (4,): {5: 1.0}})
    events = run(model, [(3,)], SamplingConfig(temperature=0.0))
    assert model.batch_sizes == []
    for steps, token in ((1, 4), (2, 5), (3, EOS)):
        assert next(events).id == token
        assert len(model.batch_sizes) == steps
    assert next(events) == End(0, 0, "eos")
    assert next(events, None) is None and len(model.batch_sizes) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_target_that_nothing_may_follow_is_told_to_be_stuck(temperature):
    only = Allowed(lambda ids: {5} if len(ids) < 2 else set())
    config = SamplingConfig(temperature=temperature, seed=0)
    events = list(run(TableModel(0, vocab=9), [(3,), (4,)], config, processors=(only,)))
    assert [e.id for e in events[:4]] == [5] * 4 and events[4:] == [End(0, 0, "stuck"), End(1, 0, "stuck")]
    assert [(h.ids, h.finished) for (h,) in collect(events)] == [((5, 5), False)] * 2


def test_a_shared_prefix_is_read_in_one_pass():
    model = TableModel(0, vocab=9)
    constraints = [Constraints((3, 4, 5)), Constraints((3, 4, 5, 6))]
    events = run(model, [(3,), (4,)], SamplingConfig(temperature=0.0, max_new_tokens=1), constraints=constraints)
    assert len(list(events)) == 2 + 7 + 2
    assert model.batch_sizes == [2, 1]


LINES = ["the quick brown fox doesn't jump over 13 lazy dogs", "我爱自然语言处理。我喜欢打篮球！", "größten Bären"] * 20
TEXTS = [
    "the fox",
    " ",
    "  ",
    "我爱语言",
    "🐉",
    "👩‍👩‍👧",
    "𠮷",
    "ไท",
    "▁",
    "\ufdd0",
    "\ufdd0\ufdd2",
    "�",
    "doesn't",
    "\n",
    "13",
    "é",
]


def byte_level() -> Tokenizer:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(LINES, trainer)
    backend.add_special_tokens(["<|endoftext|>"])
    return Tokenizer(backend)


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory):
    """Each kind of tokenizer, ours and those of foreign files, made once."""
    folder = tmp_path_factory.mktemp("tokenizers")

    def bert() -> Tokenizer:
        pieces = [
            "[PAD]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "the",
            "fox",
            "##es",
            "##'",
            ".",
            ",",
            "我",
            "爱",
            "##爱",
            "do",
            "n't",
        ]
        (folder / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
        return Tokenizer(wordpiece(folder / "vocab.txt"))

    def sentencepiece() -> Tokenizer:
        import sentencepiece as library

        library.SentencePieceTrainer.Train(
            sentence_iterator=iter(LINES),
            model_prefix=str(folder / "sp"),
            vocab_size=380,
            byte_fallback=True,
            hard_vocab_limit=False,
            minloglevel=2,
            num_threads=1,
        )
        return Tokenizer.load(folder / "sp.model")

    made: dict[str, Tokenizer] = {}
    makers = {"byte-level": byte_level, "bert": bert, "sentencepiece": sentencepiece}

    def get(name: str) -> Tokenizer:
        if name not in made:
            maker = makers.get(name, lambda: Tokenizer.train(LINES, kind=name, vocab_size=420, languages=["zh", "en"]))
            made[name] = maker()
        return made[name]

    return get


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "byte-level", "bert", "sentencepiece"])
def test_streamed_pieces_join_to_the_whole_text(kind, tokenizer_of):
    """Hundreds of random mixed strings, cut up, with ids thrown in at random: broken bytes, specials, any piece."""
    tokenizer, rng = tokenizer_of(kind), random.Random(5)
    for turn in range(400):
        ids = tokenizer.encode("".join(rng.choices(TEXTS, k=rng.randint(0, 8))))
        for _ in range(rng.choice([0, 0, 1, 3, 12])):
            place = rng.randint(0, len(ids))
            ids[place : place + rng.randint(0, 1)] = [rng.randrange(tokenizer.vocab_size)]
        decoder = StreamDecoder(tokenizer)
        told = ""
        for n, index in enumerate(ids, 1):
            told += decoder.feed(index)
            assert tokenizer.decode(ids).startswith(told), (turn, tokenizer.tokens(ids[:n]))
        assert told + decoder.finish() == tokenizer.decode(ids), (turn, tokenizer.tokens(ids))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte-level"])
def test_text_is_told_as_soon_as_nothing_can_change_it(kind, tokenizer_of):
    tokenizer = tokenizer_of(kind)
    decoder = StreamDecoder(tokenizer)
    ids = tokenizer.encode("the quick brown fox")
    late = 0
    for n, index in enumerate(ids, 1):
        decoder.feed(index)
        late += bool(decoder._pending)
        assert n == 1 or len(decoder._before) + len(decoder._pending) <= 3, "the window must not grow"
    assert late == 0
    decoder.finish()
    pieces = [decoder.feed(index) for index in tokenizer.encode("the 𠮷 fox")]
    assert "�" not in "".join(pieces) and any("𠮷" in piece for piece in pieces)


def test_a_character_cut_off_at_the_end_is_told_by_finish(tokenizer_of):
    tokenizer = tokenizer_of("bpe")
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "𠮷".encode()]
    decoder = StreamDecoder(tokenizer)
    assert [decoder.feed(index) for index in ids] == [""] * 4
    assert decoder.finish() == "𠮷"
    assert [decoder.feed(index) for index in ids[:3]] == [""] * 3
    assert decoder.finish() == "�" * 3
    assert decoder.finish() == ""


def test_an_id_outside_the_vocabulary_is_refused(tokenizer_of):
    with pytest.raises(UserError, match="outside the vocabulary"):
        StreamDecoder(tokenizer_of("bpe")).feed(10**6)

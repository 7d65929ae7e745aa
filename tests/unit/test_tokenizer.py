"""Tokenizers: exact round trips, fixed ids, determinism, seeded dropout, and the files of other projects."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import UserError
from glassformer.text import BpeDropout, Tokenizer
from glassformer.text.normalize import KEPT_BY_NFKC, NORMALIZERS

ENGLISH = "the quick brown fox doesn't jump over 13 lazy dogs, but They jumped over the dog's quick brown tail again"
GERMAN = "die größten Bären mögen süßen Honig, und Äpfel mögen sie über alles"
CHINESE = "我爱自然语言处理。我喜欢打篮球！他们喜欢自然，也爱语言（和篮球）。你喜欢什么？"


def _corpus() -> list[str]:
    random_words = random.Random(3)
    english, german = ENGLISH.split(), GERMAN.split()
    lines = [" ".join(random_words.choices(english, k=9)) for _ in range(150)]
    lines += [" ".join(random_words.choices(german, k=7)) for _ in range(60)]
    lines += ["".join(random_words.choices(CHINESE, k=14)) for _ in range(60)] + [CHINESE] * 20
    return lines


LINES = _corpus()
TRAINED = {
    (kind, normalizer): Tokenizer.train(LINES, kind=kind, normalizer=normalizer, vocab_size=500, languages=["zh", "en"])
    for kind in ("bpe", "unigram")
    for normalizer in NORMALIZERS
}
BPE = TRAINED["bpe", "nfc"]
WORDPIECE = Tokenizer.train(LINES, kind="wordpiece", vocab_size=400)

any_text = st.one_of(
    st.text(),
    st.text(
        "abTh ▁'’ \n\t\r我爱。，！…￥　éé\ufdd0\ufdd1\ufdd2\ufdd3\ufddd🐉👩‍👩‍👧𠮷龘ｆ㎏<>0x2en/s\x00\x85\u2028ไท한",
        max_size=40,
    ),
    st.lists(st.sampled_from(["the", " ", "  ", "我爱", "</s>", "<2en>", "<0x41>", "##", "▁", "fox", "＃"])).map(
        "".join
    ),
)


@pytest.mark.parametrize(("kind", "normalizer"), TRAINED)
@given(text=any_text)
@settings(max_examples=150)
def test_decoding_gives_back_the_normalised_text(kind: str, normalizer: str, text: str) -> None:
    tokenizer = TRAINED[kind, normalizer]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer.normalize(text)
    assert not {0, 1, 2, 3, 4, 5} & set(ids)


# The library's Unicode tables are older than Python's, so the oracle is asked where both must agree.
stable_text = st.text(
    st.characters(exclude_categories=["Cs", "Cn"]).filter(lambda c: unicodedata.ucd_3_2_0.category(c) != "Cn")
)


@given(text=stable_text)
def test_nfc_and_none_are_what_unicode_says(text: str) -> None:
    assert TRAINED["bpe", "none"].normalize(text) == text
    assert TRAINED["bpe", "nfc"].normalize(text) == unicodedata.normalize("NFC", text)


@given(text=st.one_of(stable_text, st.text(KEPT_BY_NFKC + "ａ1e\u0301\ufdd0\ufdd1\ufdd3")))
def test_nfkc_is_unicodes_between_the_marks_it_spares(text: str) -> None:
    runs = itertools.groupby(text, lambda char: char in KEPT_BY_NFKC)
    expected = "".join("".join(run) if kept else unicodedata.normalize("NFKC", "".join(run)) for kept, run in runs)
    # A combining mark right after a spared mark has no base to join on either side of the cut.
    assert TRAINED["bpe", "nfkc"].normalize(text) == expected


def test_nfkc_keeps_chinese_punctuation_and_folds_full_width_letters() -> None:
    marks = "，！？（）：；“”‘’。、《》…—"
    assert TRAINED["bpe", "nfkc"].normalize(marks + "Ａ１㎏　") == marks + "A1kg "


@given(text=any_text)
@settings(max_examples=100)
def test_the_saved_file_alone_gives_the_same_ids_and_text(text: str) -> None:
    plain = tokenizers.Tokenizer.from_str(BPE.backend.to_str())
    plain.encode_special_tokens = True
    ids = BPE.encode(text)
    assert plain.encode(text).ids == ids
    assert plain.decode(ids) == BPE.decode(ids)


@pytest.mark.parametrize("tokenizer", [*TRAINED.values(), WORDPIECE], ids=[*map("-".join, TRAINED), "wordpiece"])
def test_save_and_load_keep_everything(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "a")
    tokenizer.save(tmp_path / "b.json")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["tokenizer.json"]
    Tokenizer.load(tmp_path / "a").save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    for again in (
        Tokenizer.load(tmp_path / "a"),
        Tokenizer.load(tmp_path / "b.json"),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert (again.hash, again.kind, again.normalizer) == (tokenizer.hash, tokenizer.kind, tokenizer.normalizer)
        assert again.encode_batch([*LINES[:40], "</s>"]) == [tokenizer.encode(line) for line in [*LINES[:40], "</s>"]]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        BPE.save(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("tokenizer.json", "old")]


def test_specials_languages_and_bytes_take_the_first_ids() -> None:
    first = ["<pad>", "<s>", "</s>", "<unk>", "<2zh>", "<2en>", *(f"<0x{byte:02X}>" for byte in range(256))]
    for kind in ("bpe", "unigram"):
        tokenizer = TRAINED[kind, "nfc"]
        assert tokenizer.tokens(range(len(first))) == first
        assert [tokenizer.token_to_id(token) for token in first] == list(range(len(first)))
        assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
        assert tokenizer.language_ids == {"zh": 4, "en": 5}
    assert BPE.vocab_size == 500
    assert TRAINED["bpe", "none"].hash != BPE.hash


def test_hashes_tell_a_shuffled_vocabulary_of_the_same_size() -> None:
    state = json.loads(BPE.backend.to_str())
    vocab = state["model"]["vocab"]
    a, b = sorted(vocab, key=vocab.__getitem__)[-2:]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    assert Tokenizer.from_json(json.dumps(state)).hash != BPE.hash


def test_special_ids_are_skipped_and_broken_bytes_show() -> None:
    dragon = BPE.encode("🐉")
    assert BPE.tokens(dragon)[-4:] == ["<0xF0>", "<0x9F>", "<0x90>", "<0x89>"]
    assert BPE.decode([1, 4, *BPE.encode("the fox"), 2, 0, 0]) == "the fox"
    assert set(BPE.decode(dragon[:-1]).strip()) == {"\ufffd"}
    with pytest.raises(UserError, match="outside the vocabulary of 500"):
        BPE.id_to_token(500)


def test_a_word_is_one_piece_at_the_start_and_inside_and_chinese_gets_no_space() -> None:
    inside, start = BPE.tokens("fox the"), BPE.tokens("the fox")
    assert start == inside[::-1] == ["▁the", "▁fox"]
    assert not any("▁" in piece for piece in BPE.tokens(CHINESE))
    assert BPE.tokens("我 the") == ["我", "▁the"]
    assert BPE.tokens("the 我") == ["▁the", "▁", "我"]


def test_no_piece_crosses_digits_or_runs_of_spaces() -> None:
    pieces = [piece for piece in BPE.backend.get_vocab() if not piece.startswith("<")]
    assert all(len(piece) <= 2 for piece in pieces if any(char.isdigit() for char in piece))
    many = BPE.tokens("fox" + " " * 40 + "fox")
    assert many[-1] == "▁fox"


def test_german_words_become_whole_pieces() -> None:
    assert BPE.tokens("mögen größten Äpfel") == ["▁mögen", "▁größten", "▁Äpfel"]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_the_same_lines_give_the_same_file_in_another_process(kind: str) -> None:
    program = (
        "import sys, json; from glassformer.text import Tokenizer;"
        f"print(Tokenizer.train(json.load(sys.stdin), kind={kind!r}, vocab_size=450).hash)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(LINES), capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == Tokenizer.train(LINES, kind=kind, vocab_size=450).hash


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_the_order_of_the_lines_does_not_matter(kind: str) -> None:
    lines = [*LINES, *("甲乙丙丁戊己" * 2)]
    shuffled = random.Random(4).sample(lines, len(lines))
    counts = Counter("".join(lines))
    limit = sum(count > 2 for count in counts.values()) + 3
    one, other = (Tokenizer.train(some, kind=kind, vocab_size=500, limit_alphabet=limit) for some in (lines, shuffled))
    assert one.hash == other.hash
    assert sum(one.token_to_id(char) is not None for char in "甲乙丙丁戊己") == 3


def test_training_on_text_without_spaces_is_bounded() -> None:
    letters = random.Random(5)
    line = "".join(letters.choices([chr(0x4E00 + i) for i in range(50)], k=20_000))
    latin = "".join(letters.choices("abcde", k=20_000))
    tokenizer = Tokenizer.train([line, latin], vocab_size=600)
    assert tokenizer.decode(tokenizer.encode(line + latin)) == line + latin
    assert max(map(len, tokenizer.backend.get_vocab())) <= 64


def test_rare_characters_get_no_piece_but_survive() -> None:
    tokenizer = Tokenizer.train([*LINES, "龘"], vocab_size=500)
    assert tokenizer.token_to_id("龘") is None
    assert tokenizer.decode(tokenizer.encode("一龘《鸡》")) == "一龘《鸡》"
    few = Tokenizer.train(LINES, vocab_size=500, limit_alphabet=5)
    letters = [piece for piece in few.backend.get_vocab() if len(piece) == 1]
    counts = Counter("".join(LINES))
    assert {"▁" if char == " " else char for char, _ in counts.most_common(5)} <= {*letters}
    assert len(letters) <= 5 + len("▁\n")


def test_without_byte_fallback_unknown_characters_are_unknown() -> None:
    tokenizer = Tokenizer.train(LINES, vocab_size=300, byte_fallback=False)
    assert tokenizer.token_to_id("<0x00>") is None
    assert tokenizer.unk_id in tokenizer.encode("𠮷")


@given(words=st.lists(st.sampled_from([*ENGLISH.split(), *GERMAN.split(), *CHINESE, "größten我爱", "  ", "13"])))
def test_wordpiece_gives_back_every_text_of_known_characters(words: list[str]) -> None:
    text = " ".join(words)
    assert WORDPIECE.decode(WORDPIECE.encode(text)) == text


def test_wordpiece_marks_continuations_and_joins_chinese() -> None:
    assert WORDPIECE.tokens("我爱") == ["我", "爱"]
    assert any(piece.startswith("##") for piece in WORDPIECE.tokens("quickly foxes"))
    assert WORDPIECE.decode(WORDPIECE.encode(CHINESE)) == CHINESE
    assert WORDPIECE.decode(WORDPIECE.encode(GERMAN)) == GERMAN


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "bpee"}, "bpe, wordpiece, unigram"),
        ({"normalizer": "nfd"}, "none, nfc, nfkc"),
        ({"vocab_size": 200}, "at least 262"),
        ({"languages": ["zh", "zh"]}, "--languages"),
        ({"languages": ["z>"]}, "--languages"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Tokenizer.train(LINES, **arguments)  # type: ignore[arg-type]


def test_training_needs_text() -> None:
    with pytest.raises(UserError, match="blank"):
        Tokenizer.train(["", "  "])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{", "not a tokenizer.json"),
        ("tokenizer.json", b'{"model": {"type": "Nope"}}', "refuses"),
        ("tokenizer.json", b"\xff\xfe", "not UTF-8"),
        ("tokenizer.json", b"[1]", "neither"),
        ("x.model", b"nonsense", "not a SentencePiece model"),
        ("vocab.txt", b"a\nb\n", r"no \[UNK\]"),
        ("vocab.json", b'{"a": 0}', "merges are missing"),
    ],
)
def test_files_that_are_no_tokenizers_are_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(UserError, match=message) as caught:
            Tokenizer.load(path)
        assert name in str(caught.value)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer here"):
        Tokenizer.load(tmp_path)
    with pytest.raises(UserError, match="No such file"):
        Tokenizer.load(tmp_path / "nothing.json")


@given(text=any_text)
@settings(max_examples=300)
def test_dropout_of_zero_is_plain_encoding(text: str) -> None:
    for tokenizer in (BPE, TRAINED["bpe", "nfkc"]):
        assert BpeDropout(tokenizer, 0.0).encode(text, random.Random(1)) == tokenizer.encode(text)


def test_dropout_of_zero_is_plain_encoding_on_many_lines() -> None:
    dropout, rng = BpeDropout(BPE, 0.0), random.Random(2)
    for _ in range(2000):
        line = " ".join(rng.choices([*ENGLISH.split(), *GERMAN.split(), CHINESE[: rng.randrange(9)], "🐉x"], k=8))
        assert dropout.encode(line, rng) == BPE.encode(line)


@given(text=any_text, seed=st.integers(0, 99), probability=st.sampled_from([0.05, 0.3, 0.9, 1.0]))
@settings(max_examples=150)
def test_dropout_keeps_the_text_and_follows_the_seed(text: str, seed: int, probability: float) -> None:
    warm, cold = BpeDropout(BPE, probability), BpeDropout(BPE, probability)
    warm.encode("the quick brown fox " + text, random.Random(seed + 1))
    ids = warm.encode(text, random.Random(seed))
    assert BPE.decode(ids) == BPE.normalize(text)
    assert cold.encode(text, random.Random(seed)) == ids


def test_dropout_of_one_leaves_characters() -> None:
    assert all(len(piece) == 1 for piece in BPE.tokens(BpeDropout(BPE, 1.0).encode("the fox 我爱", random.Random(1))))


def _exact_law(word: str, probability: float) -> dict[tuple[str, ...], float]:
    """Probability of each segmentation, by enumerating algorithm 1 of Provilkov et al. 2020, pair by pair."""
    merges = json.loads(BPE.backend.to_str())["model"]["merges"]
    ranks = {tuple(merge): rank for rank, merge in enumerate(merges)}

    def outcomes(symbols: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        places = [i for i, pair in enumerate(itertools.pairwise(symbols)) if pair in ranks]
        law: Counter[tuple[str, ...]] = Counter()
        for dropped in itertools.product([False, True], repeat=len(places)):
            weight = 1.0
            for drop in dropped:
                weight *= probability if drop else 1 - probability
            left = [place for place, drop in zip(places, dropped, strict=True) if not drop]
            if not left:
                law[symbols] += weight
                continue
            at = min(left, key=lambda i: (ranks[symbols[i], symbols[i + 1]], i))
            for result, share in outcomes((*symbols[:at], symbols[at] + symbols[at + 1], *symbols[at + 2 :])).items():
                law[result] += weight * share
        return dict(law)

    return outcomes(tuple(word))


@pytest.mark.parametrize("probability", [0.1, 0.4])
def test_dropout_samples_the_published_law(probability: float) -> None:
    law = _exact_law("▁over", probability)
    assert len(law) > 4
    dropout, rng, draws = BpeDropout(BPE, probability), random.Random(11), 20_000
    seen = Counter(tuple(BPE.tokens(dropout.encode("over", rng))) for _ in range(draws))
    chi_square = sum((seen[key] - draws * share) ** 2 / (draws * share) for key, share in law.items())
    assert set(seen) <= set(law)
    # Mean n − 1 and variance 2 (n − 1): five deviations never happen by chance.
    freedom = len(law) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_dropout_is_independent_between_the_words_of_a_sentence() -> None:
    dropout, rng, draws = BpeDropout(BPE, 0.3), random.Random(12), 8000
    whole = {
        word: sum(share for key, share in _exact_law("▁" + word, 0.3).items() if len(key) == 1)
        for word in ("the", "fox")
    }
    both = sum(dropout.encode("the fox", rng) == BPE.encode("the fox") for _ in range(draws)) / draws
    expected = whole["the"] * whole["fox"]
    assert abs(both - expected) < 5 * (expected * (1 - expected) / draws) ** 0.5


def test_dropout_refuses_what_it_cannot_do() -> None:
    with pytest.raises(UserError, match="from 0 to 1"):
        BpeDropout(BPE, 1.5)
    with pytest.raises(UserError, match="unigram"):
        BpeDropout(TRAINED["unigram", "nfc"], 0.1)


def test_importing_the_package_does_not_import_the_library() -> None:
    program = "import glassformer.text, sys; sys.exit('tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

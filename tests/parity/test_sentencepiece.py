"""Files of other projects give the ids that their own libraries give."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import sentencepiece

from glassformer.errors import UserError
from glassformer.text import BpeDropout, Tokenizer

MODELS = (
    "sentencepiece/test_model.model",
    "sentencepiece/test_ja_model.model",
    "torchtune/m.model",
    "torchtune/sentencepiece.model",
    "seqio/sentencepiece.model",
    "opennmt/sample.sp.model",
)


@pytest.fixture
def files(shared: Path) -> Path:
    folder = shared / "data/checkpoints/tokenizers"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent")
    return folder


def _random_texts(count: int, seed: int = 7) -> list[str]:
    rng = random.Random(seed)
    plain = "the I saw a girl with telescope 我爱 自然语言 すもも も ▁ </s> <s> <unk> ＡＢ 12,345 é e\u0301 🐉 𠮷 don't"
    words = [*plain.split(), "", "\t"]
    texts = [" ".join(rng.choices(words, k=rng.randrange(12))) for _ in range(count)]
    texts += [
        "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x4E00, 0x9FFF)])) for _ in range(20))
        for _ in texts
    ]
    return ["", " ", "  x ", *texts]


@pytest.mark.parametrize("name", MODELS)
def test_sentencepiece_models_give_the_librarys_ids(files: Path, name: str, tmp_path: Path) -> None:
    _compare(files / name, "unigram", tmp_path)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_freshly_trained_sentencepiece_models_give_the_librarys_ids(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "fresh.model"
    with file.open("wb") as stream:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(_random_texts(200, seed=9)),
            model_writer=stream,
            model_type=kind,
            vocab_size=6000,
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=0.98,
            user_defined_symbols=["<2en>"],
            pad_id=3,
            num_threads=1,
            minloglevel=2,
        )
    _compare(file, kind, tmp_path)
    ours = Tokenizer.load(file)
    assert (ours.unk_id, ours.bos_id, ours.eos_id, ours.pad_id) == (0, 1, 2, 3)
    assert ours.language_ids == {"en": 4}
    assert ours.normalizer == "nmt_nfkc"
    assert ours.decode(ours.encode("龘 🐉")) == "龘 🐉"
    with pytest.raises(UserError, match="BPE dropout"):
        BpeDropout(ours, 0.1)


def _compare(file: Path, kind: str, tmp_path: Path) -> None:
    library = sentencepiece.SentencePieceProcessor(model_file=str(file))
    ours = Tokenizer.load(file)
    assert (ours.kind, ours.vocab_size) == (kind, library.vocab_size())
    ours.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.hash == ours.hash
    for text in _random_texts(300):
        ids = ours.encode(text)
        assert ids == library.encode(text) == again.encode(text)
        assert ours.tokens(text) == library.encode(text, out_type=str) or library.unk_id() in ids
        if library.unk_id() not in ids:
            assert ours.decode(ids) == library.decode(ids)
    bos = [] if ours.bos_id is None else [ours.bos_id]
    assert ours.decode([*bos, *ours.encode("I saw")]) == ours.decode(ours.encode("I saw"))
    with pytest.raises(UserError, match="outside the vocabulary"):
        ours.decode([ours.vocab_size])


def test_several_models_in_one_folder_are_named(files: Path) -> None:
    with pytest.raises(UserError, match="test_ja_model.model, test_model.model"):
        Tokenizer.load(files / "sentencepiece")


def test_bert_vocabulary_gives_the_golden_ids(shared: Path) -> None:
    for vocabulary, golden in (
        ("bert-minilm-3l", "bert-minilm-3l/golden.json"),
        ("tokenizers/bert-base-uncased/vocab.txt", "golden/all-minilm-l6-v2.json"),
    ):
        folder = shared / "data/checkpoints"
        if not (folder / golden).is_file():
            pytest.skip(f"{folder / golden} is absent")
        tokenizer = Tokenizer.load(folder / vocabulary)
        assert tokenizer.kind == "wordpiece"
        expected = json.loads((folder / golden).read_text(encoding="utf-8"))
        for sentence, ids in zip(expected["sentences"], expected["input_ids"], strict=True):
            padded = [tokenizer.bos_id, *tokenizer.encode(sentence), tokenizer.eos_id]
            assert padded + [tokenizer.pad_id] * (len(ids) - len(padded)) == ids


def test_bert_vocab_txt_equals_its_tokenizer_json(files: Path) -> None:
    folder = files / "bert-base-uncased"
    listed, whole = Tokenizer.load(folder / "vocab.txt"), Tokenizer.load(folder / "tokenizer.json")
    for text in _random_texts(200):
        assert listed.encode(text) == whole.encode(text)
        assert listed.decode(listed.encode(text)) == whole.decode(whole.encode(text))


def test_bert_chinese_decodes_without_spaces(files: Path) -> None:
    tokenizer = Tokenizer.load(files / "bert-base-chinese")
    for text in ("我爱自然语言处理。", "今天很冷，明天呢？", "我们去 paris 吧"):
        assert tokenizer.decode(tokenizer.encode(text)).replace(" ", "") == text.replace(" ", "")
    assert " " not in tokenizer.decode(tokenizer.encode("我爱自然语言处理。今天很冷，明天呢？"))


def _gpt2(vocab: dict[str, int], ranks: dict[tuple[str, ...], int], text: str) -> list[int]:
    """Byte-level BPE as Radford et al. 2019 define it, on ASCII text, written from the definition."""
    ids = []
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
    for word in re.findall(pattern, text):
        symbols = [chr(ord(char) + 256) if char in " \n\t" else char for char in word]
        while pairs := [pair for pair in zip(symbols, symbols[1:], strict=False) if pair in ranks]:
            left, right = min(pairs, key=ranks.__getitem__)
            at = 0
            while at < len(symbols) - 1:
                if (symbols[at], symbols[at + 1]) == (left, right):
                    symbols[at : at + 2] = [left + right]
                at += 1
        ids += [vocab[symbol] for symbol in symbols]
    return ids


def test_gpt2_files_give_the_published_ids(files: Path) -> None:
    tokenizer = Tokenizer.load(files / "gpt2")
    assert tokenizer.encode("hello world") == [31373, 995]
    assert (tokenizer.eos_id, tokenizer.vocab_size) == (50256, 50257)
    vocab = json.loads((files / "gpt2/encoder.json").read_text(encoding="utf-8"))
    merges = (files / "gpt2/vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    ranks = {tuple(line.split(" ")): rank for rank, line in enumerate(merges)}
    rng = random.Random(8)
    for text in [
        "  a  b\n\n c",
        "don't we'll 123!!",
        *("".join(rng.choices("the cat's  12\n!?", k=30)) for _ in range(20)),
    ]:
        assert tokenizer.encode(text) == _gpt2(vocab, ranks, text)
    dropout = BpeDropout(tokenizer, 0.0)
    for text in _random_texts(100):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert dropout.encode(text, rng) == tokenizer.encode(text)


def test_vocab_and_merges_pair_equals_the_same_vocabulary_in_tokenizer_json(files: Path, tmp_path: Path) -> None:
    for source, name in (("tiny_bpe_vocab.json", "vocab.json"), ("tiny_bpe_merges.txt", "merges.txt")):
        (tmp_path / name).write_bytes((files / "torchtune" / source).read_bytes())
    pair, whole = Tokenizer.load(tmp_path), Tokenizer.load(files / "torchtune/tiny_bpe_tokenizer.json")
    assert pair.encode("hello world") == whole.encode("hello world")
    assert len(pair.encode("hello world")) < len("hello world")

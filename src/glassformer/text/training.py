"""Learning a vocabulary, the same one from the same lines on every run and machine.

BPE is trained by the `tokenizers` library, which is fast and deterministic once the alphabet is given. Its other two
trainers follow the random order of a hash table, so Unigram is trained by the `sentencepiece` library on one thread,
and WordPiece by `learn_merges`; all three see the same runs of text.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import tokenizers
from tokenizers import models, normalizers, trainers

from glassformer.text import recipe
from glassformer.text.merges import learn_merges
from glassformer.text.normalize import steps

_REMOVED = "\n"  # is a run of its own, so that no piece reaches across a removed character


class Corpus:
    """The training lines, and the characters in them that earn a piece of their own.

    Args:
        min_frequency: a character seen less often gets no piece.
        limit: at most this many characters get one, the most frequent first; equals by code point.
    """

    def __init__(self, lines: Iterable[str], kind: str, normalizer: str, min_frequency: int, limit: int) -> None:
        self.normalizer = recipe.normalizer(normalizer)
        self.pre_tokenizer = recipe.pre_tokenizer(kind)
        named = normalizers.Sequence(steps(normalizer))
        self._lines = [named.normalize_str(line) for line in lines]
        counts: Counter[str] = Counter()
        for line in self._lines:
            counts.update(line)
        frequent = sorted((char for char in counts if counts[char] >= min_frequency), key=lambda c: (-counts[c], c))
        self._removed = {ord(char): _REMOVED for char in set(counts) - set(frequent[:limit]) - {" "}}

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[str]:
        """The lines, with characters that get no piece replaced by line breaks."""
        removed = frozenset(map(chr, self._removed))
        return (line if removed.isdisjoint(line) else line.translate(self._removed) for line in self._lines)

    def words(self) -> dict[str, int]:
        """How often each run occurs, the most frequent first; a run ends at a character that gets no piece."""
        counts: Counter[str] = Counter()
        for line in self:
            text = self.normalizer.normalize_str(line)
            counts.update(run for run, _ in self.pre_tokenizer.pre_tokenize_str(text))
        del counts[_REMOVED]
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def train(
    corpus: Corpus, kind: str, vocab_size: int, reserved: Sequence[str], byte_fallback: bool, min_frequency: int
) -> tokenizers.Tokenizer:
    """Trains one tokenizer; the arguments are those of `Tokenizer.train`, checked there.

    Args:
        reserved: the special tokens, which take the first ids; the bytes follow.
    """
    first = [*reserved, *(recipe.BYTES if byte_fallback else ())]
    learn = {"bpe": _bpe, "wordpiece": _wordpiece, "unigram": _unigram}[kind]
    backend = tokenizers.Tokenizer(learn(corpus, vocab_size, first, byte_fallback, min_frequency))
    backend.normalizer = corpus.normalizer
    backend.pre_tokenizer = corpus.pre_tokenizer
    backend.decoder = recipe.decoder(kind)
    backend.add_special_tokens(list(reserved))
    return backend


def _bpe(corpus: Corpus, vocab_size: int, first: list[str], byte_fallback: bool, min_frequency: int) -> models.Model:
    scratch = tokenizers.Tokenizer(models.BPE())
    scratch.normalizer, scratch.pre_tokenizer = corpus.normalizer, corpus.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=first,
        initial_alphabet=[recipe.SPACE],
        show_progress=False,
    )
    scratch.train_from_iterator(corpus, trainer, length=len(corpus))
    learned = json.loads(scratch.to_str())["model"]
    merges = [(left, right) for left, right in learned["merges"]]
    return models.BPE(learned["vocab"], merges, unk_token="<unk>", byte_fallback=byte_fallback, fuse_unk=True)


def _wordpiece(corpus: Corpus, vocab_size: int, first: list[str], _: bool, min_frequency: int) -> models.Model:
    counts = corpus.words()
    words = {(word[0], *(recipe.CONTINUATION + char for char in word[1:])): n for word, n in counts.items()}
    alphabet = sorted(set(recipe.SPACE).union(*counts))
    inside = [recipe.CONTINUATION + char for char in alphabet if not re.match(f"[{recipe.SPACELESS}]", char)]
    symbols = dict.fromkeys([*first, *alphabet, *inside])
    merges = learn_merges(words, vocab_size - len(symbols), min_frequency, _join_wordpiece)
    pieces = [*symbols, *(_join_wordpiece(*merge) for merge in merges)]
    return models.WordPiece(
        {piece: index for index, piece in enumerate(dict.fromkeys(pieces))},
        unk_token="<unk>",
        continuing_subword_prefix=recipe.CONTINUATION,
        max_input_chars_per_word=recipe.MAX_LETTERS + 1,
    )


def _join_wordpiece(left: str, right: str) -> str:
    return left + right.removeprefix(recipe.CONTINUATION)


def _unigram(corpus: Corpus, vocab_size: int, first: list[str], byte_fallback: bool, _: int) -> models.Model:
    import sentencepiece

    words = corpus.words()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=(f"{word}\t{count}" for word, count in words.items() if not word.isspace()),
        input_format="tsv",
        model_writer=model,
        model_type="unigram",
        vocab_size=max(vocab_size - len(first), len(set().union(*words)) + 2) + 1,
        hard_vocab_limit=False,
        character_coverage=1.0,
        max_sentencepiece_length=recipe.MAX_SPACELESS,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        split_by_number=False,
        bos_id=-1,
        eos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    learned = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    # Six decimals, since the reader of tokenizer.json rounds longer numbers a last bit away from what was written.
    pieces = [(learned.IdToPiece(i), round(learned.GetScore(i), 6)) for i in range(1, learned.GetPieceSize())]
    missing = {recipe.SPACE} - {piece for piece, _ in pieces}
    least = min(score for _, score in pieces)
    vocab = [*((token, 0.0) for token in first), *pieces, *((piece, least) for piece in sorted(missing))]
    return models.Unigram(vocab, unk_id=first.index("<unk>"), byte_fallback=byte_fallback)

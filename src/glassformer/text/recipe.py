"""How our own tokenizers cut text, and how they are trained.

The text is normalised, spaces become `▁`, and a dummy `▁` is put in front unless the first character belongs to a script
written without spaces; so "The" at the start and " The" inside are one piece, and a Chinese sentence gets no `▁`.
Decoding strips exactly one leading space if there is one, which makes the round trip exact: text that begins with a
space got a second one. A literal U+2581 in the text is written as a pair of noncharacters and comes back as itself.

The pre-tokenizer then cuts runs that no piece may cross: letters with at most one `▁` before them, an English clitic
('s, 't), runs of letters of scripts without spaces, one other character, one blank. Runs are capped, since training on
text without spaces is otherwise quadratic in the length of a line.

Byte fallback follows SentencePiece (Kudo & Richardson 2018, arXiv:1808.06226): a character without a piece becomes its
UTF-8 bytes `<0x00>` … `<0xFF>`. No run can spell a special or a byte piece, since `<` always stands alone.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from glassformer.text.normalize import LEAD, LITERAL, steps

KINDS = ("bpe", "wordpiece", "unigram")
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
SPACE = "▁"
CONTINUATION = "##"
MAX_LETTERS = 64
MAX_SPACELESS = 16

_LITERAL_SPACE = LEAD + "\ufdd2"
# Letters of scripts that put no spaces between words: Thai, Lao, Tibetan, Myanmar, Khmer, Tai, kana, bopomofo, Han.
_SPACELESS = (
    "\u0e01-\u0e4e\u0e81-\u0ece\u0f40-\u0fbc\u1000-\u103f\u1050-\u109d\u1780-\u17d3\u1950-\u19df\u1a20-\u1a7f\u2e80-\u2fdf"
    "\u3005-\u3007\u3021-\u302f\u3031-\u3035\u3038-\u303c\u3041-\u309f\u30a1-\u30fa\u30fc-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9fe\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003fffd"
)
# What may open a sentence in such a script besides: CJK punctuation, enclosed and full-width forms.
_SPACELESS_MARKS = "\u3000-\u33ff\ufe30-\ufe4f\uff00-\uffef"
_PATTERN = "|".join(
    (
        rf"{SPACE}?[\p{{L}}\p{{M}}&&[^{_SPACELESS}]]{{1,{MAX_LETTERS}}}",
        rf"['’][a-z]{{1,{MAX_LETTERS}}}",
        rf"[{_SPACELESS}]{{1,{MAX_SPACELESS}}}",
        rf"{SPACE}?[^{SPACE}\s{_SPACELESS}]",
        rf"{SPACE}{{1,{MAX_SPACELESS}}}(?={SPACE})",
        rf"{SPACE}|\s",
    )
)


def normalizer(name: str) -> normalizers.Normalizer:
    """The saved normaliser: the named steps, then the marking of spaces described above."""
    return normalizers.Sequence(
        [
            *steps(name),
            normalizers.Replace(LEAD, LEAD + LITERAL),
            normalizers.Replace(SPACE, _LITERAL_SPACE),
            normalizers.Replace(" ", SPACE),
            normalizers.Replace(tokenizers.Regex(rf"\A(?=[^{_SPACELESS}{_SPACELESS_MARKS}])"), SPACE),
        ]
    )


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Cuts normalised text into the runs that no piece crosses."""
    return pre_tokenizers.Split(tokenizers.Regex(_PATTERN), "isolated")


def decoder(kind: str) -> decoders.Decoder:
    """Joins pieces into text: the exact inverse of `normalizer`'s marking of spaces."""
    own = (
        [decoders.Replace(tokenizers.Regex(rf"\A{CONTINUATION}(?=.)"), "")]
        if kind == "wordpiece"
        else [decoders.ByteFallback()]
    )
    return decoders.Sequence(
        [
            *own,
            decoders.Fuse(),
            decoders.Replace(SPACE, " "),
            decoders.Strip(" ", 1, 0),
            decoders.Replace(_LITERAL_SPACE, SPACE),
            decoders.Replace(LEAD + LITERAL, LEAD),
        ]
    )


def train(
    lines: Sequence[str],
    kind: str,
    vocab_size: int,
    normalizer_name: str,
    reserved: Sequence[str],
    byte_fallback: bool,
    min_frequency: int,
    limit_alphabet: int,
) -> tokenizers.Tokenizer:
    """Trains one tokenizer; the arguments are those of `Tokenizer.train`, checked there.

    Args:
        reserved: the special tokens, which take the first ids.
        limit_alphabet: at most this many characters become pieces, the most frequent first.
    """
    backend = tokenizers.Tokenizer(_empty_model(kind, byte_fallback))
    backend.normalizer = normalizer(normalizer_name)
    backend.pre_tokenizer = pre_tokenizer()
    backend.decoder = decoder(kind)
    rare = _rare_characters(backend, lines, min_frequency, limit_alphabet)
    first = [*reserved, *(BYTES if byte_fallback else ())]
    backend.train_from_iterator(
        _without(lines, rare), _trainer(kind, vocab_size, first, min_frequency), length=len(lines)
    )
    return _with_plain_bytes(backend, len(reserved), byte_fallback)


def _empty_model(kind: str, byte_fallback: bool) -> models.Model:
    if kind == "bpe":
        return models.BPE(unk_token="<unk>", byte_fallback=byte_fallback, fuse_unk=True)
    if kind == "wordpiece":
        return models.WordPiece(
            unk_token="<unk>", continuing_subword_prefix=CONTINUATION, max_input_chars_per_word=MAX_LETTERS + 1
        )
    return models.Unigram(byte_fallback=byte_fallback)


def _trainer(kind: str, vocab_size: int, first: list[str], min_frequency: int) -> trainers.Trainer:
    shared: dict[str, Any] = {
        "vocab_size": vocab_size,
        "special_tokens": first,
        "initial_alphabet": [SPACE],
        "show_progress": False,
    }
    if kind == "bpe":
        return trainers.BpeTrainer(min_frequency=min_frequency, **shared)
    if kind == "wordpiece":
        return trainers.WordPieceTrainer(
            min_frequency=min_frequency, continuing_subword_prefix=CONTINUATION, **shared
        )
    return trainers.UnigramTrainer(unk_token="<unk>", max_piece_length=MAX_SPACELESS, **shared)


def _rare_characters(
    backend: tokenizers.Tokenizer, lines: Sequence[str], min_frequency: int, limit: int
) -> frozenset[str]:
    """Characters that get no piece. Counted here since the library breaks ties in a random order."""
    assert backend.normalizer is not None
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(backend.normalizer.normalize_str(line))
    kept = sorted((char for char in counts if counts[char] >= min_frequency), key=lambda char: (-counts[char], char))
    return frozenset(counts) - frozenset(kept[:limit])


def _without(lines: Sequence[str], rare: frozenset[str]) -> Any:
    # A line break is a run of its own, so nothing merges across a removed character.
    table = {ord(char): "\n" for char in rare}
    return (line if rare.isdisjoint(line) else line.translate(table) for line in lines)


def _with_plain_bytes(backend: tokenizers.Tokenizer, specials: int, byte_fallback: bool) -> tokenizers.Tokenizer:
    """Demotes byte pieces from special tokens, as which they were trained to get the first ids, to ordinary ones."""
    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < specials]
    if "byte_fallback" in state["model"]:
        state["model"]["byte_fallback"] = byte_fallback
    return tokenizers.Tokenizer.from_str(json.dumps(state, ensure_ascii=False))

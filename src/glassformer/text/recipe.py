"""How our own tokenizers mark spaces, cut text into runs, and join pieces again.

The text is normalised, spaces become `▁`, and a dummy `▁` is put in front unless the first character belongs to a
script written without spaces; so "The" at the start and " The" inside are one piece, and a Chinese sentence gets none.
Decoding strips exactly one leading space if there is one, which makes the round trip exact: text that begins with a
space got a second one. A literal U+2581 in the text is written as a pair of noncharacters and comes back as itself.

The pre-tokenizer then cuts runs that no piece may cross: letters with at most one `▁` before them, an English clitic
('s, 't), runs of letters of scripts without spaces, one other character, one blank. Runs are capped, since training on
text without spaces is otherwise quadratic in the length of a line.

Byte fallback follows SentencePiece (Kudo & Richardson 2018, arXiv:1808.06226): a character without a piece becomes its
UTF-8 bytes `<0x00>` … `<0xFF>`. No run can spell a special or a byte piece, since `<` always stands alone.
"""

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

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
SPACELESS = (
    "\u0e01-\u0e4e\u0e81-\u0ece\u0f40-\u0fbc\u1000-\u103f\u1050-\u109d\u1780-\u17d3\u1950-\u19df\u1a20-\u1a7f\u2e80-\u2fdf"
    "\u3005-\u3007\u3021-\u302f\u3031-\u3035\u3038-\u303c\u3041-\u309f\u30a1-\u30fa\u30fc-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9fe\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003fffd"
)
# What may open a sentence in such a script besides: CJK punctuation, enclosed and full-width forms.
_SPACELESS_MARKS = "\u3000-\u33ff\ufe30-\ufe4f\uff00-\uffef"


def normalizer(name: str) -> normalizers.Normalizer:
    """The saved normaliser: the named steps, then the marking of spaces described above."""
    return normalizers.Sequence(
        [
            *steps(name),
            normalizers.Replace(LEAD, LEAD + LITERAL),
            normalizers.Replace(SPACE, _LITERAL_SPACE),
            normalizers.Replace(" ", SPACE),
            normalizers.Replace(tokenizers.Regex(rf"\A(?=[^{SPACELESS}{_SPACELESS_MARKS}])"), SPACE),
        ]
    )


def pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    """Cuts normalised text into the runs that no piece crosses.

    WordPiece takes each character of a script without spaces alone, as BERT does: it cannot tell where a word starts.
    """
    spaceless = 1 if kind == "wordpiece" else MAX_SPACELESS
    runs = (
        rf"{SPACE}?[\p{{L}}\p{{M}}&&[^{SPACELESS}]]{{1,{MAX_LETTERS}}}",
        rf"['’][a-z]{{1,{MAX_LETTERS}}}",
        rf"[{SPACELESS}]{{1,{spaceless}}}",
        rf"{SPACE}?[^{SPACE}\s{SPACELESS}]",
        rf"{SPACE}{{1,{MAX_SPACELESS}}}(?={SPACE})",
        rf"{SPACE}|\s",
    )
    return pre_tokenizers.Split(tokenizers.Regex("|".join(runs)), "isolated")


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

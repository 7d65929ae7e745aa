"""The normalisers a tokenizer can be saved with, each an explicit choice: `none`, `nfc`, `nfkc`.

NFKC would turn the full-width marks of Chinese (，！？（）：；…) into ASCII, and a model trained on such text could
never print them again. Ours exempts them: before NFKC each such mark becomes a pair of noncharacters, which Unicode
reserves for a program's own use and which normalisation leaves alone, and afterwards the pair becomes the mark again.
The lead noncharacter itself is escaped first, so that the exemption is exact for every input.
"""

from tokenizers import normalizers

NORMALIZERS = ("none", "nfc", "nfkc")

# Every literal LEAD in the text is first written LEAD + LITERAL. From then on a LEAD followed by any other
# noncharacter can only be a code of ours, so decoding in the reverse order is unambiguous.
LEAD = "\ufdd0"
LITERAL = "\ufdd1"
KEPT_BY_NFKC = "，！？（）：；［］～…"
_KEPT_CODES = {mark: LEAD + chr(0xFDD3 + index) for index, mark in enumerate(KEPT_BY_NFKC)}


def steps(name: str) -> list[normalizers.Normalizer]:
    """The steps of a named normaliser, in order, for use inside a `normalizers.Sequence`.

    Raises:
        KeyError: `name` is not in `NORMALIZERS`.
    """
    named: dict[str, list[normalizers.Normalizer]]
    named = {"none": [], "nfc": [normalizers.NFC()], "nfkc": _nfkc_steps()}
    return named[name]


def _nfkc_steps() -> list[normalizers.Normalizer]:
    protect = [normalizers.Replace(mark, code) for mark, code in _KEPT_CODES.items()]
    restore = [normalizers.Replace(code, mark) for mark, code in _KEPT_CODES.items()]
    escape, unescape = normalizers.Replace(LEAD, LEAD + LITERAL), normalizers.Replace(LEAD + LITERAL, LEAD)
    return [escape, *protect, normalizers.NFKC(), *restore, unescape]


def normalize(text: str, name: str) -> str:
    """`text` as the normaliser `name` leaves it: what `decode(encode(text))` gives back."""
    return str(normalizers.Sequence(steps(name)).normalize_str(text))

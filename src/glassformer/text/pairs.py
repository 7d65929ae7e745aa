"""Two texts in one row, as BERT reads a question and a passage: ``[CLS] a [SEP] b [SEP]``."""

from __future__ import annotations

from typing import NamedTuple

from glassformer.errors import UserError
from glassformer.text.tokenizer import Tokenizer


class PairRow(NamedTuple):
    """Ids of two texts with what stands around them.

    Attributes:
        ids: The whole row.
        types: The segment of each id.
        cut: Whether a text was cut.
        second: Where the second text's ids stand.
        first_end: How many ids there are up to the first text's last.
    """

    ids: list[int]
    types: list[int]
    cut: bool
    second: range
    first_end: int


def encode_pair(tokenizer: Tokenizer, first: str, second: str, limit: int | None = None) -> PairRow:
    """Puts two texts into one row.

    What stands around them is what the tokenizer's file says, else ``[CLS] a [SEP] b [SEP]`` in segments 0 and 1.

    Args:
        tokenizer: A WordPiece or another one that knows a token for the beginning and one for the end of a text.
        first: Such as a question.
        second: Such as a passage.
        limit: Most ids of the row; the longer of the texts is cut.

    Raises:
        UserError: The tokenizer has no such tokens, or nothing but they fit.
    """
    a, b = tokenizer.encode(first), tokenizer.encode(second)
    before, between, after = _frame(tokenizer)
    room = len(a) + len(b) if limit is None else limit - len(before) - len(between) - len(after)
    if room < 0:
        raise UserError(f"a pair of texts does not fit into {limit} tokens")
    spare = max(0, len(a) + len(b) - room)
    for _ in range(spare):
        (a if len(a) > len(b) else b).pop()
    second_type = after[-1][1] if after else 1
    row = [*before, *((index, 0) for index in a), *between, *((index, second_type) for index in b), *after]
    start = len(before) + len(a) + len(between)
    places = range(start, start + len(b))
    return PairRow(
        [index for index, _ in row], [segment for _, segment in row], spare > 0, places, len(before) + len(a)
    )


def _frame(tokenizer: Tokenizer) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]:
    """The special ids before, between and behind two texts, each with its segment."""
    backend = tokenizer.backend
    if getattr(backend, "post_processor", None) is not None:
        encoding = backend.encode("a", "a", add_special_tokens=True)
        marked = list(zip(encoding.ids, encoding.type_ids, strict=True))
        texts = [at for at, special in enumerate(encoding.special_tokens_mask) if not special]
        split = next((n for n in range(1, len(texts)) if texts[n] != texts[n - 1] + 1), len(texts) // 2)
        first, second = texts[:split], texts[split:]
        return marked[: first[0]], marked[first[-1] + 1 : second[0]], marked[second[-1] + 1 :]
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if bos is None or eos is None:
        raise UserError("this tokenizer has no tokens around a text, so it reads no pairs; give one text")
    return [(bos, 0)], [(eos, 0)], [(eos, 1)]

"""A vocabulary of whole words, for models that are to be read number by number."""

from __future__ import annotations

import re
from collections.abc import Iterable

import tokenizers
from tokenizers import models, pre_tokenizers

from glassformer.text.recipe import SPECIALS
from glassformer.text.tokenizer import Tokenizer


def word_tokenizer(sentences: Iterable[str]) -> Tokenizer:
    """Each word of some sentences, divided by blanks there, gets an id, in the order of their first appearance.

    Text is then cut at blanks and wherever one of these words begins, the longest first, so that Chinese needs no
    blanks; what is no such word is ``<unk>``. Blanks come back between all words.
    """
    words = list(dict.fromkeys(word for sentence in sentences for word in sentence.split()))
    vocab = {word: index for index, word in enumerate([*SPECIALS, *words])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    known = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True) if not _latin(word))
    cut = pre_tokenizers.Split(tokenizers.Regex(rf"\s+|[A-Za-z']+|{known}|."), "isolated")
    blanks = pre_tokenizers.Split(tokenizers.Regex(r"\s+"), "removed")
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, blanks])
    backend.add_special_tokens(list(SPECIALS))
    return Tokenizer(backend)


def _latin(word: str) -> bool:
    return re.fullmatch(r"[A-Za-z']+", word) is not None

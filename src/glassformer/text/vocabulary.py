"""Tokenizers for models that come with a bare list of tokens, as CTranslate2's do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from glassformer.errors import UserError
from glassformer.text import foreign
from glassformer.text.tokenizer import Tokenizer

_SPECIAL = re.compile(r"<[^<> ]+>|\[[A-Z]+\]")


def tokenizer_of(directory: Path, source: Sequence[str], target: Sequence[str]) -> Tokenizer:
    """The tokenizer that lies beside a model, or one made of its vocabularies alone.

    Args:
        directory: Where it may lie.
        source, target: Tokens by id.

    Raises:
        UserError: The one that lies there has other pieces.
    """
    beside = next((name for name in foreign.FILES if (directory / name).is_file()), None)
    if beside is None:
        tokenizer = listed(source)
        if list(source) != list(target):
            tokenizer.target = listed(target)
        return tokenizer
    tokenizer = Tokenizer.load(directory)
    for side, tokens in ((tokenizer, source), (tokenizer.target, target)):
        if [side.id_to_token(index) for index in range(side.vocab_size)] != list(tokens[: side.vocab_size]):
            raise UserError(f"{directory / beside}: its pieces are not those of the model's vocabulary")
    return tokenizer


def listed(tokens: Sequence[str]) -> Tokenizer:
    """A tokenizer that looks up the characters of a text if every token is one, else what stands between spaces.

    Args:
        tokens: By id; what is written like ``<s>`` or ``[SEP]`` is special.
    """
    special = [token for token in tokens if _SPECIAL.fullmatch(token)]
    characters = all(len(token) == 1 for token in tokens if token not in special)
    unknown = next((token for token in ("<unk>", "[UNK]") if token in special), special[0] if special else "")
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise UserError(f"a vocabulary of {len(tokens)} tokens holds only {len(vocab)} different ones")
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=unknown))
    if characters:
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
    else:
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(special)
    return Tokenizer(backend)

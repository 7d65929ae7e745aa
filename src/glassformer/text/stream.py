"""Text of ids that arrive one by one."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.text.lazy import lazy
from glassformer.text.tokenizer import Tokenizer

_BYTE = lazy(r"<0x[0-9A-Fa-f]{2}>")
# U+FFFD may be the beginning of a character whose last bytes are still to come. The noncharacters U+FDD0 … U+FDEF
# begin the pairs in which our tokenizers write a literal U+2581 or U+FDD0.
_UNSETTLED = lazy(r"[\ufffd\ufdd0-\ufdef]\Z")


class StreamDecoder:
    """Gives the text of a growing list of ids, piece by piece; joined, the pieces are `tokenizer.decode(all ids)`.

    Behind other ids they are what the new ones add to their text.

    A piece is held back while a later id could still change it: within a run of byte pieces (one broken byte turns the
    whole run into U+FFFD), and behind an incomplete character.

    Args:
        tokenizer: what decodes.
        before: ids that the new ones go on from, whose text is known already.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # Decoding begins anew at the last two settled places: far enough back for whatever joins two pieces (a
        # stripped first space, a space between words), and never further, so that a step's cost does not grow.
        self._before: list[int] = list(before)
        self._pending: list[int] = []
        self._in_bytes = False

    def feed(self, index: int) -> str:
        """The text that one more id settles; often "", sometimes that of several ids.

        Raises:
            UserError: the id is outside the vocabulary.
        """
        self._pending.append(index)
        known = self._tokenizer.decode(self._before)
        text = self._tokenizer.decode([*self._before, *self._pending])[len(known) :]
        # An id without text, such as a special one, settles nothing, and does not end a run of bytes.
        if _BYTE.fullmatch(self._tokenizer.id_to_token(index)):
            self._in_bytes = True
        elif self._tokenizer.decode([index]):
            self._in_bytes = False
        if not text or self._in_bytes or _UNSETTLED.search(text):
            return ""
        self._before, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        """The text that was still held back; the decoder may then be fed a new text."""
        known = self._tokenizer.decode(self._before)
        text = self._tokenizer.decode([*self._before, *self._pending])[len(known) :]
        self._before, self._pending, self._in_bytes = [], [], False
        return text

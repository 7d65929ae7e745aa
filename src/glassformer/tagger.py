"""Words of texts to labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from glassformer.engines.engine import Engine
from glassformer.header import Framing
from glassformer.reader import BATCH, Reader, Row, softmax
from glassformer.sentences import checked

if TYPE_CHECKING:
    import numpy as np

    from glassformer.text.tokenizer import Tokenizer


class WordLabel(TypedDict):
    """A word, where it stands in its text if it is one, and what it is taken for."""

    word: str
    start: NotRequired[int]
    end: NotRequired[int]
    label: str
    probability: float


class Entity(TypedDict):
    """A run of words that labels such as ``B-PER I-PER`` make one thing: words ``first`` … ``last``."""

    label: str
    text: str
    first: int
    last: int


class Tags(TypedDict):
    """A text's words with their labels, the entities that these make, and whether only its beginning was read."""

    words: list[WordLabel]
    entities: list[Entity]
    truncated: bool


class Tagger(Reader):
    """A model with a token classifier's head.

    Attributes:
        labels: their names, in the order of the logits.
    """

    single = (str,)

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None = None, framing: Framing | None = None) -> None:
        super().__init__(engine, tokenizer, framing)
        self.labels: tuple[str, ...] = getattr(engine.module.config.head, "labels", ())

    def classify(self, inputs: str | Sequence[str | Sequence[str]], *, batch_size: int = BATCH) -> Any:
        """Labels the words of texts, each at its first token, as it was trained to.

        Args:
            inputs: Several, or one text. A text in a list may be a list of its words; else they are found: runs of
                letters and digits, single letters of scripts without blanks, and single marks.
            batch_size: Most texts that are read together; neither it nor a text's neighbours change its labels.

        Returns:
            `Tags` for each, or one for a single text. Words that did not fit into the model have none.

        Raises:
            UserError: An input is no text.
        """
        return self._all(inputs, batch_size)

    def _row(self, given: Any, number: int) -> Row:
        from glassformer.text.words import encode_words, words

        tokenizer = self._reads_text()
        if isinstance(given, list | tuple):
            found: list[dict[str, Any]] = [{"word": checked(word, number)} for word in given]
        else:
            found = [dict(word=word.text, start=word.start, end=word.end) for word in words(checked(given, number))]
        ids: list[int] = []
        for word, pieces in zip(found, encode_words(tokenizer, [word["word"] for word in found]), strict=True):
            # A word that the tokenizer spells with nothing has no place, and no label.
            word["at"] = len(self.framing.before) + len(ids) if pieces else None
            ids += pieces
        return self._framed(ids, number, found)

    def _told(self, given: Any, row: Row, logits: np.ndarray) -> Tags:
        probabilities_TL = softmax(logits)
        end = len(row.ids) - len(self.framing.after)
        told: list[WordLabel] = []
        for word in row.found:
            at = word["at"]
            if at is not None and at < end:
                best = int(probabilities_TL[at].argmax())
                label: Any = {"label": self.labels[best], "probability": float(probabilities_TL[at, best])}
                told.append({key: word[key] for key in ("word", "start", "end") if key in word} | label)
        return Tags(words=told, entities=entities(told, given), truncated=row.cut)


def entities(words: Sequence[WordLabel], text: str | Sequence[str]) -> list[Entity]:
    """The entities of labels in the scheme ``B-X I-X O``; an ``I-X`` that goes on with nothing begins one.

    Ramshaw and Marcus 1995, arXiv:cmp-lg/9505040, in the form of CoNLL-2003. Other labels make none.
    """
    found: list[Entity] = []
    for index, word in enumerate(words):
        place, dash, label = word["label"].partition("-")
        if not dash or place not in ("B", "I"):
            continue
        if place == "I" and found and found[-1]["last"] == index - 1 and found[-1]["label"] == label:
            found[-1]["last"] = index
        else:
            found.append(Entity(label=label, text="", first=index, last=index))
    for entity in found:
        first, last = words[entity["first"]], words[entity["last"]]
        if isinstance(text, str):
            entity["text"] = text[first["start"] : last["end"]]
        else:
            entity["text"] = " ".join(word["word"] for word in words[entity["first"] : entity["last"] + 1])
    return found

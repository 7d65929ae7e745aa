"""Questions about passages to the spans that answer them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from glassformer.errors import UserError
from glassformer.reader import BATCH, Reader, Row
from glassformer.sentences import checked

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Answer(TypedDict):
    """``passage[start:end]``, its probability, and whether the model read only the passage's beginning.

    Where no answer is likelier than any span, it is empty and has no place.
    """

    answer: str
    start: int | None
    end: int | None
    probability: float
    truncated: bool


class Answerer(Reader):
    """A model with a span head: it points to the answer of a question in a passage."""

    single = (tuple,)

    def answer(self, question: str, passage: str) -> Answer:
        """The likeliest answer of a question in a passage.

        Raises:
            UserError: One of them is no text, or they do not fit into the model.
        """
        told: Answer = self._all((question, passage), 1)
        return told

    def classify(self, inputs: tuple[str, str] | Sequence[tuple[str, str]], *, batch_size: int = BATCH) -> Any:
        """`answer` of several pairs of a question and a passage, or of one.

        Args:
            inputs: Tuples of two texts.
            batch_size: Most pairs that are read together; neither it nor a pair's neighbours change its answer.
        """
        return self._all(inputs, batch_size)

    def _row(self, given: Any, number: int) -> Row:
        from glassformer.text.spans import encode_question

        if not isinstance(given, tuple) or len(given) != 2:
            raise UserError(f"text {number}: expected a question and a passage, with a tab between them in a file")
        question, passage = (checked(text, number) for text in given)
        row = encode_question(self._reads_text(), question, passage, self.limit)
        return Row(row.ids, row.types, row.cut, row)

    def _also(self, rows: Sequence[Row], ids_BT: Tensor, known: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        """Questions see whole passages, and are seen by them, where a model has attention of that kind."""
        from glassformer.data.collate import with_questions

        return with_questions(self.model.config, known, ids_BT, [row.found.asked for row in rows])

    def _told(self, given: Any, row: Row, logits: np.ndarray) -> Answer:
        from glassformer.text.spans import best_span

        span = best_span(logits, row.found.places)
        if span.first not in row.found.places:
            return Answer(answer="", start=None, end=None, probability=span.probability, truncated=row.cut)
        start, end = row.found.characters(given[1], span.first, span.last)
        return Answer(answer=given[1][start:end], start=start, end=end, probability=span.probability, truncated=row.cut)

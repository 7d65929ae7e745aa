"""Questions about passages in: SQuAD's JSON, JSON lines, and TSV."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.data.lines import read_lines
from glassformer.errors import UserError

COLUMNS = ("question", "context", "answer")


class Question(NamedTuple):
    """A question, the passage that answers it, and where: ``passage[start:start + len(answer)] == answer``.

    The answer is empty where the passage holds none.
    """

    question: str
    passage: str
    answer: str
    start: int


def read_questions(path: str) -> list[Question]:
    """Reads questions about passages.

    A ``.json`` file is SQuAD's (Rajpurkar et al. 2016; 2018, with unanswerable ones). A ``.jsonl`` file holds an object
    a line with ``question``, ``context`` and ``answer``, perhaps ``answer_start``, or ``answers`` as Hugging Face's
    data sets have it. Anything else is a TSV of these columns, by name where the first line names them, else in that
    order. An answer without a place stands at its first occurrence; an empty one means that there is none.

    Raises:
        UserError: The file is missing, empty or malformed, or an answer is not in its passage; with the place.
    """
    suffix = Path(path).suffix.lower()
    rows = _squad(path) if suffix == ".json" else _jsonl(path) if suffix == ".jsonl" else _tsv(path)
    found = [_placed(*row) for row in rows]
    if not found:
        raise UserError(f"{path}: no questions in it; expected at least one")
    return found


Row = tuple[str, str, str, str, int | None]
"""Where it stands, the question, the passage, the answer, and the answer's place if it is told."""


def _placed(at: str, question: str, passage: str, answer: str, start: int | None) -> Question:
    if not question.strip() or not passage.strip():
        what = "question" if passage.strip() else "context"
        raise UserError(f"{at}: the {what} is blank; fill it in, or delete the line")
    if not answer.strip():
        return Question(question, passage, "", 0)
    if start is None:
        start = passage.find(answer)
    if start < 0 or passage[start : start + len(answer)] != answer:
        raise UserError(
            f"{at}: the answer {answer[:40]!r} does not stand in its context; copy it from there, or leave it empty "
            "where there is none"
        )
    return Question(question, passage, answer.strip(), start + len(answer) - len(answer.lstrip()))


def _squad(path: str) -> Iterator[Row]:
    try:
        data = json.loads("\n".join(read_lines(path)))
        for article in data["data"]:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    at = f"{path}: question {asked.get('id', asked['question'])}"
                    yield (at, asked["question"], paragraph["context"], *_first(asked["answers"], at))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not as SQuAD's files are ({type(error).__name__}: {error})") from None


def _jsonl(path: str) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), 1):
        at = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"{at}: not JSON: {error}; expected one object a line") from None
        texts = [record.get(key) for key in COLUMNS[:2]] if isinstance(record, Mapping) else [None]
        if not all(isinstance(text, str) for text in texts) or not ("answer" in record or "answers" in record):
            raise UserError(f'{at}: expected an object {{"question": "…", "context": "…", "answer": "…"}}')
        answer, start = record.get("answer"), record.get("answer_start")
        if "answers" in record:
            answer, start = _first(record["answers"], at)
        if not isinstance(answer, str | None) or not isinstance(start, int | None):
            raise UserError(f"{at}: answer must be a string, and answer_start a number")
        yield at, record["question"], record["context"], answer or "", start


def _first(answers: Any, at: str) -> tuple[str, int | None]:
    """The first of the answers that people gave: a list of objects, or an object of lists."""
    try:
        if isinstance(answers, Mapping):
            places = zip(answers["text"], answers["answer_start"], strict=True)
            answers = [{"text": text, "answer_start": start} for text, start in places]
        return (str(answers[0]["text"]), int(answers[0]["answer_start"])) if answers else ("", None)
    except (KeyError, TypeError, ValueError):
        raise UserError(f'{at}: expected answers such as [{{"text": "…", "answer_start": 7}}]') from None


def _tsv(path: str) -> Iterator[Row]:
    columns: dict[str, int] = {name: index for index, name in enumerate(COLUMNS)}
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split("\t")
        if number == 1 and set(COLUMNS) <= {cell.strip() for cell in cells}:
            columns = {cell.strip(): index for index, cell in enumerate(cells)}
        elif line.strip():
            at = f"{path}:{number}"
            if len(cells) <= max(columns[name] for name in COLUMNS):
                raise UserError(f"{at}: expected a question, a context and an answer, with tabs between")
            place = cells[columns["answer_start"]].strip() if "answer_start" in columns else ""
            if place and not place.isdecimal():
                raise UserError(f"{at}: answer_start {place!r} is no number")
            question, passage, answer = (cells[columns[name]] for name in COLUMNS)
            yield at, question, passage, answer, int(place) if place else None

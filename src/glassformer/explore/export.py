"""One self-contained page: the built page with everything that it would have asked about one run."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor

from glassformer.errors import UserError
from glassformer.explore.app import STATIC
from glassformer.explore.lens import lens
from glassformer.explore.models import Models, Opened
from glassformer.explore.numbers import MOST, to_bytes
from glassformer.explore.problem import Problem
from glassformer.explore.reading import RunRequest
from glassformer.explore.runs import Run, Runs
from glassformer.explore.segment import segment
from glassformer.explore.training import Lesson
from glassformer.explore.worked import worked
from glassformer.sentences import direction_of

BEAM_SIZE = 4
"""What the page asks for unless it is told otherwise."""
MOST_BYTES = 14_000_000
"""Of all numbers, as they stand in the page; behind it the less important tensors are left out."""
SMALL = 4096
"""Learnt tensors of so many numbers are held whole."""
MOST_PIECES = 65_536
"""Of a vocabulary that is held; behind it only the likeliest pieces have names."""
_ORDER = (
    "logits",
    "pattern",
    "scores",
    "sum",
    "normed",
    "embedded",
    "positions",
    "input",
    "output",
    "q",
    "k",
    "v",
    "z",
)
"""Tensors by the last part of their names, the most looked at first."""
_PLACE = "<!--responses-->"

Answers = dict[str, dict[str, Any]]


def write_page(text: str | None, given: Sequence[str], source: str | None, to: str | None) -> str:
    """The page of one text, as HTML that needs no server.

    Args:
        text: What the first model reads, or the path of an image; None is its example.
        given: Models; the first one is used, or the bundled translator.
        source, to: Languages, where the model has several.

    Raises:
        UserError: The page is not built, or the text cannot be run.
    """
    file = STATIC / "page.html"
    if not file.is_file():
        raise UserError(f"--html: {file} is missing; build the page first: npm ci and npm run build in ui/")
    page = file.read_text(encoding="utf-8")
    if _PLACE not in page:
        raise UserError(f"--html: {file} has no place for answers; build the page again")
    data = json.dumps({"responses": answers(text, given, source, to)}, ensure_ascii=False, separators=(",", ":"))
    data = data.replace("</", "<\\/").replace("<!--", "<\\!--")
    return page.replace(_PLACE, f"<script>window.__GLASSFORMER__ = {data}</script>", 1)


def answers(text: str | None, given: Sequence[str], source: str | None, to: str | None) -> Answers:
    """What the server would say, by method, path and body."""
    models = Models(given)
    card = models.cards[0]
    opened = models[card.name]
    told = card.to_dict()
    told["example"] = text or told["example"]
    asked: dict[str, Any] = {"model": card.name, "beam_size": BEAM_SIZE}
    picture: dict[str, Any] = {}
    if told["input"] == "image":  # the page asks for no image by name, so that its answer is the one it finds
        picture = {"image": _picture(text)}
    else:
        asked["text"] = told["example"]
    if opened.translation is not None:
        direction = direction_of(told["example"], opened.sentences.possible_directions(source, to))
        if direction is not None:  # the page then finds no other one to ask for
            asked |= {"from": direction[0], "to": direction[1]}
            told["directions"] = [list(direction)]
    run = Runs(models, mark="saved").make(RunRequest(**asked, **picture))
    found: Answers = {
        "GET /api/models": {"json": [told]},
        f"GET /api/models/{_quoted(card.name)}": {"json": opened.architecture()},
        f"POST /api/runs {_canonical(asked)}": {"json": run.answer},
        "GET /api/worked": {"json": worked()},
        "GET /api/training": {"json": list(Lesson().events(seconds=0))},
    }
    if opened.target_tokens is not None and opened.config.target_vocab_size <= MOST_PIECES:
        found[f"GET /api/models/{_quoted(card.name)}/vocabulary"] = {"json": opened.vocabulary()}
    for stack, _ in opened.config.stacks:
        found[f"GET /api/runs/{run.answer['id']}/lens?stack={stack}"] = _lens(run, stack)
    found |= _segmentations(opened, told["example"], run)
    return found | _numbers(opened, run)


def _picture(path: str | None) -> str:
    if path is None or not Path(path).is_file():
        raise UserError(f"--html: this model reads images; give the path of one instead of {path or 'nothing'}")
    return base64.b64encode(Path(path).read_bytes()).decode()


def _lens(run: Run, stack: str) -> dict[str, Any]:
    try:
        return {"json": lens(run, stack)}
    except Problem as problem:
        return {"json": {"error": str(problem)}, "status": problem.status}


def _segmentations(opened: Opened, text: str, run: Run) -> Answers:
    sides = (("source", opened.source_tokens, text), ("target", opened.target_tokens, run.answer["output"]["text"]))
    path = f"GET /api/segment?model={_quoted(opened.name)}"
    return {
        f"{path}&side={side}&text={_quoted(each)}": {"json": segment(tokens, each)}
        for side, tokens, each in sides
        if tokens is not None and each.strip()
    }


def _numbers(opened: Opened, run: Run) -> Answers:
    """Tensors as long as there is room, the most important first."""
    found: Answers = {}
    room = MOST_BYTES
    for path, tensor in _wanted(opened, run):
        size = (tensor.numel() * 4 + 2) // 3 * 4
        if size <= room:
            room -= size
            data = base64.b64encode(to_bytes(tensor)).decode()
            found[f"GET {path}"] = {"base64": data, "shape": list(tensor.shape)}
    return found


def _wanted(opened: Opened, run: Run) -> Iterator[tuple[str, Tensor]]:
    ids = {token["id"] for side in ("source", "target", "labels") for token in run.answer[side]}
    for name, tensor in opened.weights.items():
        path = f"/api/models/{_quoted(opened.name)}/weights/{_quoted(name)}"
        if tensor.numel() <= SMALL:
            yield path, tensor
        elif name in ("embed.weight", "target_embed.weight"):
            yield from ((f"{path}?row={index}", tensor[index]) for index in sorted(ids) if index < len(tensor))
    ranks = {name: _rank(name) for name in run.tensors}
    for name in sorted(run.tensors, key=lambda name: ranks[name]):
        tensor = run.tensors[name]
        tensor = tensor[0] if run.axes[name].startswith("B") else tensor
        if tensor.numel() <= MOST:
            yield f"/api/runs/{run.answer['id']}/tensors/{_quoted(name)}", tensor


def _rank(name: str) -> int:
    last = name.rpartition(".")[2]
    return _ORDER.index(last) if last in _ORDER else len(_ORDER)


def _quoted(text: str) -> str:
    """As JavaScript's ``encodeURIComponent`` writes it."""
    return quote(text, safe="!'()*-._~")


def _canonical(body: dict[str, Any]) -> str:
    """A body as the page writes it: keys in order, no blanks."""
    return json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

"""The routes, and the page itself."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from glassformer.errors import UserError
from glassformer.explore.guard import Guard
from glassformer.explore.lens import lens
from glassformer.explore.models import Models
from glassformer.explore.numbers import part_of, to_bytes
from glassformer.explore.problem import Busy, Missing, Problem
from glassformer.explore.reading import RunRequest
from glassformer.explore.runs import Runs
from glassformer.explore.segment import segment
from glassformer.explore.training import Lesson
from glassformer.explore.worked import worked

STATIC = Path(__file__).with_name("static")
LEAVING = 3.0
"""Seconds that a training has to end after its page is gone, before another one is refused."""
log = logging.getLogger(__name__)


def build_app(given: Iterable[str] = (), static: Path = STATIC, host: str | None = None) -> FastAPI:
    """The server of the page.

    Args:
        given: Models beside those that ship with the package; the first one opens by default.
        static: The built page.
        host: Where it will listen: requests that name another are refused; None refuses none.

    Raises:
        UserError: There is no such model.
    """
    app = FastAPI(title="glassformer explore", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, host=host)
    models = Models(given)
    runs = Runs(models)
    app.state.models, app.state.runs = models, runs

    @app.get("/api/models")
    def cards() -> Any:
        return [card.to_dict() for card in models.cards]

    @app.get("/api/models/{name}/weights/{parameter:path}")
    def weight(name: str, parameter: str, row: str | None = None) -> Response:
        opened = models[name]
        if parameter not in opened.weights:
            raise Missing(f"no weight {parameter!r} in {name}")
        tensor = opened.weights[parameter]
        axes = " ".join("RCDE"[: tensor.dim()]) if tensor.dim() <= 4 else ""
        return _tensor(part_of(tensor, axes, {} if row is None else {"r": row}, parameter))

    @app.get("/api/models/{name}/vocabulary")
    def vocabulary(name: str) -> Any:
        return models[name].vocabulary()

    @app.get("/api/models/{name:path}")
    def architecture(name: str) -> Any:
        return models[name].architecture()

    @app.post("/api/runs")
    def run(request: RunRequest) -> Any:
        return JSONResponse(runs.make(request).answer)

    @app.get("/api/runs/{run}/tensors/{name:path}")
    def tensor(run: str, name: str, request: Request) -> Response:
        found = runs[run]
        return _tensor(part_of(found.tensor(name), found.axes[name], dict(request.query_params), name))

    @app.get("/api/runs/{run}/lens")
    def layers(run: str, stack: str = "decoder") -> Any:
        found = runs[run]
        with runs.gate():
            return JSONResponse(lens(found, stack))

    @app.get("/api/segment")
    def pieces(model: str, text: str, side: Literal["source", "target"] = "source") -> Any:
        opened = models[model]
        tokens = opened.source_tokens if side == "source" else opened.target_tokens
        if tokens is None:
            raise Problem(f"{model} has no tokenizer, so it reads no text")
        return segment(tokens, text)

    @app.get("/api/worked")
    def examples() -> Any:
        return worked()

    classroom = asyncio.Lock()

    @app.get("/api/training")
    async def training() -> Response:
        try:
            await asyncio.wait_for(classroom.acquire(), LEAVING)
        except TimeoutError:
            raise Busy("a model is learning already in another page; close that one") from None
        return _Lesson(classroom)

    _add_errors(app)
    if (static / "index.html").is_file():
        app.mount("/", StaticFiles(directory=static, html=True))
    else:

        @app.get("/")
        def unbuilt() -> Response:
            return Response(
                "The page is not built yet: run npm ci and npm run build in ui/.\n", media_type="text/plain"
            )

    return app


class _Lesson(StreamingResponse):
    """The events of one training, which ends when whoever looks on leaves; the classroom is free then.

    Args:
        classroom: Held already. Who left before the first event never starts the training, and yet has to free it.
    """

    def __init__(self, classroom: asyncio.Lock) -> None:
        super().__init__(_events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self.classroom = classroom

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.classroom.release()


async def _events() -> AsyncIterator[str]:
    events = (await run_in_threadpool(Lesson)).events()
    while (event := await run_in_threadpool(next, events, None)) is not None:
        yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


def _tensor(tensor: Any) -> Response:
    shape = ",".join(map(str, tensor.shape))
    return Response(to_bytes(tensor), media_type="application/octet-stream", headers={"X-Shape": shape})


def _add_errors(app: FastAPI) -> None:
    """Every error as ``{"error": one line}``."""

    @app.exception_handler(UserError)
    def mistake(request: Request, error: UserError) -> JSONResponse:
        return _problem(str(error), error.status if isinstance(error, Problem) else 400)

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(each) for each in first["loc"] if each != "body") or "body"
        return _problem(f"{where}: {first['msg']}", 400)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> JSONResponse:
        return _problem(f"{request.method} {request.url.path}: {error.detail}", error.status_code)

    @app.exception_handler(Exception)
    def fault(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s", request.method, request.url.path, exc_info=error)
        return _problem(f"{type(error).__name__}: {error}", 500)


def _problem(message: str, status: int) -> JSONResponse:
    line = " ".join(message.split()).encode(errors="replace").decode()  # half of a surrogate pair cannot be sent
    return JSONResponse({"error": line}, status)

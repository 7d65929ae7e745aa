"""The routes, and the page itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from glassformer.errors import UserError
from glassformer.explore.models import Models
from glassformer.explore.numbers import part_of, to_bytes
from glassformer.explore.problem import Missing, Problem
from glassformer.explore.reading import RunRequest
from glassformer.explore.runs import Runs

STATIC = Path(__file__).with_name("static")
log = logging.getLogger(__name__)


def build_app(given: Iterable[str] = (), static: Path = STATIC) -> FastAPI:
    """The server of the page.

    Args:
        given: Models beside those that ship with the package; the first one opens by default.
        static: The built page.

    Raises:
        UserError: There is no such model.
    """
    app = FastAPI(title="glassformer explore", docs_url=None, redoc_url=None, openapi_url=None)
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
        log.exception("%s %s", request.method, request.url.path)
        return _problem(f"{type(error).__name__}: {error}", 500)


def _problem(message: str, status: int) -> JSONResponse:
    return JSONResponse({"error": " ".join(message.split())}, status)

"""`glassformer explore`: the page that shows every number inside a model."""

import errno
import logging
import os
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from glassformer.cli import options
from glassformer.errors import UserError

if TYPE_CHECKING:
    from fastapi import FastAPI

app = typer.Typer(add_completion=False)

PORT = 8765


@app.command()
def explore(
    text: Annotated[str | None, typer.Argument(help="What to look at.", show_default="the model's example")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="A MODEL; may be repeated.", show_default="the models that ship with the package"
        ),
    ] = None,
    source: options.From = None,
    to: options.To = None,
    host: Annotated[str, typer.Option("--host", help="Where to listen; the default is this machine alone.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", help="Where to listen; 0 takes a free one.")] = PORT,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one self-contained page to this file, and serve nothing.")
    ] = None,
) -> None:
    """Look inside a model in the browser: open the address that is printed."""
    if html is not None:
        _write(html, text, model or [], source, to)
        return
    listening = _listen(host, port)
    with listening:
        from glassformer.explore.app import build_app

        app = build_app(model or [], host=host)
        asked = {"text": text, "from": source, "to": to}
        fragment = urlencode({key: value for key, value in asked.items() if value})
        name = f"[{host}]" if ":" in host else host
        print(f"http://{name}:{listening.getsockname()[1]}/{'#map?' + fragment if fragment else ''}", flush=True)
        _serve(app, listening)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything slow is loaded."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: must be from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise UserError(f"--host {host}: no such address; leave it out to serve this machine alone") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"--port {port}: something else listens there; give another one, or 0 for any") from None
        raise UserError(f"--host {host} --port {port}: cannot listen there ({error.strerror})") from None
    return listening


def _serve(app: "FastAPI", listening: socket.socket) -> None:
    import uvicorn

    print("Ctrl-C stops it", file=sys.stderr)
    threading.Thread(target=app.state.models.read_ahead, daemon=True).start()
    logging.getLogger("uvicorn.error").addFilter(lambda record: "CancelledError" not in str(record.exc_info))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        print(file=sys.stderr, flush=True)  # behind the terminal's own ^C
        os._exit(0)  # a run that is still computing has nobody to tell, and its thread would be waited for


def _write(file: Path, text: str | None, models: list[str], source: str | None, to: str | None) -> None:
    from glassformer.explore.export import write_page

    with options.output_stream(file) as stream:
        stream.write(write_page(text, models, source, to))
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB", file=sys.stderr)

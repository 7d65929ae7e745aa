"""What a request must be before any route reads it: meant for this server, and of a bounded size."""

from __future__ import annotations

import ipaddress
import json
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 32 << 20
"""Of a body: a photograph in base64 fits."""
_PORT = re.compile(r":\d*$")


class Guard:
    """Refuses a body beyond a limit, and a request whose Host is another's.

    A page of a stranger can make its own name point at this machine ("DNS rebinding"); the browser then takes this
    server for the stranger's. Such a request names the stranger as its Host.

    Args:
        app: What serves all others.
        host: Where the server listens; None asks no request for its Host.
    """

    def __init__(self, app: ASGIApp, host: str | None = None) -> None:
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        named = headers.get(b"host", b"").decode("latin-1")
        if self.host is not None and not meant(named, self.host):
            told = f"Host {named[:80]!r}: this server answers to localhost and {self.host} alone; --host names another"
            return await _refuse(send, 403, told)
        length = headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > MOST_BYTES):
            return await _refuse(send, 413, _TOO_LONG)
        read = answered = 0

        async def bounded() -> Message:
            nonlocal read, answered
            message = await receive()
            read += len(message.get("body", b""))
            if read > MOST_BYTES and not answered:  # a body that did not say how long it is
                answered = 1
                await _refuse(send, 413, _TOO_LONG)
            return {"type": "http.disconnect"} if answered else message

        async def once(message: Message) -> None:
            if not answered:
                await send(message)

        await self.app(scope, bounded, once)


def meant(named: str, host: str) -> bool:
    """Whether a Host header means a server that listens at ``host``: loopback, that name, or where it listens
    everywhere, any address in numbers, which no stranger's name can be."""
    name = _PORT.sub("", named).strip("[]").rstrip(".").lower()
    if name in ("localhost", host.strip("[]").lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or host in ("0.0.0.0", "::", "")


_TOO_LONG = f"more than {MOST_BYTES >> 20} MB in one request; give a shorter text or a smaller picture"


async def _refuse(send: Send, status: int, told: str) -> None:
    body = json.dumps({"error": told}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})

"""What is refused before any route reads it, and what a page that leaves lets go."""

from __future__ import annotations

import asyncio
import base64
import io
import struct
import warnings
import zlib

import pytest
from fastapi.testclient import TestClient

from glassformer.explore.app import build_app
from glassformer.explore.guard import MOST_BYTES, meant
from tests.explore.helpers import floats


@pytest.mark.parametrize(
    ("named", "host", "fine"),
    [
        ("localhost:8765", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.8.9.1:80", "127.0.0.1", True),
        ("[::1]:8765", "127.0.0.1", True),
        ("LOCALHOST.", "::1", True),
        ("box.lan:1", "box.lan", True),
        ("192.168.1.5:8765", "192.168.1.5", True),
        ("192.168.1.5:8765", "0.0.0.0", True),
        ("[fe80::1]:8765", "::", True),
        ("192.168.1.5", "127.0.0.1", False),
        ("evil.example", "127.0.0.1", False),
        ("evil.example:8765", "0.0.0.0", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("localhost.evil.example", "0.0.0.0", False),
        ("", "127.0.0.1", False),
    ],
)
def test_a_host_is_this_server_or_a_strangers_name(named: str, host: str, fine: bool) -> None:
    assert meant(named, host) is fine


def test_a_strangers_name_for_this_machine_is_refused_in_one_line() -> None:
    app = build_app(host="127.0.0.1")
    assert TestClient(app, base_url="http://localhost:8765").get("/api/models").status_code == 200
    for path in ("/api/models", "/", "/api/training"):
        response = TestClient(app, base_url="http://evil.example").get(path)
        assert response.status_code == 403 and "--host" in response.json()["error"]


@pytest.mark.parametrize("told", [True, False])
def test_a_body_beyond_the_limit_is_refused_while_it_comes(client, told: bool) -> None:
    sent = 0

    def body():
        nonlocal sent
        for _ in range(MOST_BYTES // (1 << 20) + 9):
            sent += 1 << 20
            yield b" " * (1 << 20)

    content = b" " * (MOST_BYTES + 1) if told else body()
    response = client.post("/api/runs", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 413 and "32 MB" in response.json()["error"]


def test_numbers_of_thousands_of_digits_and_halves_of_surrogates_are_mistakes(client) -> None:
    long = client.get(f"/api/models/translator/weights/embed.weight?row={'9' * 5000}")
    assert long.status_code == 400 and len(long.json()["error"]) < 200
    for field in ("text", "from", "to", "target", "model"):
        told = {"model": '"translator"', "text": '"好"'} | {field: '"\\ud800"'}
        content = "{" + ",".join(f'"{name}":{value}' for name, value in told.items()) + "}"
        response = client.post("/api/runs", content=content, headers={"content-type": "application/json"})
        assert response.status_code in (400, 404), (field, response.text)


@pytest.mark.parametrize("side", [60_000, 13_000, 8_000])
def test_a_small_file_that_claims_many_pixels_is_refused_before_it_is_unfolded(client, side: int) -> None:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response = client.post("/api/runs", json={"model": "classes", "image": base64.b64encode(bomb).decode()})
    assert response.status_code == 413 and "million pixels" in response.json()["error"]


def test_formats_whose_readers_start_programs_are_not_read(client) -> None:
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n%%EOF\n"
    response = client.post("/api/runs", json={"model": "classes", "image": base64.b64encode(page).decode()})
    assert response.status_code == 400 and "not an image" in response.json()["error"]


def test_a_photograph_of_many_pixels_is_read(client) -> None:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("L", (3000, 2000), 200).save(stream, "JPEG")
    response = client.post(
        "/api/runs", json={"model": "classes", "image": base64.b64encode(stream.getvalue()).decode()}
    )
    assert response.status_code == 200
    assert floats(client.get(f"/api/runs/{response.json()['id']}/tensors/head.logits")).shape


def test_who_leaves_before_the_training_starts_leaves_the_classroom_free(monkeypatch) -> None:
    monkeypatch.setattr("glassformer.explore.app.LEAVING", 0.2)
    app = build_app()

    async def visit(leaves: bool) -> int:
        status, left = 0, asyncio.Event()
        if leaves:
            left.set()

        async def receive():
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message.get("body"):
                left.set()

        scope = {"type": "http", "method": "GET", "path": "/api/training", "query_string": b"", "headers": []}
        await app({**scope, "asgi": {"version": "3.0"}, "http_version": "1.1"}, receive, send)
        return status

    async def all_of_them() -> int:
        for _ in range(3):
            await visit(leaves=True)
        return await visit(leaves=False)

    assert asyncio.run(all_of_them()) == 200

"""What tests of the page's server read and send."""

from __future__ import annotations

import base64
import io

import numpy as np

LINES = [
    "我喜欢打篮球。",
    "I like playing basketball.",
    "我爱自然语言处理。",
    "I love natural language processing.",
] * 3


def floats(response) -> np.ndarray:
    """The numbers of an answer in their shape."""
    assert response.status_code == 200, response.text
    shape = [int(size) for size in response.headers["x-shape"].split(",") if size]
    return np.frombuffer(response.content, "<f4").reshape(shape)


def picture(size: tuple[int, int] = (20, 30)) -> str:
    """A PNG in base64."""
    from PIL import Image

    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()

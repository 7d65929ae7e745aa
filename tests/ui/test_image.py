"""Pictures: the numbers on the page are the model's, and what is no picture is told in one line."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer as gf
from glassformer.store import save_model
from tests.randomised import randomise
from tests.ui.driver import number

Image = pytest.importorskip("PIL.Image", reason="no Pillow; pip install pillow")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose first model reads pictures."""
    folder = tmp_path_factory.mktemp("models") / "eyes"
    model = gf.build("vit-tiny", image_size=12, patch_size=4, channels=3, d_model=16, n_heads=2, d_ff=32, n_layers=2)
    save_model(folder, randomise(model, 3).eval(), None)
    command = [sys.executable, "-m", "glassformer", "explore", "-m", str(folder), "-m", "zh-en", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def picture(seed: int = 0) -> bytes:
    pixels = torch.randint(0, 256, (12, 12, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(stream, "PNG")
    return stream.getvalue()


def ask(page: Any, root: str, image: bytes) -> dict[str, Any]:
    body = {"model": "eyes", "image": base64.b64encode(image).decode()}
    return page.request.post(root + "api/runs", data=body).json()


def tensor(page: Any, root: str, run: dict[str, Any], name: str) -> np.ndarray:
    answer = page.request.get(f"{root}api/runs/{run['id']}/tensors/{name}")
    return np.frombuffer(answer.body(), "<f4").reshape([int(n) for n in answer.headers["x-shape"].split(",")])


def give(page: Any, name: str, data: bytes, kind: str = "image/png") -> None:
    page.locator("main input[type=file]").set_input_files({"name": name, "mimeType": kind, "buffer": data})


def hover(page: Any, drawing: str, row: int, col: int) -> str:
    """The tooltip over one patch of three by three."""
    plate = page.get_by_role("application", name=drawing)
    plate.scroll_into_view_if_needed()
    box = plate.bounding_box()
    page.mouse.move(box["x"] + (col + 0.5) * box["width"] / 3, box["y"] + (row + 0.5) * box["height"] / 3)
    return page.locator(".tip").inner_text()


def test_a_picture_is_read_and_its_numbers_are_the_models(page: Any, address: str) -> None:
    root = address.split("#")[0]
    run = ask(page, root, picture())
    page.goto(f"{root}#image?layer=1&head=1")
    page.get_by_text("equals the trace").wait_for()
    with page.expect_response("**/api/runs") as sent:
        give(page, "one.png", picture())
    assert sent.value.json()["output"] == run["output"]
    best = run["output"]["labels"][0]
    page.get_by_role("img", name=f"{best['label']}: {best['probability']:.3f}"[:-2]).first.wait_for()
    page.get_by_role("application", name="As the model sees it").press("ArrowLeft")
    page.get_by_text("Patch 3: row 1, column 0").first.wait_for()
    assert "source=4" in page.url
    assert "equals the trace embed.patches[3]" in re.sub(r"\s+", " ", page.locator("main").inner_text())
    pattern_HTS = tensor(page, root, run, "encoder.layers.1.mixer.pattern")
    assert number(hover(page, "Where it looks", 2, 1)) == pattern_HTS[1, 0, 1 + 7]
    page.get_by_role("radio", name="chosen patch").click()
    page.get_by_role("radio", name="mean of heads").click()
    page.get_by_role("application", name="Where it looks, layer 2, mean of heads").wait_for()
    np.testing.assert_allclose(number(hover(page, "Where it looks", 0, 2)), pattern_HTS[:, 4, 1 + 2].mean(), rtol=1e-6)
    page.get_by_role("radio", name="rollout").click()
    mixed = np.eye(10)
    for layer in range(2):
        mean_TS = tensor(page, root, run, f"encoder.layers.{layer}.mixer.pattern").mean(0)
        mixed = (mean_TS + np.eye(10)) / 2 @ mixed
    page.get_by_role("application", name="Where it looks, layer 2, rollout").wait_for()
    np.testing.assert_allclose(number(hover(page, "Where it looks", 1, 1)), mixed[4, 1 + 4], rtol=1e-5)


def test_what_is_drawn_is_read(page: Any, address: str) -> None:
    page.goto(f"{address.split('#')[0]}#image")
    page.get_by_role("button", name="Draw").click()
    box = page.get_by_label("A board to draw on").bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 150, steps=5)
    with page.expect_response("**/api/runs") as sent:
        page.mouse.up()
    drawn = base64.b64decode(sent.value.request.post_data_json["image"])
    ink = np.asarray(Image.open(io.BytesIO(drawn)).convert("L"), dtype=float)
    rows, cols = np.nonzero(ink > 24)
    assert max(np.ptp(rows), np.ptp(cols)) == pytest.approx(ink.shape[0] * 20 / 28, abs=3)
    middle = [(ink.sum(axis) * (np.arange(len(ink)) + 0.5)).sum() / ink.sum() for axis in (0, 1)]
    assert middle == pytest.approx([len(ink) / 2] * 2, abs=2)


def test_what_cannot_be_read_is_told_in_one_line(page: Any, address: str, tmp_path: Path) -> None:
    page.goto(f"{address.split('#')[0]}#image")
    page.get_by_text("equals the trace").wait_for()
    give(page, "words.txt", b"no picture at all", "text/plain")
    page.get_by_role("alert").filter(has_text="no picture").wait_for()
    large = tmp_path / "large.png"
    large.write_bytes(bytes(21_000_000))
    page.locator("main input[type=file]").set_input_files(large)
    page.get_by_role("alert").filter(has_text="at most 20 MB").wait_for()
    give(page, "one.png", picture())
    page.get_by_role("alert").wait_for(state="detached")


def test_a_model_of_text_says_how_to_open_another(page: Any, address: str) -> None:
    page.goto(f"{address.split('#')[0]}#image?model=zh-en")
    page.get_by_text("glassformer explore -m path/to/vit").wait_for()

"""Inside a layer: the numbers on the page are the trace's, and a link leads back to them."""

from __future__ import annotations

import math
import re
import struct
from typing import Any

LAYER = "decoder.layers.1"


def floats(page: Any, base: str, run: str, name: str, row: int) -> list[float]:
    body = page.request.get(f"{base}api/runs/{run}/tensors/{name}?t={row}").body()
    return list(struct.unpack(f"<{len(body) // 4}f", body))


def run_of(page: Any, base: str, link: str) -> dict[str, Any]:
    """Opens the link; gives the run that the page asked for."""
    with page.expect_response(lambda r: r.url.endswith("/api/runs"), timeout=60_000) as answered:  # a cold start
        page.goto(base + link)
    answer: dict[str, Any] = answered.value.json()
    return answer


def length(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def test_the_stream_is_the_trace(page: Any, address: str) -> None:
    base = address.split("#")[0]
    run = run_of(page, base, "#block?model=teaching&lang=en&stack=decoder&layer=1&step=2")
    page.locator("#block-residual summary").click()
    row = page.locator("#block-residual table tr", has_text="2 cross")
    shown = [float(cell.get_attribute("title")) for cell in row.locator("td").all()[:4]]
    names = ("mixer_residual.normed", "cross.result", "cross_residual.sum", "cross_residual.normed")
    told = [length(floats(page, base, run["id"], f"{LAYER}.{name}", 2)) for name in names]
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(shown, told, strict=True)), (shown, told)


def test_norm_and_feed_forward_compute_what_was_recorded(page: Any, address: str) -> None:
    base = address.split("#")[0]
    run = run_of(
        page, base, "#block?model=teaching&lang=en&stack=decoder&layer=1&step=2&~norm=ffn&~feature=3&~neuron=5"
    )
    normed = floats(page, base, run["id"], f"{LAYER}.ffn_residual.normed", 2)
    line = page.locator("#block-norm p.line")
    line.get_by_text("equals the trace").wait_for()
    assert f"= {normed[3]:.3f}".replace("-", "−") in line.inner_text()
    neuron = page.locator("#block-ffn .neuron p.line")
    neuron.get_by_text("equals the trace").wait_for()
    pre = floats(page, base, run["id"], f"{LAYER}.ffn.pre", 2)
    assert f"{pre[5]:.4f}".replace("-", "−") in neuron.inner_text()


def test_the_lens_says_what_the_server_says_and_links_restore_the_section(page: Any, address: str) -> None:
    base = address.split("#")[0]
    run = run_of(page, base, "#block?model=teaching&lang=en&stack=decoder&~part=lens")
    lens = page.request.get(f"{base}api/runs/{run['id']}/lens?stack=decoder").json()
    cells = page.locator("#block-lens tbody tr")
    cells.first.wait_for()
    for layer, line in zip(lens["layers"], cells.all(), strict=True):
        told = [position[0]["token"]["text"].strip() for position in layer["positions"]]
        assert [cell.inner_text().strip() for cell in line.locator(".piece").all()] == told
    page.wait_for_function("document.getElementById('block-lens').getBoundingClientRect().top < innerHeight * 0.6")
    page.get_by_role("radio", name="Norm", exact=True).click()
    page.wait_for_url(re.compile("%7Epart=norm|~part=norm"))
    page.reload()
    assert page.get_by_role("radio", name="Norm", exact=True).get_attribute("aria-checked") == "true"

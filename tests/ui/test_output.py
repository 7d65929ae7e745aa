"""From logits to the choice: the page's numbers are the trace's, sliders act at once, a forced token goes on."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

STEP = 1
TEXT = "我爱自然语言处理。"


@pytest.fixture
def row(page: Any, address: str) -> np.ndarray:
    """The logits of one place, as the server gives them."""
    body = {"model": "zh-en", "text": TEXT, "from": "zh", "to": "en", "beam_size": 4}
    run = page.request.post(address.split("#")[0] + "api/runs", data=body).json()
    answer = page.request.get(f"{address.split('#')[0]}api/runs/{run['id']}/tensors/head.logits?t={STEP}")
    return np.frombuffer(answer.body(), "<f4")


def probabilities(page: Any) -> list[float]:
    return [float(each.get_attribute("data-p")) for each in page.locator("[data-rank]").all()]


def open_output(page: Any, address: str, more: str = "") -> None:
    page.goto(f"{address.split('#')[0]}#output?text={TEXT}&stack=decoder&step={STEP}{more}")
    page.locator("[data-rank]").first.wait_for()


def expected(logits: np.ndarray, temperature: float, k: int, p: float) -> np.ndarray:
    """Temperature, top-k, top-p, as the documents define them; by rank."""
    z = np.sort(logits.astype(np.float64))[::-1] / temperature
    z[k:] = -np.inf
    kept = np.exp(z - z[0]) / np.exp(z - z[0]).sum()
    kept[np.cumsum(kept) - kept >= p] = 0
    return kept / kept.sum()


def test_probabilities_are_those_of_the_logits(page: Any, address: str, row: np.ndarray) -> None:
    open_output(page, address)
    assert probabilities(page)[:10] == pytest.approx(expected(row, 1, len(row), 1)[:10], abs=1e-6)
    page.get_by_label("temperature").fill("1.5")
    assert probabilities(page)[:10] == pytest.approx(expected(row, 1.5, len(row), 1)[:10], abs=1e-6)
    page.get_by_label("temperature").fill("0")
    assert probabilities(page)[:2] == [1.0, 0.0]


def test_a_link_restores_the_filters_and_the_draw(page: Any, address: str, row: np.ndarray) -> None:
    open_output(page, address, "&~temperature=1.6&~k=10&~p=0.85&~u=0.25")
    wanted = expected(row, 1.6, 10, 0.85)
    assert probabilities(page)[:10] == pytest.approx(wanted[:10], abs=1e-6)
    page.get_by_text(re.compile(r"u = 0\.250000 falls on")).wait_for()
    page.get_by_text(f"Kept: {int((wanted > 0).sum())} of {len(row)} tokens").wait_for()
    assert "~u=0.25" in page.url.replace("%7E", "~")


def test_a_forced_token_goes_on(page: Any, address: str, row: np.ndarray) -> None:
    open_output(page, address)
    page.locator("[data-rank='1']").click()
    page.get_by_role("button", name=re.compile("Continue from here")).click()
    forced = int(np.argsort(-row, kind="stable")[1])
    page.get_by_text("You forced:").wait_for()
    assert re.search(rf"prefix=\d+%2C{forced}\b", page.url)
    page.get_by_role("button", name="Let it choose freely again").click()
    page.get_by_text("You forced:").wait_for(state="detached")
    assert "prefix" not in page.url

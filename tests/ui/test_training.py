"""Teacher forcing, writing alone, and the lesson: losses are the model's, steps come back, a refusal is one line."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from glassformer.explore.training import Lesson
from tests.ui.driver import number

TEXT, TARGET = "我爱自然语言处理。", "I am fond of natural language processing."


def ask(page: Any, address: str, **more: Any) -> dict[str, Any]:
    body = {"model": "zh-en", "text": TEXT, "from": "zh", "to": "en", "beam_size": 4} | more
    return page.request.post(address.split("#")[0] + "api/runs", data=body).json()


def open_training(page: Any, address: str, more: str = "") -> None:
    page.goto(f"{address.split('#')[0]}#training?text={TEXT}{more}")
    page.locator("[data-row]").first.wait_for()


def amounts(page: Any, drawing: str) -> list[np.float32]:
    """What the bars of a drawing say, exactly."""
    rows = page.get_by_role("group", name=drawing).locator("[data-row]").all()
    return [number(row.get_attribute("aria-label").partition(", ")[0]) for row in rows]


def test_losses_and_chances_are_the_models(page: Any, address: str) -> None:
    given, own = ask(page, address, target=TARGET), ask(page, address)
    open_training(page, address, f"&target={TARGET}&step=99")
    page.get_by_text("Its own choice is the label").wait_for()
    page.get_by_role("group", name="In use").wait_for()
    losses = -np.array(given["label_logprobs"])
    np.testing.assert_allclose(amounts(page, "In training"), losses, rtol=1e-6)
    np.testing.assert_allclose(amounts(page, "In use"), np.exp(own["label_logprobs"]), rtol=1e-6)
    mean, perplexity = (number(page.locator("dd[title]").nth(i).get_attribute("title")) for i in (0, 1))
    np.testing.assert_allclose([mean, perplexity], [losses.mean(), np.exp(losses.mean())], rtol=1e-6)
    # Wherever the model would have said another word, the row says which.
    logits = page.request.get(f"{address.split('#')[0]}api/runs/{given['id']}/tensors/head.logits")
    choice = np.frombuffer(logits.body(), "<f4").reshape(len(losses), -1).argmax(1)
    wrong = [i for i, label in enumerate(given["labels"]) if label["id"] != choice[i]]
    rows = page.get_by_role("group", name="In training").locator("[data-row]").all()
    assert wrong == [i for i, row in enumerate(rows) if "it would say" in row.get_attribute("aria-label")] != []


def test_writing_alone_comes_one_word_at_a_time(page: Any, address: str) -> None:
    open_training(page, address)
    alone = page.get_by_role("group", name="In use")
    alone.locator("[data-row]").first.wait_for()
    count = alone.locator("[data-row]").count()
    for step in range(3):
        assert alone.locator(".row.later").count() == count - 1 - step
        page.keyboard.press("ArrowRight")
    assert "step=3" in page.url
    page.get_by_role("button", name="Try another hypothesis").click()
    page.wait_for_url("**target=**")
    page.get_by_role("button", name="The model’s own").wait_for()


@pytest.mark.slow
def test_a_lesson_is_seen_and_seen_again(page: Any, address: str) -> None:
    first = next(Lesson().events())
    open_training(page, address)
    page.get_by_role("button", name="Start learning").click()
    page.get_by_text(re.compile(r"step (?:2|3)\d of 250")).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Start again").wait_for()
    page.get_by_role("slider", name="step").focus()
    page.keyboard.press("Home")
    page.get_by_text("step 0 of 250").wait_for()
    assert "~at=0" in page.url or "%7Eat=0" in page.url
    np.testing.assert_allclose(amounts(page, "One sentence, now"), first["loss_per_position"], rtol=1e-4)
    assert page.get_by_role("application", name="cross-attention").is_visible()


def test_a_refused_lesson_is_one_calm_line(page: Any, address: str) -> None:
    page.route("**/api/training", lambda route: route.fulfill(status=503, json={"error": "busy"}))
    open_training(page, address)
    page.get_by_role("button", name="Start learning").click()
    assert "No lesson just now" in page.get_by_role("alert").inner_text()
    page.get_by_role("button", name="Start learning").wait_for()

"""A translation judged: probabilities, score, alignment, and a second one beside it."""

from __future__ import annotations

from typing import Any

import pytest

TEXT = "我爱自然语言处理。"
OWN = "I like processing natural languages."


def ask(page: Any, address: str, **more: Any) -> dict[str, Any]:
    body = {"model": "zh-en", "text": TEXT, "from": "zh", "to": "en", "beam_size": 4} | more
    return page.request.post(address.split("#")[0] + "api/runs", data=body).json()


def open_compare(page: Any, address: str, more: str = "") -> None:
    page.goto(f"{address.split('#')[0]}#compare?text={TEXT}{more}")
    page.locator("[data-side=a] [data-at]").first.wait_for()


def logprobs(page: Any, side: str) -> list[float]:
    return [float(each.get_attribute("data-logprob")) for each in page.locator(f"[data-side={side}] [data-at]").all()]


def score(page: Any, side: str) -> float:
    return float(page.locator(f"[data-side={side}] [data-score]").get_attribute("data-score"))


def test_the_numbers_are_the_run_s(page: Any, address: str) -> None:
    run = ask(page, address)
    open_compare(page, address)
    assert logprobs(page, "a") == pytest.approx(run["label_logprobs"], abs=1e-6)
    assert score(page, "a") == pytest.approx(run["output"]["score"], abs=1e-6)
    assert page.locator("[data-links]").get_attribute("data-links") == str(len(run["alignment"]))
    weakest = min(range(len(run["labels"])), key=lambda i: run["label_logprobs"][i])
    assert f"▲ {run['labels'][weakest]['text'].strip()}" in page.locator("[data-side=a] tr.first").inner_text()


def test_a_translation_of_ones_own_is_scored(page: Any, address: str) -> None:
    given = ask(page, address, target=OWN)
    open_compare(page, address)
    page.get_by_role("radio", name="another translation").click()
    page.get_by_label("Your translation, scored by this model").fill(OWN)
    page.get_by_role("main").get_by_role("button", name="Compare").click()
    page.locator("[data-side=b] [data-at]").first.wait_for()
    assert logprobs(page, "b") == pytest.approx(given["label_logprobs"], abs=1e-6)
    assert score(page, "b") == pytest.approx(given["output"]["score"], abs=1e-6)
    better = "a" if score(page, "a") >= score(page, "b") else "b"
    assert page.locator("[data-better]").get_attribute("data-better") == better
    # What the model would rather have said is the likeliest piece of that place.
    weakest = min(range(len(given["labels"])), key=lambda i: given["label_logprobs"][i])
    seen = page.request.get(f"{address.split('#')[0]}api/runs/{given['id']}/lens?stack=decoder").json()
    wanted = seen["layers"][-1]["positions"][weakest][0]["token"]["text"].strip()
    assert wanted in page.locator("[data-side=b] tr.first").inner_text()


@pytest.mark.parametrize("other", ["text:我喜欢自然语言处理。", "model:teaching"])
def test_a_link_restores_both_sides(page: Any, address: str, other: str) -> None:
    open_compare(page, address, f"&compare={other}&layer=1&head=2")
    page.locator("[data-side=b] [data-at]").first.wait_for()
    heads = page.get_by_role("radiogroup", name="Head")
    assert heads.get_by_role("radio", name="3").get_attribute("aria-checked") == "true"
    heads.get_by_role("radio", name="1").click()
    assert "head=" not in page.url and "compare=" in page.url

"""By hand: every number of the teaching model is the trace's, and tells how it came about."""

from __future__ import annotations

import struct
from typing import Any

from tests.ui.test_block import run_of


def tensor(page: Any, base: str, run: str, name: str) -> list[float]:
    body = page.request.get(f"{base}api/runs/{run}/tensors/{name}").body()
    return list(struct.unpack(f"<{len(body) // 4}f", body))


def read(text: str) -> float:
    return float(text.replace("−", "-"))


def test_every_number_is_the_trace_and_is_computed_anew(page: Any, address: str) -> None:
    base = address.split("#")[0]
    run = run_of(page, base, "#numbers?model=teaching&lang=en&layer=3&~places=4")
    page.locator("[id='numbers-head.logits']").wait_for()
    compared = page.locator(".check .same")
    assert compared.count() > 40
    assert all("equals the trace" in each for each in compared.all_inner_texts())
    for name in (
        "encoder.layers.3.mixer.z",
        "decoder.layers.3.cross.scores",
        "decoder.layers.3.ffn.pre",
        "head.logits",
    ):
        grid = page.locator(f"[id='numbers-{name}'] figure", has_text=name).last
        shown = [read(text) for text in grid.locator("tbody td").all_inner_texts()]
        told = tensor(page, base, run["id"], name)
        assert len(shown) == len(told)
        assert all(abs(a - b) < 6e-5 for a, b in zip(shown, told, strict=True)), name


def test_a_chosen_number_is_written_out_and_the_link_restores_it(page: Any, address: str) -> None:
    base = address.split("#")[0]
    run_of(page, base, "#numbers?model=teaching&lang=en")
    step = page.locator("[id='numbers-decoder.layers.0.cross.q']")
    step.locator("figure").last.locator("tbody tr").nth(1).locator("td").nth(2).click()
    page.wait_for_function("location.hash.includes('cell')")
    line = step.locator(".how p.number").first.inner_text()
    assert line.count("×") == 4
    page.reload()
    step.wait_for()
    assert step.locator(".how p.number").first.inner_text() == line


def test_the_worked_examples_agree(page: Any, address: str) -> None:
    base = address.split("#")[0]
    page.goto(base + "#numbers?lang=en&~show=worked")
    page.locator("[data-example]").first.wait_for()
    told = page.request.get(base + "api/worked").json()
    shown = page.locator("[data-example]")
    assert [each.get_attribute("data-example") for each in shown.all()] == [each["name"] for each in told]
    assert page.locator("[data-example] .tick.off").count() == 0


def test_another_model_offers_the_teaching_one(page: Any, address: str) -> None:
    base = address.split("#")[0]
    page.goto(base + "#numbers?model=zh-en&lang=en")
    page.get_by_role("button", name="Open the teaching model").click()
    page.locator("[id='numbers-head.logits']").wait_for()

"""Attention: every number of the matrix, of the six steps of one cell and of the masks is the trace's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.ui.driver import TEXT, Desk, number

SELF = {"text": TEXT, "stack": "encoder", "kind": "self"}
MASKED = {"text": TEXT, "stack": "decoder", "kind": "masked"}
CROSS = {"text": TEXT, "stack": "decoder", "kind": "cross"}


def steps(desk: Desk) -> list[float]:
    """The numbers in the bar of steps: q · k, ÷ √d, masked, softmax."""
    told = desk.window.locator("nav[aria-label^='The formula'] b").all_inner_texts()
    return [float(each.replace("−", "-").replace("∞", "inf")) for each in told[:4]]


@pytest.mark.parametrize(
    ("where", "part"),
    [(SELF, "encoder.layers.1.mixer"), (MASKED, "decoder.layers.1.mixer"), (CROSS, "decoder.layers.1.cross")],
    ids=["encoder", "masked", "cross"],
)
def test_every_step_of_a_cell_is_the_traces(desk: Desk, where: dict[str, Any], part: str) -> None:
    head, row, col = 2, 4, 3
    desk.go("attention", **where, layer=1, head=head, source=row, step=row, col=col)
    pattern, scores = desk.tensor(f"{part}.pattern", h=head), desk.tensor(f"{part}.scores", h=head)
    q, k = desk.tensor(f"{part}.q", h=head, t=row), desk.tensor(f"{part}.k", h=head, s=col)
    dot = float(q.astype(float) @ k.astype(float))
    assert steps(desk) == pytest.approx([dot, scores[row, col], scores[row, col], pattern[row, col]], abs=6e-4)
    assert number(desk.hover_cell(f"{part}.pattern", row, col, pattern.shape)) == pattern[row, col]
    recorded = {
        f"scores[{head}, {row}, {col}]": scores[row, col],
        f"pattern[{head}, {row}, {col}]": pattern[row, col],
        f"z[{head}, {row}, 0]": desk.tensor(f"{part}.z", h=head, t=row)[0],
        f"result[{row}, 0]": desk.tensor(f"{part}.result", t=row)[0],
    }
    stages = desk.window.locator("#attention-scale, #attention-softmax, #attention-values, #attention-join")
    said = [each.get_attribute("aria-label") for each in stages.get_by_role("note").all()]
    assert [each.split(": ")[1] for each in said] == ["equals the trace"] * 4
    for each, (name, value) in zip(said, recorded.items(), strict=True):
        assert each.startswith(f"{part}.{name} ") and number(each.split(": ")[0]) == value


def test_a_row_of_softmax_is_written_out(desk: Desk) -> None:
    desk.go("attention", **SELF, layer=0, head=1, source=2, col=1)
    scores = desk.tensor("encoder.layers.0.mixer.scores", h=1, t=2).astype(float)
    exps = np.exp(scores - scores.max())
    rows = desk.window.locator("#attention-softmax tbody tr").all()
    told = [[float(each.replace("−", "-")) for each in row.locator("td").all_inner_texts()] for row in rows]
    wanted = np.stack([scores, scores, exps, exps / exps.sum()], axis=1)
    assert np.array(told) == pytest.approx(wanted, abs=6e-4)
    rows[4].hover()
    assert number(desk.tip.split("pattern")[1]) == desk.tensor("encoder.layers.0.mixer.pattern", h=1, t=2)[4]


def test_choosing_a_cell_a_layer_and_a_head(desk: Desk) -> None:
    desk.go("attention", **SELF)
    page = desk.window
    page.mouse.click(*desk.cell("encoder.layers.0.mixer.pattern", 3, 5, (7, 7)))
    page.get_by_text("“语言” looks at “。”: layer 1, head 1.").wait_for()
    page.get_by_role("radiogroup", name="Layer").get_by_role("radio", name="3").click()
    page.get_by_role("radiogroup", name="Head", exact=True).get_by_role("radio", name="4").click()
    page.get_by_text("“语言” looks at “。”: layer 3, head 4.").wait_for()
    desk.settle()
    pattern = desk.tensor("encoder.layers.2.mixer.pattern", h=3)
    assert steps(desk)[3] == pytest.approx(pattern[3, 5], abs=6e-4)
    page.locator("[data-tile='4 0']").click()
    page.get_by_text("layer 5, head 1.").wait_for()
    assert {"layer=4", "source=3", "col=5"} <= set(page.url.split("?")[1].split("&")) and "head=" not in page.url
    # One row in focus: its bars are that row.
    desk.settle()
    pattern = desk.tensor("encoder.layers.4.mixer.pattern", h=0)
    bars = page.get_by_role("group", name="What does “语言” look at?").get_by_role("button").all()
    assert [number(bar.get_attribute("aria-label")) for bar in bars] == list(pattern[3])


def test_by_keyboard_alone(desk: Desk) -> None:
    desk.go("attention", **SELF, source=1)
    page = desk.window
    page.evaluate("document.activeElement.blur()")
    for key in ("]", "]", "[", ".", ".", ","):
        page.keyboard.press(key)
    page.get_by_text("layer 2, head 2.").wait_for()
    desk.settle()
    page.get_by_role("application", name="encoder.layers.1.mixer.pattern").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    pattern = desk.tensor("encoder.layers.1.mixer.pattern", h=1)
    said = page.get_by_role("application", name="encoder.layers.1.mixer.pattern").get_attribute("aria-label")
    at = [int(each) for each in re.findall(r"\[(\d), (\d)\]", desk.tip)[0]]
    assert number(said) == number(desk.tip) == pattern[at[0], at[1]] and at[0] == 2
    page.keyboard.press("Enter")
    assert f"source={at[0]}" in page.url and f"col={at[1]}" in page.url
    page.keyboard.press("Escape")
    assert not page.locator(".tip").is_visible()


def test_masks_are_told_apart(desk: Desk) -> None:
    desk.go("attention", **MASKED, step=2)
    page = desk.window
    page.get_by_text("in the future: masked (causal)").wait_for()
    n = len(desk.run["target"])
    page.get_by_text(f"{n - 3} in the future (causal mask)").wait_for()
    assert "in the future: masked (causal)" in desk.hover_cell("decoder.layers.0.mixer.pattern", 2, 5, (n, n))
    assert not page.get_by_text("padding: masked").is_visible()

    desk.go("attention", **SELF, source=1)
    for _ in range(3):
        page.get_by_role("button", name="One padding token more").click()
    page.get_by_text("3 of padding (padding mask)").wait_for()
    desk.settle()
    run = desk.run
    assert run["source_mask"][-3:] == [False] * 3 and "pad=3" in page.url
    pattern = desk.tensor("encoder.layers.0.mixer.pattern", h=0)
    assert not pattern[:, -3:].any() and pattern[:-3].sum(1) == pytest.approx(np.ones(len(pattern) - 3), abs=1e-5)
    assert "padding: masked" in desk.hover_cell("encoder.layers.0.mixer.pattern", 1, 8, pattern.shape)
    fills = page.locator("#attention-matrix svg path[fill^='url(#']").all()
    assert [each.get_attribute("fill")[5:].split("-")[0] for each in fills] == ["padding"]


def test_arcs_are_the_heavy_weights(desk: Desk) -> None:
    desk.go("attention", **CROSS, layer=2, head=1)
    page = desk.window
    page.get_by_role("radio", name="Arcs").click()
    pattern = desk.tensor("decoder.layers.2.cross.pattern", h=1)
    links = page.locator("#attention-matrix path.link")
    assert links.count() == int((pattern >= min(0.08, pattern.max() / 5)).sum())
    assert "~draw=arcs" in page.url.replace("%7E", "~")


def test_any_recorded_tensor_can_be_read(desk: Desk) -> None:
    desk.go("attention", **SELF, layer=1, head=3, source=5, _tap="v")
    v = desk.tensor("encoder.layers.1.mixer.v", h=3)
    assert number(desk.hover_cell("encoder.layers.1.mixer.v,", 5, 60, v.shape)) == v[5, 60]


@pytest.mark.slow
def test_512_tokens_still_answer(desk: Desk) -> None:
    desk.go("attention", text="我" * 300, stack="encoder", kind="self")
    page = desk.window
    assert len(desk.run["source"]) > 250
    for head in ("2", "3", "4", "1"):
        page.get_by_role("radiogroup", name="Head", exact=True).get_by_role("radio", name=head).click()
        page.get_by_text(f"layer 1, head {head}.").wait_for()
    n = len(desk.run["source"])
    pattern = desk.tensor("encoder.layers.0.mixer.pattern", h=0)
    desk.settle()
    assert number(desk.hover_cell("encoder.layers.0.mixer.pattern", 100, 100, (n, n))) == pattern[100, 100]
    page.get_by_role("radio", name="Arcs").click()
    page.get_by_text("Arcs are drawn for up to 128 words").wait_for()

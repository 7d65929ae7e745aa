"""Positions: heat map, clocks, rotation law and sum agree with the formula, and with what the model recorded."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from tests.ui.driver import TEXT, Desk, number


def sinusoid(p: int, i: int, d: int = 256) -> float:
    """Vaswani et al. (2017), section 3.5."""
    angle = p / 10000 ** (2 * (i // 2) / d)
    return math.cos(angle) if i % 2 else math.sin(angle)


def test_the_table_is_the_formula_and_the_traces(desk: Desk) -> None:
    desk.go("position", text=TEXT)
    recorded = desk.tensor("encoder.positions")
    for p, i in ((0, 1), (1, 0), (5, 3), (6, 255), (40, 7)):
        shown = number(desk.hover_cell("The encoding: positions × features", p, i, (64, 256)))
        assert shown == pytest.approx(sinusoid(p, i), abs=2e-6)
        if p < len(recorded):
            assert shown == pytest.approx(float(recorded[p, i]), abs=2e-6)


def test_hands_follow_the_slider_and_the_step(desk: Desk) -> None:
    desk.go("position", text=TEXT)
    page = desk.window
    page.get_by_role("slider", name="Position").fill("5")
    page.get_by_role("heading", name="Clock hands: the frequencies at position 5").wait_for()
    assert "source=5" in page.url
    clocks = page.get_by_role("group", name="Clock hands").get_by_role("button")
    for clock in clocks.all():
        said = clock.get_attribute("aria-label")
        pair = int(re.findall(r"pair (\d+)", said)[0])
        assert number(said.partition("cos")[0]) == pytest.approx(sinusoid(5, 2 * pair), abs=1e-6)
        assert number(said) == pytest.approx(sinusoid(5, 2 * pair + 1), abs=1e-6)
    page.get_by_role("slider", name="Position").fill("90")
    page.get_by_role("heading", name="position 90").wait_for()
    page.get_by_role("listbox", name="Source").get_by_role("option").nth(2).click()
    page.get_by_role("heading", name="position 2").wait_for()


def test_the_rotation_law_holds_with_numbers(desk: Desk) -> None:
    desk.go("position", text=TEXT, source=4)
    page = desk.window
    page.get_by_role("group", name="Clock hands").get_by_role("button").nth(1).press("Enter")
    page.get_by_role("slider", name="k", exact=True).fill("7")
    law = page.locator("#position-law")
    pair = int(re.findall(r"Pair (\d+)", law.inner_text())[0])
    law.get_by_text("equals PE(11)").wait_for()
    numbers = [float(number(each.get_attribute("title"))) for each in law.locator(".product b").all()]
    turn, start, made = np.reshape(numbers[:4], (2, 2)), np.array(numbers[4:6]), np.array(numbers[6:8])
    assert turn @ start == pytest.approx(made, abs=1e-6)
    assert made == pytest.approx([sinusoid(11, 2 * pair), sinusoid(11, 2 * pair + 1)], abs=1e-6)
    assert turn @ turn.T == pytest.approx(np.eye(2), abs=1e-6)


def test_the_sum_is_what_enters_the_first_layer(desk: Desk) -> None:
    desk.go("position", text=TEXT, step=3, _stack="decoder")
    page = desk.window
    page.get_by_text("equals the trace decoder.input[3]").wait_for()
    cells = page.get_by_role("application", name="decoder.input[3]")
    cells.focus()
    page.keyboard.press("ArrowRight")
    embedded, positions, entered = (
        desk.tensor(f"decoder.{each}", t=3)[1] for each in ("embedded", "positions", "input")
    )
    told = desk.tip.split("\n")
    values = [number(line) for line in told if re.search(r"\d\.?\d*$", line) and "[" not in line]
    assert values == [embedded, positions, entered] and entered == np.float32(embedded + positions)


def test_what_was_rejected_is_told(desk: Desk) -> None:
    desk.go("position", text=TEXT)
    rejected = desk.window.locator("#position-rejected")
    for each in ("Counting: 0, 1, 2, …", "Share of the way: 0 … 1", "Binary digits"):
        rejected.get_by_role("heading", name=each).wait_for()

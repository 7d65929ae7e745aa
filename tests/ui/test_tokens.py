"""Text, pieces, ids, rows: what the page shows is what the tokenizer does and what the matrix holds."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.ui.driver import Desk, number, view_of

MIXED = "小明吃了3个苹果🐉!"


def segmentation(desk: Desk, text: str, side: str = "source") -> dict[str, Any]:
    return desk.window.request.get(f"{desk.root}api/segment?model=zh-en&side={side}&text={quote(text)}").json()


@pytest.mark.parametrize("side", ["source", "target"])
def test_pieces_and_ids_are_the_tokenizers(desk: Desk, side: str) -> None:
    desk.go("tokens", text=MIXED, _side=side)
    shown = desk.window.get_by_role("listbox", name="Pieces under the characters").get_by_role("option").all()
    wanted = [f"{token['piece']}, {token['id']}" for token in desk.run[side]]
    assert [each.get_attribute("aria-label") for each in shown] == wanted
    if side == "source":
        cut = [token["id"] for token in segmentation(desk, MIXED)["tokens"]]
        assert cut == [token["id"] for token in desk.run["source"] if token["id"] in cut]


def test_every_merge_is_a_step(desk: Desk) -> None:
    desk.go("tokens", text="自然语言处理技术")
    page = desk.window
    word = segmentation(desk, "自然语言处理技术")["words"][0]
    slider = page.get_by_role("slider", name="Step")
    expect(slider).to_have_attribute("max", str(len(word["steps"]) - 1))  # the word before may still be there
    for step, held in enumerate(word["steps"]):
        slider.fill(str(step))
        said = page.locator("#tokens-merges p.said").inner_text()
        if held.get("merged"):
            a, b = held["merged"]
            assert f"Step {step}: {a} and {b} become {a + b}: number {held['rank']} of" in said
        later = page.get_by_role("group", name="How a word came apart").locator("g.node.later").count()
        assert later == len(word["steps"]) - 1 - step
    assert f"Result: {len(held['pieces'])} pieces." in said


def test_a_row_of_the_matrix_enters_the_first_layer(desk: Desk) -> None:
    desk.go("tokens", text="我喜欢打篮球。")
    page = desk.window
    page.get_by_role("option", name="我喜欢").first.click()
    desk.settle()
    index = [token["piece"] for token in desk.run["source"]].index("我喜欢")
    row = desk.weight("embed.weight", desk.run["source"][index]["id"])
    page.get_by_text("equals the trace: encoder.embedded").wait_for()
    cells = page.get_by_role("application", name="embed.weight[")
    cells.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    own, _, scaled = desk.tip.partition("x")
    assert number(own) == row[2]
    assert number(scaled) == np.float32(row[2] * 16) == desk.tensor("encoder.embedded", t=index)[2]


def test_likeness_is_the_cosine_of_rows(desk: Desk) -> None:
    desk.go("tokens", text="我喜欢打篮球。", source=1)
    page = desk.window
    page.get_by_role("textbox", name="Other words to compare with").fill("足球 星期一")
    page.locator("#tokens-likeness").get_by_role("button", name="Compare").click()
    bars = page.get_by_role("group", name="Likeness to 我喜欢")
    bars.get_by_role("button", name="足球:").wait_for()
    assert "~words=" in page.url.replace("%7E", "~")
    page.get_by_role("option", name="球", exact=False).last.click()
    bars = page.get_by_role("group", name="Likeness to 球")
    bars.get_by_role("button", name="足球:").wait_for()
    ids = {token["piece"]: token["id"] for token in desk.run["source"] + segmentation(desk, "足球")["tokens"]}
    rows = {piece: desk.weight("embed.weight", ids[piece]).astype(float) for piece in ("球", "足球", "我喜欢")}
    unit = {piece: row / np.linalg.norm(row) for piece, row in rows.items()}
    for piece in ("足球", "我喜欢"):
        said = bars.get_by_role("button", name=f"{piece}:").get_attribute("aria-label")
        assert number(said) == pytest.approx(unit["球"] @ unit[piece], abs=1e-5)
    assert unit["球"] @ unit["足球"] > unit["球"] @ unit["我喜欢"]
    page.get_by_role("radio", name="One-hot").click()
    assert number(bars.get_by_role("button", name="足球:").get_attribute("aria-label")) == 0


def test_special_tokens_are_explained(desk: Desk) -> None:
    desk.go("tokens", text="我喜欢打篮球。")
    section = desk.window.locator("#tokens-special")
    for each in ("says into which language to translate", "the first thing that the decoder reads", "decoding stops"):
        section.get_by_text(each).wait_for()
    assert view_of(desk.window.url) == "tokens"

"""The map: what stands on it is the model's, leads to where its numbers are, and moves with the step."""

from __future__ import annotations

import math
import re

from tests.ui.driver import TEXT, Desk, number, view_of


def test_shapes_stand_on_the_edges_and_parts_say_what_they_are(desk: Desk) -> None:
    desk.go("map", text=TEXT)
    page = desk.window
    drawing = page.get_by_role("group", name="The architecture")
    for shape in ("memory · S × 256", "T × 8000", "T × 256", "S × 256"):
        drawing.get_by_text(shape, exact=True).first.wait_for()
    page.get_by_text("Encoder–decoder · 5 + 3 layers").wait_for()
    drawing.get_by_role("link", name="Feed-forward").first.hover(position={"x": 80, "y": 20})
    aside = page.locator("main aside")
    told = aside.inner_text()
    assert "encoder.layers.0.ffn" in told and "Each position by itself" in told
    recorded = {each["name"]: each for each in desk.run["tensors"] if each["part"] == "encoder.layers.0.ffn"}
    assert recorded
    for name, each in recorded.items():
        assert name.removeprefix("encoder.layers.0.ffn.") in told
        assert " × ".join(map(str, each["shape"][1:])) in told


def test_every_part_leads_to_its_numbers(desk: Desk) -> None:
    page = desk.window
    for name, view, more in (
        ("Embedding", "tokens", ""),
        ("Position", "position", ""),
        ("Masked self-attention", "attention", "kind=masked"),
        ("Cross-attention", "attention", "kind=cross"),
        ("Feed-forward", "block", "part=ffn"),
        ("Softmax", "output", ""),
    ):
        desk.go("map", text=TEXT)
        page.get_by_role("link", name=name, exact=True).first.press("Enter")
        page.wait_for_function("view => location.hash.startsWith('#' + view)", arg=view)
        assert more in page.url, page.url
    page.go_back()
    page.get_by_role("heading", name="The architecture").wait_for()


def test_layers_open_and_an_attention_can_be_entered(desk: Desk) -> None:
    desk.go("map", text=TEXT)
    page = desk.window
    drawing = page.get_by_role("group", name="The architecture")
    drawing.get_by_role("button", name="Layer 4").press("Enter")
    assert "layer=3" in page.url
    assert drawing.get_by_role("link", name="Self-attention", exact=True).count() == 1
    page.get_by_role("radio", name="All open").click()
    assert drawing.get_by_role("link", name="Self-attention", exact=True).count() == 5
    page.get_by_role("radio", name="Folded").click()
    assert drawing.get_by_role("link", name="Self-attention", exact=True).count() == 0
    desk.go("map", text=TEXT)
    drawing.get_by_role("button", name="Look inside").last.click()
    for each in ("concatenate", "q · k ÷ √64", "4 × 7 × 64"):
        drawing.get_by_text(each).first.wait_for()
    drawing.get_by_role("link", name="Head 3").last.click()
    page.get_by_text("layer 1, head 3.").wait_for()
    assert view_of(page.url) == "attention" and "head=2" in page.url


def test_stepping_moves_what_the_model_says(desk: Desk) -> None:
    desk.go("map", text=TEXT)
    page, run = desk.window, desk.run
    for step, (label, logprob) in enumerate(zip(run["labels"], run["label_logprobs"], strict=True)):
        told = page.get_by_role("link", name="Softmax").locator("text").all_text_contents()
        share = 100 * math.exp(logprob)
        assert told[1:] == [label["text"].strip(), f"{share:.0f}%" if share >= 99.95 else f"{share:.1f}%"]
        assert (f"step={step}" in page.url) == (step > 0)
        page.keyboard.press("ArrowRight")
    assert page.get_by_role("button", name="Step forward").is_disabled()


def test_a_stripe_is_the_trace_at_this_position(desk: Desk) -> None:
    desk.go("map", text=TEXT, step=2, source=3)
    page = desk.window
    for name, t in (("encoder.embedded", 3), ("decoder.embedded", 2), ("encoder.positions", 3)):
        stripe = page.get_by_role("img", name=f"{name}: 256").locator("rect")
        stripe.hover()
        index = int(re.findall(r"\[(\d+)\]", desk.tip)[0])
        assert number(desk.tip) == desk.tensor(name, t=t)[index], name


def test_small_and_other_models(desk: Desk) -> None:
    desk.go("map", model="teaching")
    page = desk.window
    page.get_by_text("6 + 6 layers").wait_for()
    page.get_by_text("I love NLP").first.wait_for()
    page.get_by_role("group", name="The architecture").get_by_text("T × 4", exact=True).first.wait_for()

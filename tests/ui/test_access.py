"""For everybody: names, a visible focus, contrast, stillness, and a phone's width, in every view and both themes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ui.driver import TEXT, Desk

VIEWS = ("map", "tokens", "position", "attention", "block", "output", "decoding", "training", "compare", "numbers")
FIRST = VIEWS[:4]
UNNAMED = """() => {
  const reached = 'button, a[href], input, select, textarea, [role], svg[tabindex], [tabindex="0"]'
  const apart = ['presentation', 'none', 'listbox', 'radiogroup']
  const named = (each) =>
    each.ariaLabel || each.getAttribute('aria-labelledby') || each.title || each.labels?.length ||
    each.textContent.trim()
  return [...document.querySelectorAll(reached)]
    .filter((each) => each.checkVisibility() && each.tabIndex >= 0 && !apart.includes(each.role) && !named(each))
    .map((each) => each.outerHTML.slice(0, 120))
}"""
WIDE = """() => {
  const main = document.querySelector('main')
  const out = [...main.querySelectorAll('*')].filter((each) => {
    if (!each.checkVisibility() || each.closest('.visually-hidden')) return false
    for (let up = each.parentElement; up && up !== main; up = up.parentElement)
      if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(up).overflowX)) return false
    return each.getBoundingClientRect().right > innerWidth + 1
  })
  return { page: document.documentElement.scrollWidth - innerWidth, main: main.scrollWidth - main.clientWidth,
           out: out.slice(0, 3).map((each) => each.outerHTML.slice(0, 140)) }
}"""
SMALL = """() => [...document.querySelectorAll('main *, nav *, header *, footer *')]
  .filter((each) => !(each instanceof SVGElement) && each.checkVisibility())
  .filter((each) => [...each.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()))
  .filter((each) => !each.closest('sub, sup, .formula, code, .number'))
  .filter((each) => parseFloat(getComputedStyle(each).fontSize) < 11.5)
  .map((each) => each.outerHTML.slice(0, 120))"""


INTO_VIEW = """(each) => {
  each.scrollIntoView({ block: 'center' })
  const { x, y, width, height } = each.getBoundingClientRect()
  return [x - 4, y - 4, width + 8, height + 8]
}"""
COLOURS = """(names) => {
  const style = getComputedStyle(document.documentElement)
  return names.map((name) => style.getPropertyValue('--' + name).trim())
}"""


@pytest.fixture(scope="module")
def phone(browser: Any, address: str) -> Iterator[Desk]:
    """A phone's window."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, locale="en", has_touch=True)
    context.set_default_timeout(60_000)
    opened = Desk(context.new_page(), address)
    yield opened
    context.close()
    assert not opened.faults, opened.faults


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_runs_out_of_a_phone(phone: Desk, view: str) -> None:
    for theme, lang in (("light", "en"), ("dark", "zh")):
        phone.go(view, text=TEXT, theme=theme, lang=lang, stack="decoder", kind="cross", step=4)
        assert phone.window.evaluate(WIDE) == {"page": 0, "main": 0, "out": []}
        if view in FIRST:
            assert phone.window.evaluate(SMALL) == []


@pytest.mark.parametrize("view", VIEWS)
def test_everything_that_can_be_reached_has_a_name(desk: Desk, view: str) -> None:
    desk.go(view, text=TEXT)
    page = desk.window
    assert page.evaluate(UNNAMED) == []
    assert page.get_by_role("main").count() == page.get_by_role("heading", level=1).count() == 1
    if view in FIRST:
        bare = page.locator("main img:not([alt]), main svg:not([aria-hidden]):not([role]):not([aria-label])")
        assert bare.count() == 0, bare.first.evaluate("each => each.outerHTML.slice(0, 200)")
    current = page.get_by_role("navigation", name="Views").locator("[aria-current=page]")
    assert current.count() == 1


@pytest.mark.parametrize("view", FIRST)
def test_the_focus_can_be_seen(desk: Desk, view: str) -> None:
    """With it, pixels are different from those without it, however a part shows it."""
    desk.go(view, text=TEXT)
    page = desk.window
    page.locator("main h1").click()
    for _ in range(6):
        page.keyboard.press("Tab")
        focused = page.evaluate_handle("document.activeElement")
        assert page.evaluate("each => !!each.closest('main')", focused)
        x, y, w, h = page.evaluate(INTO_VIEW, focused)
        clip = {"x": max(0, x), "y": max(0, y), "width": min(w, 1440 - x), "height": min(h, 900 - y)}
        page.wait_for_timeout(250)
        seen = page.screenshot(clip=clip)
        page.evaluate("each => each.blur()", focused)
        page.wait_for_timeout(50)
        assert page.screenshot(clip=clip) != seen, page.evaluate("each => each.outerHTML.slice(0, 120)", focused)
        page.evaluate("each => each.focus({ focusVisible: true })", focused)


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in shares)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_themes_pairs_can_be_read(desk: Desk, theme: str) -> None:
    desk.go("numbers", theme=theme)
    hues = ["encoder", "decoder", "cross"]
    names = ["paper", "panel", "sunken", "ink", "muted", "faint", "focus", "error", *hues, *(f"{h}-wash" for h in hues)]
    told = dict(zip(names, desk.window.evaluate(COLOURS, names), strict=True))
    colour = {n: re.sub(r"^#(.)(.)(.)$", r"#\1\1\2\2\3\3", value) for n, value in told.items()}
    text = [
        (ink, ground)
        for ground in ("paper", "panel", "sunken")
        for ink in ("ink", "muted", "encoder", "decoder", "cross", "error")
    ]
    text += [(ink, f"{hue}-wash") for hue in ("encoder", "decoder", "cross") for ink in ("ink", "muted")]
    text += [("paper", hue) for hue in ("encoder", "decoder", "cross", "ink")]
    marks = [("focus", ground) for ground in ("paper", "panel", "sunken")] + [("faint", "paper"), ("faint", "panel")]
    found = {pair: contrast(colour[pair[0]], colour[pair[1]]) for pair in text + marks}
    assert not {pair: round(found[pair], 2) for pair in text if found[pair] < 4.5}
    assert not {pair: round(found[pair], 2) for pair in marks if found[pair] < 3}


def test_nothing_moves_where_stillness_is_preferred(desk: Desk) -> None:
    page = desk.window
    page.emulate_media(reduced_motion="reduce")
    moving = """() => document.getAnimations().filter((each) => each.playState === 'running').length"""
    for view in ("map", "position", "attention"):
        desk.go(view, text=TEXT)
        page.keyboard.press("ArrowRight")
        page.evaluate("new Promise(requestAnimationFrame)")
        assert page.evaluate(moving) == 0, view
    desk.go("map", text=TEXT)
    assert page.locator("main path.pulse").count() == 0
    page.emulate_media(reduced_motion="no-preference")
    page.locator("main path.pulse").first.wait_for(state="attached")

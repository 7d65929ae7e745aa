"""The page in a real Chromium: it opens, shows what the server says, and can be sent on as a link."""

from __future__ import annotations

from typing import Any

FIRST_VIEW = 300_000
"""Bytes of script before the first view stands."""


def test_the_first_view_is_small(page: Any, address: str) -> None:
    answers: list[Any] = []
    page.on("response", lambda answer: answers.append(answer))
    page.goto(address)
    page.get_by_role("heading", name="The architecture").wait_for()
    page.get_by_text("I love natural language processing.").first.wait_for()
    scripts = [len(answer.body()) for answer in answers if answer.url.endswith(".js")]
    assert 0 < sum(scripts) < FIRST_VIEW

"""Decoding step by step: the tree, the cache and the scores are the server's; another token is forced."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

TEXT = "我爱自然语言处理。"
LONG = "他说，" * 40 + "我们走吧。"


def ask(page: Any, address: str, **more: Any) -> dict[str, Any]:
    body = {"model": "zh-en", "text": TEXT, "from": "zh", "to": "en", "beam_size": 4} | more
    return page.request.post(address.split("#")[0] + "api/runs", data=body).json()


def open_decoding(page: Any, address: str, more: str = "", text: str = TEXT) -> None:
    page.goto(f"{address.split('#')[0]}#decoding?text={text}&stack=decoder{more}")
    page.locator("[data-node]").first.wait_for()


def test_the_tree_is_the_search(page: Any, address: str) -> None:
    decoding = ask(page, address)["decoding"]
    open_decoding(page, address, "&step=2")
    seen = {int(n.get_attribute("data-node")): n for n in page.locator("[data-node]").all()}
    assert len(seen) > 20
    for number, shown in seen.items():
        node = decoding["nodes"][number]
        assert shown.get_attribute("data-fate") == node["fate"]
        told = re.findall(r"−?\d[\d.e−]*", shown.get_attribute("aria-label").split("log p", 1)[1])
        assert [float(each.replace("−", "-")) for each in told] == pytest.approx(
            [node["logprob"], node["sum"]], rel=1e-5
        )
    assert int(page.locator("[data-bytes]").get_attribute("data-bytes")) == decoding["steps"][2]["cache_bytes"]
    best = page.locator("tr.best").inner_text()
    assert decoding["hypotheses"][0]["text"] in best
    assert f"{decoding['hypotheses'][0]['score']:.3f}".replace("-", "−") in best


def test_a_dropped_token_can_be_forced_and_taken_back(page: Any, address: str) -> None:
    nodes = ask(page, address)["decoding"]["nodes"]
    dropped = next(node for node in nodes if node["step"] == 0 and node["fate"] == "dropped")
    open_decoding(page, address)
    page.locator(f"[data-node='{dropped['id']}']").click()
    page.get_by_role("button", name="Continue with this one").click()
    page.get_by_text("You forced:").wait_for()
    assert f"prefix={dropped['token']['id']}" in page.url
    forced = ask(page, address, prefix=[dropped["token"]["id"]])
    page.get_by_role("button", name=forced["output"]["text"], exact=True).wait_for()
    page.get_by_role("button", name="Let it choose freely again").click()
    page.locator(f"[data-node='{dropped['id']}'][data-fate='dropped']").wait_for()


def test_a_word_of_ones_own_and_the_beam(page: Any, address: str) -> None:
    open_decoding(page, address)
    page.get_by_label("Or write what must follow").fill("We")
    page.get_by_role("button", name="Force", exact=True).click()
    page.get_by_text("You forced:").wait_for()
    page.locator("tr.best", has_text="We").wait_for()
    page.get_by_role("radiogroup", name="Beam").get_by_role("radio", name="1").click()
    page.get_by_text("this is greedy search").wait_for()
    assert "beam=1" in page.url


def test_a_link_restores_the_step_and_the_length_penalty(page: Any, address: str) -> None:
    open_decoding(page, address, "&step=3&penalty=0.6&beam=2")
    decoding = ask(page, address, beam_size=2, length_penalty=0.6)["decoding"]
    assert decoding["length_penalty"] == 0.6
    radio = page.get_by_role("radiogroup", name="Length penalty α").get_by_role("radio", name="0.6")
    assert radio.get_attribute("aria-checked") == "true"
    assert f"{decoding['hypotheses'][0]['score']:.3f}".replace("-", "−") in page.locator("tr.best").inner_text()
    page.get_by_text("4 × Decoder: pass 4.").wait_for()


def clock_of(page: Any) -> Callable[[], float]:
    """Seconds that the page's own thread has worked: they stand still while other work holds the processor."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def clock() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "TaskDuration")

    return clock


def test_a_long_target_does_not_freeze(page: Any, address: str) -> None:
    open_decoding(page, address, text=LONG)
    assert page.locator("[data-node]").count() < 200
    clock = clock_of(page)
    started = clock()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.get_by_text("6 × Decoder: pass 6.").wait_for()
    assert 0 < clock() - started < 1.5

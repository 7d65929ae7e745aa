"""Around every view: a sentence in, links, languages, exports, the index, and what happens when something is wrong."""

from __future__ import annotations

import io
import json
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from glassformer.api import find_model
from tests.ui.driver import TEXT, Desk, number, view_of

RETRY = "the server does not answer"


class Served:
    """The server of the page in a thread, which can be stopped and started again at the same address."""

    def __init__(self, *models: str) -> None:
        self.models = models
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.root = f"http://127.0.0.1:{self.port}/"

    def start(self, *models: str) -> None:
        import uvicorn

        from glassformer.explore.app import build_app

        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        listening.listen()
        config = uvicorn.Config(build_app(models or self.models), log_level="error", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of the teaching model, and of a copy of it that can be deleted."""
    folder = tmp_path_factory.mktemp("models") / "doomed"
    shutil.copytree(find_model("teaching"), folder)
    served = Served("teaching", str(folder))
    served.start()
    yield served
    served.stop()


@pytest.fixture
def visitor(browser: Any, served: Served) -> Iterator[Desk]:
    """A window on that server."""
    context = browser.new_context(locale="en")
    context.set_default_timeout(60_000)
    yield Desk(context.new_page(), served.root)
    context.close()


def alerts(desk: Desk) -> list[str]:
    return [each.removesuffix("Try again").strip() for each in desk.window.get_by_role("alert").all_inner_texts()]


def run(desk: Desk, text: str) -> None:
    desk.window.get_by_role("textbox", name="Text", exact=True).fill(text)
    desk.window.get_by_role("button", name="Run").click()


def test_a_sentence_is_typed_and_looked_into(desk: Desk) -> None:
    page = desk.window
    desk.go("map", text=TEXT)
    said = page.locator("main blockquote .to")
    assert said.inner_text() == desk.run["output"]["text"] == "I love natural language processing."
    for text, source in (
        ("我喜欢打篮球。", "zh"),
        ("I like cats.", "en"),
    ):  # the second the other way round, found by itself
        run(desk, text)
        page.locator("main blockquote p").first.filter(has_text=text).wait_for()
        assert desk.run["request"]["text"] == text and desk.run["request"]["from"] == source
        assert said.inner_text() == desk.run["output"]["text"]
    page.go_back()
    page.locator("main blockquote p").first.filter(has_text="我喜欢打篮球。").wait_for()


def test_a_link_restores_the_view_in_another_window(desk: Desk, browser: Any) -> None:
    desk.go("attention", text="我喜欢打篮球。", stack="decoder", kind="cross", layer=2, head=3, step=2, col=4)
    bars = desk.window.locator("main .side g[aria-label]").evaluate_all("all => all.map((e) => e.ariaLabel)")
    context = browser.new_context(locale="zh-CN")
    other = context.new_page()
    other.goto(desk.window.url)
    other.get_by_text("layer 3, head 4.").wait_for()
    other.wait_for_function("n => document.querySelectorAll('main .side g[aria-label]').length === n", arg=len(bars))
    assert other.locator("main .side g[aria-label]").evaluate_all("all => all.map((e) => e.ariaLabel)") == bars
    assert other.url == desk.window.url
    context.close()


def test_a_mistyped_link_still_opens(desk: Desk) -> None:
    desk.go("attention", text=TEXT, layer="999", head="-3", step="x", col="1e9", kind="none", beam="")
    assert desk.window.get_by_role("heading", name="Attention", exact=True).is_visible() and alerts(desk) == []
    desk.window.get_by_text("layer 5, head 1.").wait_for()
    desk.window.evaluate("location.hash = 'nowhere?lang=en'")
    desk.window.get_by_text("This view is not in this copy of the page.").wait_for()


def test_language_and_theme(desk: Desk) -> None:
    desk.go("attention", text=TEXT)
    page = desk.window
    page.get_by_role("radio", name="中").click()
    page.get_by_role("heading", name="注意力", exact=True).wait_for()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.get_by_role("button", name="主题").click()
    page.get_by_role("radio", name="深色").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 20, 24)"
    assert {"lang=zh", "theme=dark"} <= set(page.url.split("?")[1].split("&"))
    page.get_by_role("radio", name="跟随系统").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    page.emulate_media(color_scheme="light")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.ariaLabel") == "主题"


def test_keys_lead_everywhere(desk: Desk) -> None:
    desk.go("map", text=TEXT)
    page = desk.window
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("4")
    page.get_by_role("heading", name="Attention", exact=True).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("clock")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Clock hands").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    assert not page.get_by_role("dialog", name="Keys").is_visible()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press(" ")
    page.wait_for_function("/step=[2-9]/.test(location.hash)")
    page.keyboard.press(" ")
    page.get_by_role("button", name="Play").first.wait_for()


def exported(desk: Desk, kind: str, row: int) -> bytes:
    button = desk.window.locator(".sheet .row").nth(row).get_by_role("button", name=kind)
    button.scroll_into_view_if_needed()
    with desk.window.expect_download() as download:
        button.evaluate("button => button.click()")  # the sheet may move under a pointer while drawings arrive
    assert re.fullmatch(r"glassformer-[\w.-]+\.\w+", download.value.suggested_filename)
    return Path(download.value.path()).read_bytes()


@pytest.mark.parametrize("view", ["map", "tokens", "position", "attention"])
def test_every_drawing_can_be_taken_along(desk: Desk, view: str) -> None:
    from PIL import Image

    desk.go(view, text=TEXT, stack="decoder", kind="cross", layer=1, head=2, step=3)
    page = desk.window
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Export").click()
    page.locator(".sheet .row").first.wait_for()
    names = page.locator(".sheet .row span").all_inner_texts()
    assert names and len(set(names)) == len(names), names
    for row, name in enumerate(names):
        svg = ElementTree.fromstring(exported(desk, "SVG", row).decode())
        assert svg.tag.endswith("svg") and float(svg.get("width")) > 20 and float(svg.get("height")) > 20, name
        assert len(list(svg)) > 1 and b"http:" not in ElementTree.tostring(svg).replace(b"http://www.w3.org/", b"")
        if row < 2:
            picture = Image.open(io.BytesIO(exported(desk, "PNG", row)))
            assert picture.width == pytest.approx(2 * float(svg.get("width")), abs=3)
            assert len(picture.convert("RGB").getcolors(1 << 20)) > 3, f"{name} is blank"
    if view == "attention":
        told = json.loads(exported(desk, "JSON", names.index("decoder.layers.1.cross.pattern, Head 3")))
        assert np.array(told["values"], "f4").tolist() == desk.tensor("decoder.layers.1.cross.pattern", h=2).tolist()
        assert told["columns"] == [token["text"] or token["piece"] for token in desk.run["source"]]
        assert told["model"] == "zh-en" and told["link"] == page.url
    page.keyboard.press("Escape")


WHERE = {
    "token": ("token", "词元", "Pieces under the characters", "子词，排在它们所来自的字符之下"),
    "embedding": ("embedding", "嵌入", "From id to vector", "从编号到向量"),
    "position": ("position", "位置编码", "The encoding: positions × features", "位置 × 特征"),
    "q, k, v": ("query", "查询", "Match: multiply and add", "匹配：相乘再相加"),
    "scaling": ("scaling", "缩放", "Scale: divide by √d", "缩放：除以 √d"),
    "softmax": ("softmax", "softmax", "Softmax: scores become shares", "Softmax：分数变成份额"),
    "heads": ("heads", "多头", "All layers and heads", "所有层、所有头"),
    "feed-forward": ("feed-forward", "前馈", "Each position by itself", "每个位置各自处理"),
    "residual": ("residual", "残差", "Residual stream", "残差流"),
    "norm": ("norm", "归一化", "Layer normalisation", "层归一化"),
    "causal mask": ("causal mask", "因果掩码", "in the future: masked (causal)", "未来的词：因果掩码"),
    "padding mask": ("padding mask", "填充掩码", "padding: masked", "填充：填充掩码"),
    "cross-attention": ("cross-attention", "交叉注意力", "Decoder → encoder: cross", "解码器→编码器：交叉注意力"),
    "autoregression": ("autoregression", "自回归", "One word after another", "一个词接一个词"),
    "logits": ("logits", "logits", "From scores to a word", "从分数到一个词"),
    "choice": ("choosing", "选词", "temperature", "温度"),
    "teacher forcing": ("teacher forcing", "教师强制", "In training: teacher forcing", "训练：教师强制"),
    "KV cache": ("kv cache", "kv 缓存", "The cache: what need not be computed again", "缓存：不必再算的东西"),
}


@pytest.mark.parametrize("concept", WHERE)
def test_each_thing_is_found_in_both_languages(desk: Desk, concept: str) -> None:
    from playwright.sync_api import expect

    for lang, name, seen in zip(("en", "zh"), WHERE[concept][:2], WHERE[concept][2:], strict=True):
        desk.go("numbers", text=TEXT, lang=lang)
        find = desk.window.get_by_role("combobox", name="Where is …?" if lang == "en" else "在哪里看……？")
        find.fill(name)
        find.press("Enter")
        place = desk.window.locator("main").get_by_text(seen).filter(visible=True).first
        expect(place).to_be_in_viewport(timeout=20_000)
        assert view_of(desk.window.url) != "numbers"


@pytest.mark.parametrize("text", ["你" * 10_000, "a " * 600])
def test_too_long_a_text_is_one_line(desk: Desk, text: str) -> None:
    desk.go("map", text=TEXT)
    run(desk, text)
    desk.window.get_by_role("alert").wait_for()
    (line,) = alerts(desk)
    assert re.search(r"\b(8000|8,000|512)\b", line) and len(line) < 200, line
    run(desk, TEXT)
    desk.window.get_by_role("alert").wait_for(state="detached")


def test_an_empty_text_and_an_odd_one(desk: Desk) -> None:
    desk.go("tokens", text=TEXT)
    for nothing in ("", "   ", "\u3000"):
        run(desk, nothing)
        desk.window.get_by_text("Write a sentence first.").wait_for()
    assert alerts(desk) == []
    for odd in ("🐉", "𠮷野家🐉龘<b>&amp;</b>\u202e\u0000", "ﷺ", "\ud83d\udc09\u200d"):
        run(desk, odd)
        desk.window.wait_for_timeout(50)
        desk.settle()
        assert alerts(desk) == [] and desk.run["source"], odd


def test_a_model_that_vanished_is_one_line(visitor: Desk, served: Served) -> None:
    page = visitor.window
    page.get_by_text("I love NLP").first.wait_for()
    shutil.rmtree(served.models[1])
    page.get_by_role("combobox", name="Model").select_option("doomed")
    page.get_by_role("alert").wait_for()
    page.wait_for_timeout(200)
    (line,) = alerts(visitor)
    assert line.startswith("model 'doomed' is gone")
    page.get_by_role("combobox", name="Model").select_option("teaching")
    page.get_by_role("alert").wait_for(state="detached")
    page.get_by_text("I love NLP").first.wait_for()


def test_two_windows_keep_their_own_runs(visitor: Desk, browser: Any, served: Served) -> None:
    other = Desk(browser.new_context(locale="en").new_page(), served.root)
    visitor.go("attention", text="我爱自然语言处理", stack="encoder", col=2)
    other.go("attention", text="我爱语言", stack="encoder", col=2)
    sizes = [
        each.window.get_by_role("application", name="pattern, Head 1").first.get_attribute("aria-label")
        for each in (visitor, other)
    ]
    assert ["6 × 6" in sizes[0], "6 × 6" in sizes[1]] == [True, False], sizes
    # Nine more runs push the first one out of the server; its window makes it once more.
    for i in range(9):
        other.window.request.post(f"{served.root}api/runs", data={"model": "teaching", "text": "我爱" + "语言" * i})
    before = visitor.run["id"]
    visitor.window.get_by_role("radiogroup", name="Layer").get_by_role("radio", name="3").click()
    visitor.window.get_by_text("layer 3, head 1.").wait_for()
    visitor.window.wait_for_function(
        "() => !document.querySelector('main .loading') && document.querySelector('nav[aria-label^=\"The formula\"]')"
    )
    visitor.settle()
    assert alerts(visitor) == []
    assert visitor.run["id"] != before
    pattern = visitor.tensor("encoder.layers.2.mixer.pattern", h=0)
    assert number(visitor.hover_cell("encoder.layers.2.mixer.pattern", 1, 2, pattern.shape)) == pattern[1, 2]
    other.window.context.close()


def test_a_server_that_goes_and_comes_back(visitor: Desk, served: Served) -> None:
    visitor.go("attention", text="我爱自然语言处理", stack="encoder", col=2, layer=1)
    page = visitor.window
    served.stop()
    try:
        page.keyboard.press("]")
        page.get_by_role("alert").wait_for()
        page.keyboard.press("]")
        page.wait_for_timeout(300)
        (line,) = alerts(visitor)
        assert line.startswith(RETRY)
        page.get_by_role("button", name="Try again").click()
        page.get_by_role("alert").wait_for()
    finally:
        served.start("teaching")
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("alert").wait_for(state="detached")
    page.get_by_text("layer 4, head 1.").wait_for()
    visitor.settle()
    pattern = visitor.tensor("encoder.layers.3.mixer.pattern", h=0)
    assert number(visitor.hover_cell("encoder.layers.3.mixer.pattern", 1, 2, pattern.shape)) == pattern[1, 2]
    assert visitor.faults == []


@pytest.mark.slow
def test_a_saved_page_needs_no_server(browser: Any, tmp_path: Path) -> None:
    from glassformer.explore.export import write_page

    file = tmp_path / "page.html"
    file.write_text(write_page("我爱自然语言处理", ["teaching"], None, None), "utf-8")
    context = browser.new_context(locale="en")
    page = context.new_page()
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(file.as_uri())
    page.get_by_text("I love NLP").first.wait_for()
    names = [each.inner_text() for each in page.locator("nav .views button").all()]
    for name in names:
        page.get_by_role("navigation", name="Views").get_by_role("button", name=name, exact=True).click()
        page.wait_for_function("name => document.title.startsWith(name)", arg=name)
        page.wait_for_function("() => document.querySelector('main h1') && !document.querySelector('main .loading')")
        assert page.locator("main [role=alert]").all_inner_texts() == [], name
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Attention", exact=True).click()
    page.keyboard.press("]")
    page.get_by_text("layer 2, head 1.").wait_for()
    assert page.get_by_text("equals the trace").count() >= 3 and page.get_by_text("differs from the trace").count() == 0
    assert [each for each in asked if not each.startswith(("data:", "blob:"))] == [file.as_uri()] and not faults
    assert page.get_by_role("button", name="Run").is_disabled()
    context.close()

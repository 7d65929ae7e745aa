"""One open page, led from view to view as a link leads it, and the trace behind it to compare with."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import numpy as np

TEXT = "我爱自然语言处理。"
# As when a reader goes back; then long enough for the page to have acted on it.
FOLLOW = """async (hash) => {
  history.pushState(null, '', '#' + hash)
  dispatchEvent(new PopStateEvent('popstate'))
  for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame)
}"""
SETTLED = """() => document.querySelector('main[aria-busy=false] h1')
  && document.querySelector('main').dataset.view === (location.hash.slice(1).split('?')[0] || 'map')
  && ![...document.querySelectorAll('main p.loading, main .busy')].some((each) => each.checkVisibility())"""


class Desk:
    """A window on the page; faults of its scripts and requests elsewhere are gathered in `faults`."""

    def __init__(self, window: Any, address: str) -> None:
        self.window, self.root = window, address.split("#")[0]
        self.faults: list[str] = []
        self._answers: list[Any] = []
        window.on("pageerror", lambda error: self.faults.append(str(error)))
        window.on("request", lambda request: self._ask(request.url))
        window.on("response", lambda answer: self._answer(answer))
        window.goto(f"{self.root}#map?lang=en&theme=light")
        self.settle()

    def _ask(self, url: str) -> None:
        if not url.startswith((self.root, "data:", "blob:")):
            self.faults.append(f"asked for {url}")

    def _answer(self, answer: Any) -> None:
        if answer.request.method == "POST" and answer.url.endswith("/api/runs") and answer.ok:
            self._answers.append(answer)

    def go(self, view: str, **state: Any) -> None:
        """Follows a link; options of a view are given as ``_name``."""
        told = {"lang": "en", "theme": "light", **{("~" + k[1:] if k[0] == "_" else k): v for k, v in state.items()}}
        query = "&".join(f"{quote(key)}={quote(str(value))}" for key, value in told.items())
        self.window.evaluate(FOLLOW, f"{view}?{query}")
        self.settle()

    def settle(self) -> None:
        """Waits until the run is here and nothing is on its way."""
        self.window.wait_for_function(SETTLED)

    @property
    def run(self) -> dict[str, Any]:
        """The run that the page shows."""
        return self._answers[-1].json()

    def tensor(self, name: str, **fix: int) -> np.ndarray:
        """A tensor of that run, as the server gives it, whatever the page made of it."""
        asked = "&".join(f"{axis}={index}" for axis, index in fix.items())
        return self.fetch(f"api/runs/{self.run['id']}/tensors/{quote(name)}?{asked}")

    def weight(self, name: str, row: int | None = None) -> np.ndarray:
        """A learnt tensor of the model at hand, or one row of it."""
        asked = "" if row is None else f"?row={row}"
        return self.fetch(f"api/models/{quote(self.run['model'])}/weights/{quote(name)}{asked}")

    def fetch(self, path: str) -> np.ndarray:
        """Float32 of the server's."""
        answer = self.window.request.get(self.root + path)
        assert answer.ok, answer.text()
        return np.frombuffer(answer.body(), "<f4").reshape([int(n) for n in answer.headers["x-shape"].split(",") if n])

    @property
    def tip(self) -> str:
        """What the tooltip says."""
        return self.window.locator(".tip").inner_text()

    def hover_cell(self, drawing: str, row: int, col: int, shape: tuple[int, int]) -> str:
        """The tooltip over one cell of a heat map."""
        self.window.mouse.move(*self.cell(drawing, row, col, shape))
        return self.tip

    def cell(self, drawing: str, row: int, col: int, shape: tuple[int, int]) -> tuple[float, float]:
        """Where a cell of a heat map stands in the window; the map is scrolled into it."""
        plate = self.window.get_by_role("application", name=drawing).first
        canvas = plate.locator("xpath=preceding-sibling::canvas")
        plate.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        return box["x"] + (col + 0.5) * box["width"] / shape[1], box["y"] + (row + 0.5) * box["height"] / shape[0]


def number(text: str) -> np.float32:
    """An exact value as the page writes it, back to the float32 that it is."""
    found = re.findall(r"[−-]?\d+(?:\.\d+)?(?:e[−-]?\d+)?", text)
    return np.float32(found[-1].replace("−", "-"))


def view_of(url: str) -> str:
    """The view that an address names."""
    return url.partition("#")[2].partition("?")[0]

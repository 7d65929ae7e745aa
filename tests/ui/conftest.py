"""A real Chromium before the real server: what every test of the page stands on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.ui.driver import Desk

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
STALLS = ["TimeoutError", r"Expect .* with timeout"]
"""How Playwright says that a wait was too short: of its own, and of its `expect`."""


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Where `glassformer explore` serves the models that ship with the package."""
    command = [sys.executable, "-m", "glassformer", "explore", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for all tests; without it they are skipped, and say so."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium; tests/ui/install.sh installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """A fresh window in English and light; a fault in the page's scripts, or a request elsewhere, fails the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en", color_scheme="light")
    context.set_default_timeout(20_000)
    opened, faults = context.new_page(), []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("request", lambda request: None if _ours(request.url, address) else faults.append(request.url))
    yield opened
    context.close()
    assert not faults, faults


def _ours(url: str, address: str) -> bool:
    return url.startswith((address.split("#")[0], "data:", "blob:", "file:"))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as its sources build it now."""
    if shutil.which("npm") is None:
        pytest.skip("no npm; install Node.js")
    out = tmp_path_factory.mktemp("page")
    for mode in ("production", "single"):
        build = ["npx", "vite", "build", "--mode", mode, "--outDir", str(out), "--emptyOutDir", "false"]
        subprocess.run(build, cwd=REPOSITORY / "ui", check=True, capture_output=True, timeout=300)
    return out


@pytest.fixture(scope="module")
def desk(browser: Any, address: str) -> Iterator[Desk]:
    """One window for all tests of a file, led by links; a fault in the page's scripts fails the last of them."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en", color_scheme="light")
    context.set_default_timeout(20_000)
    opened = Desk(context.new_page(), address)
    yield opened
    context.close()
    assert not opened.faults, opened.faults


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser may stall where other work holds the processor, and then what was waited for is not there in time.

    Only that is tried again, twice. A wrong number, a fault in the page's scripts, a request elsewhere fail at once.
    """
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.path.name != "test_build.py":
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=STALLS))

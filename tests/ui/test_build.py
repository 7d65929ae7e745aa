"""What ships is what the sources build, small, and self-contained."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

STATIC = REPOSITORY / "src/glassformer/explore/static"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_what_ships_is_what_the_sources_build(built: Path) -> None:
    ours, now = files(STATIC), files(built)
    assert sorted(ours) == sorted(now), "run `make ui`"
    assert all(ours[name] == now[name] for name in now), "run `make ui`"


@pytest.mark.slow
def test_the_drawing_code_keeps_its_own_tests() -> None:
    if shutil.which("npm") is None:
        pytest.skip("no npm; install Node.js")
    for script in ("check", "test"):
        done = subprocess.run(
            ["npm", "run", script], cwd=REPOSITORY / "ui", capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_all_of_it_fits_in_a_package() -> None:
    assert sum(map(len, files(STATIC).values())) < 1_500_000


def test_nothing_on_the_page_comes_from_elsewhere() -> None:
    allowed = ("http://www.w3.org/", "https://svelte.dev/", "http://127.0.0.1")
    for name, content in files(STATIC).items():
        for url in re.findall(rb"https?://[^\s\"'`)\\<>]+", content):
            assert url.decode().startswith(allowed), f"{name}: {url!r}"


def test_the_lock_file_names_no_registry() -> None:
    lock = json.loads((REPOSITORY / "ui/package-lock.json").read_text("utf-8"))
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]

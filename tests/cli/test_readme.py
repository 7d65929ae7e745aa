"""Every command that the README shows is run, as it stands there, in an empty folder.

A block is left out only when the line above it says why: `<!-- not run: takes hours -->`. The blocks of one page share
one folder, as they would in a reader's terminal.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PAGES = ["README.md", "README.zh-CN.md"]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+?) -->\n)?^```(?P<language>bash|python)\n(?P<code>.*?)^```$", re.S | re.M
)


def blocks(page: str) -> list[re.Match[str]]:
    return list(BLOCK.finditer((REPOSITORY / page).read_text("utf-8")))


def commands(page: str) -> list[str]:
    """The lines a reader types; a comment is prose, which differs between languages."""
    return [re.sub(r"\s+#.*", "", line) for b in blocks(page) for line in b["code"].splitlines() if line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("reader")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_command_works(page, folder):
    here = folder / page.removesuffix(".md")
    here.mkdir()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = 0
    for block in blocks(page):
        if block["reason"]:
            continue
        run = ["bash", "-euo", "pipefail", "-c"] if block["language"] == "bash" else [sys.executable, "-c"]
        command = [*run, block["code"]]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{page}:\n{block['code']}\n{done.stderr}"
        assert done.stdout, f"{page}: prints nothing:\n{block['code']}"
        ran += 1
    assert ran >= 3


def test_a_block_left_out_says_why():
    reasons = [block["reason"] for page in PAGES for block in blocks(page) if block["reason"]]
    assert all(len(reason) >= 10 for reason in reasons)
    # A shell block in any other form would escape this file.
    for page in PAGES:
        text = (REPOSITORY / page).read_text("utf-8")
        assert len(re.findall(r"^```(?:bash|python|sh|shell|console)\b", text, re.M)) == len(blocks(page))


def test_both_languages_show_the_same_commands():
    english, chinese = PAGES
    assert commands(english) == commands(chinese)
    headings = [len(re.findall(r"^## ", (REPOSITORY / page).read_text("utf-8"), re.M)) for page in PAGES]
    assert headings[0] == headings[1]

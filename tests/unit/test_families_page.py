"""docs/families.md: no cell is empty, and every test and recipe that it names is there."""

from __future__ import annotations

import re

import pytest

from glassformer.families import FAMILIES
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs/families.md"
COLUMNS = ["family", "import", "export", "train", "generate, embed, classify", "trace", "parity"]
NAMED = re.compile(r"`([a-z]+/test_\w+\.py)`((?:: \w+(?:, \w+)*)?)")


def table() -> list[list[str]]:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_family_has_one_row():
    head, _, *rows = table()
    assert head == COLUMNS
    of = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert len(of) == len(rows) and sorted(of) == sorted(family.name for family in FAMILIES)


@pytest.mark.parametrize("row", table()[2:], ids=lambda row: row[0].split(" (")[0])
def test_no_cell_is_empty_and_each_names_tests_that_exist(row: list[str]):
    assert len(row) == len(COLUMNS)
    for column, cell in zip(COLUMNS[1:], row[1:], strict=True):
        named = NAMED.findall(cell)
        assert named, f"{column}: names no test"
        for file, parts in named:
            there = re.findall(r"^def (test_\w+)", (REPOSITORY / "tests" / file).read_text("utf-8"), re.M)
            assert parts, f"{column}: {file}: no test in it is named"
            for part in parts.removeprefix(": ").split(", "):
                assert any(part in name for name in there), f"{column}: {file} has no test of {part}"
        for recipe in re.findall(r"`(recipes/[^`]+)`", cell):
            assert (REPOSITORY / recipe).is_file(), recipe
    assert re.match(r"\d+e-\d+", row[-1]), "parity: no figure"

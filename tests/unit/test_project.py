"""What every tracked file must keep to, whoever wrote it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

WEIGHTS = re.compile(r"^src/glassformer/bundled/[^/]+/model\.safetensors$")
PICTURES = re.compile(r"^docs/img/[^/]+\.png$")
MEGABYTE = 1 << 20


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    names = [name for name in listed.decode().split("\0") if name]
    return [name for name in names if (REPOSITORY / name).is_file()]


def texts() -> list[tuple[str, str]]:
    binary = re.compile(f"{WEIGHTS.pattern}|{PICTURES.pattern}")
    return [(name, (REPOSITORY / name).read_text("utf-8")) for name in tracked() if not binary.match(name)]


def test_every_tracked_file_but_the_bundled_weights_and_pictures_is_small_utf8_text():
    sizes = {name: (REPOSITORY / name).stat().st_size for name in tracked()}
    assert {name for name, size in sizes.items() if size > MEGABYTE and not WEIGHTS.match(name)} == set()
    assert sum(size for name, size in sizes.items() if WEIGHTS.match(name)) <= 30 * MEGABYTE
    assert all(size < 150 * 1024 for name, size in sizes.items() if PICTURES.match(name))
    assert texts()


# Spelled in pieces, so that this file keeps the rule it checks.
FOREIGN = {
    "a path of one machine": re.compile("/wo" + r"rk/|/ro" + r"ot/|/ho" + r"me/[a-z]|/tmp/ve" + "nv"),
    "a registry's host": re.compile("py" + r"pi\.org|python" + r"hosted|npm" + r"js\.(org|com)|pytorch" + r"\.org/whl"),
    "a secret": re.compile("BEGIN [A-Z ]*PRIV" + r"ATE KEY|AKIA[0-9A-Z]{16}|gh[pous]_[A-Za-z0-9]{30}"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_no_tracked_file_holds(what):
    found = [f"{name}: {match.group()}" for name, text in texts() for match in FOREIGN[what].finditer(text)]
    assert found == []


def test_modules_stay_short():
    code = [name for name in tracked() if name.startswith("src/") and name.endswith(".py")]
    lengths = {name: len((REPOSITORY / name).read_text("utf-8").splitlines()) for name in code}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_no_family_is_named_outside_its_file():
    """A comparison with a family's name, such as `family == "bert"`, belongs in families/ as data."""
    names = [path.stem for path in (REPOSITORY / "src/glassformer/families").glob("*.py")]
    compared = re.compile(rf"""[=!]=\s*["']({"|".join(n for n in names if n not in ("__init__", "family"))})["']""")
    code = [name for name in tracked() if name.startswith("src/") and "/families/" not in name and name.endswith(".py")]
    assert [name for name in code if compared.search((REPOSITORY / name).read_text("utf-8"))] == []


def links(markdown: str) -> list[str]:
    prose = re.sub(r"```.*?```", "", markdown, flags=re.S)
    return [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose)]


def test_every_relative_link_of_a_page_leads_somewhere():
    broken = []
    for name, text in texts():
        if name.endswith(".md"):
            for target in links(text):
                if target and "://" not in target and not (REPOSITORY / Path(name).parent / target).exists():
                    broken.append(f"{name} → {target}")
    assert broken == []


def test_no_page_uses_a_flag_or_command_that_is_gone():
    """Every `glassformer COMMAND --flag` in a page exists in that command's help."""
    import typer.main

    from glassformer.cli import main as shell

    wrong = []
    for name, text in texts():
        if not name.endswith(".md") or name == "CHANGELOG.md":
            continue
        for command, rest in re.findall(r"(?:^|[`\s/])glassformer ([a-z]+)((?: [^`\n|]*)?)", text):
            if command not in shell.COMMANDS:
                if "-" in rest:
                    wrong.append(f"{name}: glassformer {command}")
                continue
            module = __import__(f"glassformer.cli.{command}", fromlist=["app"])
            known = flags(typer.main.get_command(module.app)) | {"--help", "-h"}
            used = {flag.replace("_", "-") for flag in re.findall(r"(?<=\s)--[a-z][a-z0-9_-]*", rest)}
            wrong += [f"{name}: glassformer {command} {flag}" for flag in used - known]
    assert wrong == []


def flags(command) -> set[str]:
    own = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    return own.union(*(flags(child) for child in getattr(command, "commands", {}).values()))


def test_the_torch_pin_lies_in_the_packages_own_range():
    from packaging.requirements import Requirement

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    accepted = {r.name: r.specifier for r in map(Requirement, project["dependencies"])}
    lines = (REPOSITORY / "requirements/constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert "torch" in {pin.name for pin in pins}
    for pin in pins:
        version = str(pin.specifier).removeprefix("==")
        assert pin.name not in accepted or version in accepted[pin.name]

"""`glassformer show` and `glassformer list`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import glassformer as gf
from glassformer import catalogue
from glassformer.cli import main as shell
from glassformer.cli.show import size


def say(capsys, *arguments: str) -> str:
    assert shell.main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("preset", ["transformer-teaching", "transformer-base"])
def test_show_as_json_is_the_model(capsys, preset):
    said = json.loads(say(capsys, "show", preset, "--json"))
    built = gf.build(preset, "meta")
    assert said["parameters"] == said["tree"]["parameters"] == built.num_parameters()
    assert gf.ModelConfig.from_dict(said["config"]) == built.config
    assert said["moments"] == 2 * said["weights"] == 8 * said["parameters"]


def test_show_is_plain_text_off_a_terminal(capsys):
    out = say(capsys, "show", "transformer-base")
    assert "\x1b" not in out and "layers.0-5" in out and "3,152,384 × 6" in out and "63,082,496" in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_list_names_every_preset_with_its_family_and_size_and_the_bundled_model(capsys):
    from glassformer.families import presets

    rows = json.loads(say(capsys, "list", "--json"))
    said = {row["preset"]: row["parameters"] for row in rows if row["preset"]}
    assert {row["preset"]: row["family"] for row in rows if row["preset"]} == {
        name: family.name for name, (family, _) in presets().items()
    }
    assert all(said[name] == gf.build(name, "meta").num_parameters() for name in said)
    shipped = {row["model"]: row for row in rows if row["model"]}
    assert set(shipped) == {"teaching", "zh-en"} and shipped["zh-en"]["kind"] == "encoder-decoder"
    assert shipped["zh-en"]["parameters"] == json.loads(say(capsys, "show", "zh-en", "--json"))["parameters"]
    out = say(capsys, "list")
    assert all(name in out and f"{count:,}" in out for name, count in said.items()) and "zh-en" in out


def test_what_is_kept_of_presets_is_what_is_reckoned():
    kept = json.loads(catalogue.FILE.read_text("utf-8"))
    mend = "run: python -m glassformer.catalogue"
    assert kept["presets"] == json.loads(json.dumps(catalogue.reckon())), mend
    assert kept["families"] == catalogue.fingerprint(), mend


def test_presets_are_told_without_pytorch():
    """PyTorch's import alone takes more than a second, and `show gpt3-175b` is to answer in less."""
    blocked = (
        "import sys; sys.modules['torch'] = sys.modules['pydantic'] = None; from glassformer.cli.main import main; "
    )
    for arguments in (["show", "gpt3-175b"], ["show", "vit-b16", "--json"], ["list"]):
        told = subprocess.run(
            [sys.executable, "-c", f"{blocked}sys.exit(main({arguments}))"], capture_output=True, text=True, check=False
        )
        assert told.returncode == 0 and told.stdout and not told.stderr, told.stderr


@pytest.mark.parametrize("arguments", [("gpt3-tiny",), ("gpt3-tiny", "--context", "5")])
def test_a_changed_family_or_another_context_is_reckoned_anew(capsys, monkeypatch, arguments):
    kept = json.loads(say(capsys, "show", "gpt3-tiny", "--json"))
    monkeypatch.setattr(catalogue, "fingerprint", lambda: "changed")
    catalogue._kept.cache_clear()
    try:
        said = json.loads(say(capsys, "show", *arguments, "--json"))
    finally:
        catalogue._kept.cache_clear()
    assert (said == kept) == (len(arguments) == 1)
    assert {**said, "flops_per_target": 0, "context": 0} == {**kept, "flops_per_target": 0, "context": 0}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("transformer-bse", "neither a preset, nor a bundled model, nor a folder; did you mean 'transformer-base'?"),
        (".", "no config.json"),
    ],
)
def test_show_of_what_is_no_model(capsys, tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    assert shell.main(["show", name]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (252_329_984, "252 MB"), (5e18, "5e+03 PB")],
)
def test_sizes_in_words(count, said):
    assert size(count) == said

"""`glassformer show` and `glassformer list`."""

from __future__ import annotations

import json

import pytest

import glassformer as gf
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


def test_list_names_every_preset_with_its_size(capsys):
    from glassformer.families import presets

    said = {row["preset"]: row["parameters"] for row in json.loads(say(capsys, "list", "--json"))}
    assert set(said) == set(presets())
    assert all(said[name] == gf.build(name, "meta").num_parameters() for name in said)
    out = say(capsys, "list")
    assert all(name in out and f"{count:,}" in out for name, count in said.items())


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

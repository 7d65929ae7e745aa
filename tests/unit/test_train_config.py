"""A training configuration: what is read, and what is refused, with its place and the nearest right word."""

from __future__ import annotations

import pytest

from glassformer.cli.train import _overrides
from glassformer.errors import UserError
from glassformer.train.config import changes, dump_config, load_config, parse_yaml

MINIMAL = "data: {train: t.tsv}\n"


def read(tmp_path, text: str, **overrides):
    file = tmp_path / "c.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_config(file, overrides)


def test_everything_has_a_default_but_the_data(tmp_path):
    config = read(tmp_path, MINIMAL)
    assert config.model == {"preset": "transformer-small"} and config.data.train == "t.tsv"
    with pytest.raises(UserError, match=r"c\.yaml: data: Field required"):
        read(tmp_path, "train: {steps: 3}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: {train: t.tsv}\ntrain: {stesp: 3}", r"c\.yaml: unknown key 'train\.stesp'; did you mean 'steps'\?"),
        ("dta: {train: t.tsv}", r"unknown key 'dta'; did you mean 'data'|data: Field required"),
        (MINIMAL + "train: {schedule: cosin}", r"train\.schedule: .*'cosine'.*got 'cosin'"),
        (MINIMAL + "train: {steps: 0}", r"train\.steps: .*greater than 0, got 0"),
        (MINIMAL + "train: {label_smoothing: 1.5}", r"train\.label_smoothing: .*less than 1, got 1\.5"),
        (MINIMAL + "train: {betas: [0.9, 1.0]}", r"train\.betas\.1: .*less than 1"),
        (MINIMAL + "train: {patience: 3}", r"train\.patience counts evaluations: give data\.dev"),
        (MINIMAL + "model: {preset: transformer-smal}", r"c\.yaml: unknown preset .*did you mean 'transformer-small'"),
        (MINIMAL + "model: {preset: transformer-tiny, dropuot: 0.1}", r"model\.dropuot.*did you mean 'dropout'"),
        (MINIMAL + "model: {d_modle: 8}", r"c\.yaml: model: .*d_model"),
        (MINIMAL + "model: {from: d, dropout: 0.1}", r"model: from brings a whole model along, so leave dropout out"),
        ("data: {train: t.tsv, source: en, target: en}", r"source and target are both 'en'"),
        ("data: {train: t, masked_share: 1.5}", r"data\.masked_share: .*less than or equal to 1, got 1\.5"),
        ("data: {train: t, mask_terms: m.tsv}", r"mask_terms masks nothing while masked_share is 0; set masked_share"),
        ("data: {train: 3}", r"data\.train: expected a file, or a list of files"),
        ("data: {train: []}", r"data\.train: expected a file, or a list of files"),
        ("data: {train: [[a, b, c]]}", r"data\.train: expected a file, or a list of files and of pairs"),
        ("data:\n  train: [t.tsv\ntrain: 3\n", r"c\.yaml:\d: not valid YAML"),
        ("a: b: c", r"c\.yaml:1: not valid YAML \(mapping values are not allowed here\)"),
        ("", r"c\.yaml: expected keys such as data and train, found nothing"),
        ("- 3", r"c\.yaml: expected keys such as data and train, found list"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_text(tmp_path):
    with pytest.raises(UserError, match=r"absent\.yaml: cannot read the config \(No such file"):
        load_config(tmp_path / "absent.yaml")
    (tmp_path / "gbk.yaml").write_bytes("data: {train: 中}".encode("gbk"))
    with pytest.raises(UserError, match=r"gbk\.yaml: byte 14 is not UTF-8"):
        load_config(tmp_path / "gbk.yaml")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 1e-3),
        ("2E+4", 2e4),
        ("-.5e1", -5.0),
        ("1.0e-3", 1e-3),
        ("7", 7),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("", None),
        ("e5", "e5"),
        ("a=b", "a=b"),
        ("[[a, b], c]", [["a", "b"], "c"]),
    ],
)
def test_values_are_read_as_yaml_1_2_in_a_file_and_after_set(written, value):
    assert _overrides([f"a.b={written}"]) == {"a.b": value}
    assert type(parse_yaml(written, "here")) is type(value) and parse_yaml(written, "here") == value


def test_set_replaces_adds_and_refuses(tmp_path):
    config = read(tmp_path, MINIMAL + "train: {lr: 2e-3}", **{"train.lr": 1e-3, "tokenizer.from": "dir"})
    assert config.train.lr == 1e-3 and config.tokenizer.source == "dir"
    assert read(tmp_path, MINIMAL + "train: {lr: 2e-3, steps: 1e4}").train.steps == 10_000
    with pytest.raises(UserError, match=r"unknown key 'train\.lrr'; did you mean 'lr'"):
        read(tmp_path, MINIMAL, **{"train.lrr": 1})
    with pytest.raises(UserError, match=r"cannot set data\.train\.x: train is not a section"):
        read(tmp_path, MINIMAL, **{"data.train.x": 1})
    for pair in ("train.lr", "=3"):
        with pytest.raises(UserError, match="expected key=value, such as --set"):
            _overrides([pair])
    with pytest.raises(UserError, match=r"--set a=\[1:1: not valid YAML"):
        _overrides(["a=[1"])


def test_a_mapping_is_read_as_a_file_is_and_not_changed(tmp_path):
    data = {"data": {"train": "t.tsv"}, "train": {"steps": 3}}
    assert load_config(data, {"train.steps": 5}).train.steps == 5
    assert data == {"data": {"train": "t.tsv"}, "train": {"steps": 3}}


def test_the_resolved_config_reads_back_equal(tmp_path):
    text = """
model: {preset: transformer-tiny, dropout: 0.25}
tokenizer: {from: 词表}
data: {train: [a.tsv, [b.zh, b.en]], dev: d.jsonl, source: zh, target: no}
train: {lr: 3e-4, workers: 2, clip: null, betas: [0.8, 0.95]}
"""
    config = read(tmp_path, text)
    assert config.data.target == "no" and config.train.clip is None
    assert read(tmp_path, dump_config(config)) == config


def test_changes_are_named_by_their_dotted_keys(tmp_path):
    old, new = read(tmp_path, MINIMAL), read(tmp_path, MINIMAL + "model: {preset: transformer-tiny, dropout: 0.2}")
    assert changes(old, old) == {}
    assert changes(old, new) == {
        "model.preset": ("transformer-small", "transformer-tiny"),
        "model.dropout": (None, 0.2),
    }


def test_a_spelled_out_model_needs_room_for_the_tokenizer(tmp_path):
    from glassformer.families import configure

    spelled = configure("transformer-tiny", vocab_size=50).to_dict()
    config = load_config({"model": spelled, "data": {"train": "t.tsv"}})
    assert config.model_config_for(50).embed.vocab_size == 50
    with pytest.raises(UserError, match=r"model\.embed\.vocab_size 50 is smaller than the tokenizer's 51"):
        config.model_config_for(51)

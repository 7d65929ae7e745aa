"""Where a model is packed: found again, and where it cannot be written, told in one line and put elsewhere."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.runtime import cache
from glassformer.runtime import format as packed_format
from glassformer.runtime.cache import packed
from glassformer.runtime.engine import EngineUnavailable
from glassformer.store import save_model
from glassformer.text.tokenizer import Tokenizer
from tests.native.models import drawn, module_of


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    tokenizer = Tokenizer.train(["The cat sat on the mat."] * 4, vocab_size=300)
    config = drawn(3, embed=dict(vocab_size=tokenizer.vocab_size), target_embed=None)
    path = tmp_path_factory.mktemp("model")
    save_model(path, module_of(config), tokenizer)
    return path


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """The place that the user has named, and the next best."""
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "named"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "named", tmp_path / "home" / "glassformer"


def named_only(monkeypatch, place: Path) -> None:
    monkeypatch.setattr(cache, "_places", lambda: iter([place]))


def test_it_is_packed_once_and_found_again(model, places, caplog):
    file = packed(model, "fp32")
    assert file.parent == places[0] and packed(model, "fp32") == file
    before = file.stat().st_mtime_ns
    os.utime(model / "model.safetensors")  # another state of the model
    assert packed(model, "fp32") == file and file.stat().st_mtime_ns > before
    assert [*file.parent.iterdir()] == [file] and not caplog.records


def a_file(place: Path, name: str) -> None:
    place.write_text("")


def below_a_file(place: Path, name: str) -> None:
    place.parent.joinpath("file").write_text("")
    place.symlink_to(place.parent / "file" / "below")


def not_writable(place: Path, name: str) -> None:
    place.mkdir()
    place.chmod(0o500)


def a_directory_in_its_place(place: Path, name: str) -> None:
    (place / name / "something").mkdir(parents=True)


@pytest.mark.parametrize("spoil", [a_file, below_a_file, not_writable, a_directory_in_its_place])
def test_a_place_of_no_use_is_told_of_and_another_taken(model, places, spoil, caplog, monkeypatch):
    name = packed(model, "fp32").name
    (places[0] / name).unlink()
    places[0].rmdir()
    spoil(places[0], name)
    if spoil is not_writable:  # root may write all the same
        monkeypatch.setattr(os, "access", lambda place, mode: place != places[0])
    for _ in range(2):  # also where it lies there already
        caplog.clear()
        file = packed(model, "fp32")
        (said,) = [record.getMessage() for record in caplog.records]
        assert file.parent == places[1] and packed_format.read(file)[0]["precision"] == "fp32"
        assert said.startswith(f"GLASSFORMER_CACHE {places[0]}: ") and "\n" not in said
        assert said.endswith(f"the model is packed in {places[1]} instead")


def test_a_full_disk_is_told_of_and_leaves_nothing(model, places, caplog, monkeypatch):
    named_only(monkeypatch, places[0])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EngineUnavailable, match="set GLASSFORMER_CACHE"):
        packed(model, "auto")
    (record,) = caplog.records
    assert "No space left on device" in record.getMessage() and "else PyTorch decodes" in record.getMessage()
    assert not [*places[0].iterdir()]


def test_a_packed_file_is_read_where_nothing_may_be_written(model, places, caplog, monkeypatch):
    file = packed(model, "fp32")
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    assert packed(model, "fp32") == file and not caplog.records


def test_what_killed_packings_left_is_cleared_away(model, places):
    packed(model, "fp32")
    code = f"""
import os, sys
from pathlib import Path
from glassformer.runtime import format, pack
from glassformer.runtime.cache import packed
import numpy
class Dies(pack.Packer):
    def write(self, file, *origin):
        super().write(file, *origin)
        (file.parent / format.scratch_name("half")).write_text("")
        os._exit(9)
pack.Packer = Dies
packed(Path({str(model)!r}), "auto")
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    mine = places[0] / packed_format.scratch_name("mine")
    mine.mkdir()
    others = places[0] / "x.elsewhere-1-1.tmp"
    others.mkdir()
    (left,) = {*places[0].glob("*.tmp")} - {mine, others}
    assert len([*left.iterdir()]) == 2
    packed(model, "bf16")
    assert {*places[0].glob("*.tmp")} == {mine, others}


def test_logging_shows_it_on_standard_error(model, places):
    places[0].write_text("")
    code = (
        f"from pathlib import Path; from glassformer.runtime.cache import packed; packed(Path({str(model)!r}), 'fp32')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0 and len(ran.stderr.splitlines()) == 1 and "GLASSFORMER_CACHE" in ran.stderr
    assert logging.lastResort is not None

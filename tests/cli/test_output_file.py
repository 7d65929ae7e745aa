"""A file that is written: whole or as it was before, and what was done before a failure is kept and told."""

import os
import resource
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from glassformer.cli import options
from glassformer.cli.main import _diagnose, main
from glassformer.errors import UserError

LINES = ["我爱猫。\n", "a\u2028b\n", "\n"] * 2000


def write(path: Path, lines: list[str], error: BaseException | None = None) -> None:
    with options.output_stream(path) as stream:
        for line in lines:
            stream.write(line)
        if error is not None:
            raise error


def test_a_file_appears_whole_and_keeps_its_mode_and_links(tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to(path)
    with options.output_stream(link) as stream:
        stream.write("".join(LINES))
        stream.flush()
        assert not path.exists()
    assert path.read_bytes() == "".join(LINES).encode() and link.is_symlink()
    path.chmod(0o640)
    write(path, ["new\n"])
    assert path.read_text() == "new\n" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(tmp_path.iterdir()) == [link, path]


@pytest.mark.parametrize("error", [UserError("in:7: byte 0xff"), KeyboardInterrupt(), OSError(5, "I/O error")])
def test_after_a_failure_the_old_file_stands_and_what_was_done_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    path, partial = tmp_path / "out", tmp_path / "out.partial"
    path.write_text("old\n")
    with pytest.raises(type(error)):
        write(path, LINES[:5], error)
    assert path.read_text() == "old\n" and partial.read_bytes() == "".join(LINES[:5]).encode()
    assert f"{partial} holds the first 5 lines" in capsys.readouterr().err
    with pytest.raises(type(error)):
        write(path, [], error)
    assert [path.read_text(), *tmp_path.iterdir()] == ["old\n", path] and capsys.readouterr().err == ""


def test_a_full_disk_is_one_line_with_the_files_name_and_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, limit = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, limit[1]))
    try:
        with pytest.raises(OSError) as raised:
            write(path, LINES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    message, code = _diagnose(raised.value)
    assert code == 1 and f"no space left on the disk while writing {path};" in message
    kept = (tmp_path / "out.partial").read_bytes()
    assert not path.exists() and len(kept) > 8000 and "".join(LINES).encode().startswith(kept)
    whole = kept.decode(errors="ignore").count("\n")
    assert f"holds the first {whole} lines" in capsys.readouterr().err


def test_what_is_no_file_is_written_straight(tmp_path: Path) -> None:
    pipe, seen = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: seen.append(pipe.read_text()), daemon=True)
    reader.start()
    write(pipe, ["a\n"])
    reader.join(60)
    assert seen == ["a\n"] and list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("place", ["absent/out", "."])
def test_a_place_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path, place: str) -> None:
    with pytest.raises(OSError) as raised:
        write(tmp_path / place, ["a\n"])
    message, code = _diagnose(raised.value)
    assert code == 2 and message.startswith(f"{tmp_path / place}: ")


def test_a_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old\n")
    code = "import os, sys; from pathlib import Path; from glassformer.cli.options import output_stream\n"
    code += "with output_stream(Path(sys.argv[1])) as s: s.write('new'); s.flush(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    assert path.read_text() == "old\n"


def test_what_a_failure_left_is_not_overwritten_while_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partial = tmp_path / "out.partial"
    partial.write_text("我爱猫。\n", encoding="utf-8")
    assert main(["translate", "-i", str(partial), "-o", str(tmp_path / "out")]) == 2
    assert "would overwrite" in capsys.readouterr().err and partial.read_text(encoding="utf-8") == "我爱猫。\n"


@pytest.mark.parametrize(
    "command",
    [
        ["score", "--tsv", "pairs.tsv", "-o", "pairs.tsv"],
        ["shortlist", "--tsv", "pairs.tsv", "-o", "pairs.tsv"],
        ["data", "clean", "pairs.tsv", "-o", "clean.tsv", "--rejected", "pairs.tsv"],
        ["data", "clean", "pairs.tsv", "-o", "clean.tsv", "--rejected", "clean.tsv"],
    ],
)
def test_no_command_writes_over_what_it_reads(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("zh\ten\n你好。\tHello.\n", encoding="utf-8")
    assert main(command) == 2
    assert "name another file" in capsys.readouterr().err
    assert (tmp_path / "pairs.tsv").read_text(encoding="utf-8") == "zh\ten\n你好。\tHello.\n"

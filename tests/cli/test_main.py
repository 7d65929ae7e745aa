"""The command line's shell: every way to fail is one line and the right exit code, and help costs nothing."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
from types import ModuleType

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from glassformer import __version__
from glassformer.cli import main as shell
from glassformer.errors import UserError

GLASSFORMER = [sys.executable, "-m", "glassformer"]


@pytest.fixture
def probe(monkeypatch):
    """Registers a command `probe` with one flag, whose body a test chooses by `probe.body`, and a group `probes`."""
    module = ModuleType("glassformer.cli.probe")
    module.app = typer.Typer(add_completion=False)
    module.body = lambda size: print(f"size={size}")

    @module.app.command()
    def probe_command(text: str = "", beam_size: int = typer.Option(1, "--beam-size", "-b")) -> None:
        module.body(beam_size)

    group = ModuleType("glassformer.cli.probes")
    group.app = typer.Typer(add_completion=False, no_args_is_help=True)
    group.app.command("one")(lambda: module.body(1))
    group.app.command("other")(lambda: module.body(2))
    for added in (module, group):
        monkeypatch.setitem(sys.modules, added.__name__, added)
        monkeypatch.setitem(shell.COMMANDS, added.__name__.split(".")[-1], "A command for tests.")
    return module


def raising(error: BaseException):
    def body(size: int) -> None:
        raise error

    return body


def one_line(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n") and err.count("\n") == 1, err
    return err


def test_a_group_runs_its_part(probe, capsys):
    assert shell.main(["probes", "other"]) == 0
    assert capsys.readouterr().out == "size=2\n"


@pytest.mark.parametrize("spelling", ["--beam-size", "--beam_size", "-b"])
def test_flags_take_dashes_and_underscores(probe, capsys, spelling):
    assert shell.main(["probe", spelling, "7"]) == 0
    assert capsys.readouterr().out == "size=7\n"


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (UserError("a.tsv:3: two columns expected"), 2, "glassformer: error: a.tsv:3: two columns expected"),
        (KeyboardInterrupt(), 130, "glassformer: interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "run/x"), 1, "no space left on the disk while writing run/x"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 1, "no space left on the disk;"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.tsv"), 2, "a.tsv: No such file or directory"),
        (PermissionError(errno.EACCES, "Permission denied", "a.tsv"), 2, "a.tsv: Permission denied"),
        (ZeroDivisionError("of\nmany lines"), 1, "ZeroDivisionError: of many lines (run with GLASSFORMER_DEBUG=1"),
        (typer.BadParameter("must be positive"), 2, "must be positive"),
        (typer.Abort(), 130, "glassformer: interrupted"),
    ],
)
def test_every_failure_is_one_line(probe, capsys, monkeypatch, error, code, says):
    monkeypatch.delenv("GLASSFORMER_DEBUG", raising=False)
    probe.body = raising(error)
    assert shell.main(["probe"]) == code
    assert says in one_line(capsys)


def test_debug_shows_the_traceback(probe, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_DEBUG", "1")
    probe.body = raising(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        shell.main(["probe"])


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_command_chooses_its_exit_code(probe, code):
    probe.body = raising(typer.Exit(code))
    assert shell.main(["probe"]) == code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tranlate"], "no command 'tranlate'; did you mean 'translate'?"),
        (["--verson"], "no flag '--verson'; did you mean '--version'?"),
        (["zzz"], "no command 'zzz'; see glassformer --help"),
        (["probe", "--beem-size", "3"], "did you mean '--beam-size'?"),
        (["probe", "--beem_size", "3"], "did you mean '--beam-size'?"),
        (["probe", "-b", "many"], "invalid value for '--beam-size'"),
        (["probes"], "glassformer probes: say which part: one, other;"),
        (["probes", "othr"], "'othr'. Did you mean 'other'?\n"),
        (["probe", "--zzz"], "no flag '--zzz'; see glassformer probe --help"),
    ],
)
def test_a_misspelling_is_answered_in_one_line(probe, capsys, arguments, says):
    assert shell.main(arguments) == 2
    assert says in one_line(capsys)


@given(st.sampled_from(sorted(shell.COMMANDS)), st.data())
def test_one_wrong_letter_finds_the_command(name, data):
    position = data.draw(st.integers(0, len(name) - 1))
    wrong = name[:position] + "#" + name[position + 1 :]
    with pytest.raises(UserError, match=f"did you mean '{name}'"):
        shell._run([wrong])


def test_without_a_command_the_help_goes_to_stderr(capsys):
    assert shell.main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Commands:" in err


def test_help_lists_every_command(capsys):
    assert shell.main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for name, text in shell.COMMANDS.items():
        assert f"  {name} " in out and text in out
    assert max(map(len, out.splitlines())) <= 80


def test_version(capsys):
    assert shell.main(["--version"]) == 0
    assert capsys.readouterr().out == f"glassformer {__version__}\n"


@pytest.mark.parametrize("name", sorted(shell.COMMANDS))
def test_every_command_has_a_module_with_help_and_no_completion_flags(name, capsys):
    assert isinstance(importlib.import_module(f"glassformer.cli.{name}").app, typer.Typer)
    assert shell.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Usage: glassformer " + name in out
    assert "--install-completion" not in out


def run(*arguments: str, **settings) -> subprocess.CompletedProcess:
    return subprocess.run([*GLASSFORMER, *arguments], capture_output=True, timeout=60, **settings)


def test_help_imports_nothing_heavy():
    code = "import sys, glassformer.cli.main as m; m.main(['--help']); print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    assert not {"torch", "numpy", "typer", "rich", "pydantic"} & set(loaded)


@pytest.mark.parametrize("locale", ["POSIX", "C.UTF-8"])
def test_utf8_whatever_the_locale(locale):
    environment = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run("你好🐉", env=environment)
    assert done.returncode == 2
    assert done.stderr.decode("utf-8").startswith("glassformer: error: no command '你好🐉'")


def test_an_argument_that_is_not_utf8_is_told_with_its_place():
    done = subprocess.run([*map(os.fsencode, GLASSFORMER), b"translate", b"ab\xff"], capture_output=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(b"glassformer: error: argument 2, byte 3: not UTF-8")


def test_a_full_disk_and_a_closed_pipe_are_quiet_about_python():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*GLASSFORMER, "--help"], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert done.stderr == b"glassformer: error: no space left on the disk; free some, or write to another folder\n"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run([*GLASSFORMER, "--help"], stdout=pipe, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_package_is_the_command_and_its_names_are_lazy():
    code = "import sys, glassformer as gf; assert 'load' in dir(gf); print('torch' in sys.modules, gf.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"False {__version__}\n"), done.stderr


def test_every_public_name_resolves_and_an_unknown_one_does_not():
    import glassformer as gf

    for name in gf.__all__:
        assert getattr(gf, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'lod'"):
        _ = gf.lod


def test_importing_the_training_package_does_not_hide_the_function():
    code = "import glassformer.train; from glassformer import train; assert callable(train)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

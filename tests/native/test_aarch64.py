"""The kernels for ARM, compiled across and run in an emulator, against those of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from glassformer.runtime import build

pytestmark = pytest.mark.slow

CROSS = "aarch64-linux-gnu-g++"
EMULATOR = next((name for name in ("qemu-aarch64", "qemu-aarch64-static") if shutil.which(name)), None)
HERE = Path(__file__).parent


def compiled(cxx: str, machine: str, sets: list[str], folder: Path) -> Path:
    """The driver with these sets, linked without shared libraries."""
    objects = []
    for name in sets:
        objects.append(folder / f"{name}-{machine}.o")
        flags = f"{build.FLAGS} {build.QUIET} {build.SETS[machine][name]} -DGF_SET={name}".split()
        subprocess.run([cxx, *flags, "-c", str(build.SOURCES / "kernels.cpp"), "-o", str(objects[-1])], check=True)
    define = ["-DGF_SETS=" + " ".join(f"X({name})" for name in sets), *(f"-DGF_HAS_{name}" for name in sets)]
    program = folder / f"driver-{machine}"
    sources = [str(build.SOURCES / "dispatch.cpp"), str(HERE / "kernel_driver.cpp")]
    command = [cxx, "-std=c++17", "-O1", "-static", f"-I{build.SOURCES}", *define, *sources, *map(str, objects)]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def numbers(*command: str) -> list[tuple[str, np.ndarray]]:
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.replace("top ", "top").split() for line in ran.stdout.splitlines()]
    return [(words[0], np.array(words[1:], float)) for words in lines]


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> tuple[Path, Path]:
    if os.uname().machine != "x86_64" or build.compiler() is None:
        pytest.skip("it compares with an x86-64 machine's kernels, and needs a compiler")
    if not (shutil.which(CROSS) and EMULATOR):
        pytest.skip(f"no {CROSS} and qemu-aarch64 here (Debian: g++-aarch64-linux-gnu, qemu-user)")
    folder = tmp_path_factory.mktemp("kernels")
    here = compiled(build.compiler(), "x86_64", ["portable"], folder)
    return here, compiled(CROSS, "aarch64", ["neon_dot", "portable"], folder)


@pytest.mark.parametrize("name", ["neon_dot", "portable"])
def test_arms_kernels_compute_what_this_machines_compute(programs, name):
    here, there = programs
    wanted, found = numbers(str(here), "portable"), numbers(EMULATOR, str(there), name)
    assert len(wanted) > 150 and [n for n, _ in found] == [n for n, _ in wanted]
    for (label, ours), (_, theirs) in zip(wanted, found, strict=True):
        assert np.allclose(ours, theirs, rtol=1e-4, atol=2e-5), label


def test_a_processor_without_dot_products_is_not_given_them(programs):
    _, there = programs
    old = subprocess.run([EMULATOR, "-cpu", "cortex-a53", str(there), "neon_dot"], capture_output=True, text=True)
    assert old.returncode == 1 and old.stdout == "portable\n"
    assert numbers(EMULATOR, "-cpu", "cortex-a53", str(there), "portable")
    new = subprocess.run([EMULATOR, "-cpu", "max", str(there), "none"], capture_output=True, text=True)
    assert new.stdout == "neon_dot portable\n"

"""Builds the native library with the C++ compiler at hand: `python -m glassformer.runtime.build`.

The kernels are compiled once for each instruction set; which of them runs is decided when the library is loaded, so
that what was built on one machine runs on another of its kind.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "native"
NAME = "glassformer_native" + (".dll" if sys.platform == "win32" else ".so")
FLAGS = "-std=c++17 -O3 -fPIC -fvisibility=hidden -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wall -Wextra"
# GCC 12 says of its own headers for AVX-512 that they read what was never written.
QUIET = "-Wno-psabi -Wno-uninitialized -Wno-maybe-uninitialized"
AVX512 = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma"
SETS = {
    "x86_64": {
        "avx512_bf16": f"{AVX512} -mavx512bf16",
        "avx512": AVX512,
        "avx_vnni": "-mavx2 -mfma -mavxvnni",
        "avx2": "-mavx2 -mfma",
        "portable": "",
    },
    "aarch64": {"neon_dot": "-march=armv8.2-a+dotprod", "portable": ""},
}
"""Instruction sets and the flags that ask for them, by machine, best first."""


class BuildError(Exception):
    """The library could not be built; the message is one line."""


def compiler() -> str | None:
    """`$CXX`, or the first C++ compiler on the path."""
    chosen = os.environ.get("CXX")
    return chosen or next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def build(target: Path, machine: str = platform.machine(), extra: str = "", sets: list[str] | None = None) -> list[str]:
    """Compiles and links the library.

    Args:
        target: the file to write.
        machine: whose instruction sets, by the name that `uname -m` gives it.
        extra: flags for every step, such as those of a sanitizer.
        sets: only these instruction sets; None is all that the compiler knows.

    Returns:
        The instruction sets that were built in.

    Raises:
        BuildError: there is no compiler, or it refused.
    """
    cxx = compiler()
    if cxx is None:
        raise BuildError("no C++ compiler (c++, g++ or clang++; or set CXX)")
    known = SETS.get({"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine), {"portable": ""})
    wanted = {name: flags for name, flags in known.items() if sets is None or name in sets}
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compiled(source: str, name: str, flags: str) -> str | None:
            out = f"{scratch}/{name}.o"
            command = f"{cxx} {FLAGS} {QUIET} {extra} {flags} -c {shlex.quote(str(SOURCES / source))} -o {out}"
            return out if _run(command) is None else None

        kernels = pool.map(
            lambda item: compiled("kernels.cpp", f"set_{item[0]}", f"{item[1]} -DGF_SET={item[0]}"), wanted.items()
        )
        # A compiler that is too old for a set leaves it out.
        built = {name: out for name, out in zip(wanted, kernels, strict=True) if out}
        if not built:
            raise BuildError(f"{cxx} cannot compile the kernels; it must know C++17")
        # One that does not know a set may not know its name either, so each has a macro of its own besides.
        define = " ".join(f"-DGF_HAS_{name}" for name in built)
        define += " " + shlex.quote("-DGF_SETS=" + " ".join(f"X({name})" for name in built))
        rest = [source.stem for source in sorted(SOURCES.glob("*.cpp")) if source.name != "kernels.cpp"]
        objects = list(pool.map(lambda stem: compiled(f"{stem}.cpp", stem, define), rest))
        if None in objects:
            raise BuildError(f"{cxx} cannot compile {rest[objects.index(None)]}.cpp; it must know C++17")
        library = f"{scratch}/library"
        problem = _run(f"{cxx} -shared -pthread {extra} -o {library} {' '.join([*built.values(), *map(str, objects)])}")
        if problem is not None:
            raise BuildError(f"{cxx} cannot link the library: {problem}")
        # Moved into place in one step: a process that has the old one loaded keeps it.
        staged = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        shutil.copyfile(library, staged)
        sum_of(target).unlink(missing_ok=True)
        os.replace(staged, target)
        sum_of(target).write_text(checksum(target))
    return list(built)


def sum_of(library: Path) -> Path:
    """The file that says what a library is, so that half of one, which would crash the process, is not loaded."""
    return library.with_name(f"{library.name}.sum")


def checksum(library: Path) -> str:
    content = library.read_bytes()
    return f"{len(content)} {zlib.crc32(content):08x}"


def _run(command: str) -> str | None:
    """Runs a compiler; None if it was content, else its last line."""
    done = subprocess.run(shlex.split(command), capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]


def main() -> None:
    try:
        print(f"native engine: built for {', '.join(build(SOURCES / NAME))}", file=sys.stderr)
    except BuildError as error:
        sys.exit(f"native engine: not built: {error}; everything still works, more slowly")


if __name__ == "__main__":
    main()

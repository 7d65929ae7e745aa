"""The native library under sanitizers, over random requests, damaged files and several threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.runtime import build
from glassformer.runtime.pack import peaks
from tests.native.models import drawn, module_of, pack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sanitizers are preloaded as on Linux"),
]
SECONDS = 20


def runtime(name: str) -> str:
    """The sanitizer's own library, which comes with GCC."""
    cxx = build.compiler()
    found = cxx and subprocess.run([cxx, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    if not found or not os.path.isabs(found):
        pytest.skip(f"the C++ compiler brings no {name}")
    return os.path.realpath(found)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[Path]:
    folder, files = tmp_path_factory.mktemp("models"), []
    for seed in range(12):
        wide = dict(embed=dict(vocab_size=1200), target_embed=None) if seed % 4 == 0 else {}
        config = drawn(600 + seed, **wide)
        precision = ("fp32", "bf16", "int8")[seed % 3]
        module = module_of(config, seed)
        found = peaks(pack(module, config, folder / "exact")) if seed > 6 else None
        files.append(pack(module, config, folder / f"{seed}.{precision}", precision, found))
    return files


def drive(preload: str, library: Path, models: list[Path], *prefix: str, **options: str) -> str:
    """What the driver and the sanitizer said."""
    source = Path(build.__file__).parents[2]
    environment = {
        **os.environ,
        "LD_PRELOAD": preload,
        "PYTHONPATH": str(source),
        "OPENBLAS_NUM_THREADS": "1",
        **options,
    }
    driver = [
        sys.executable,
        str(Path(__file__).with_name("driver.py")),
        str(library),
        str(SECONDS),
        "1",
        *map(str, models),
    ]
    ran = subprocess.run([*prefix, *driver], capture_output=True, text=True, env=environment, timeout=600)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-6000:]
    assert ran.stdout and int(ran.stdout) > 3, ran.stderr[:6000]
    return ran.stderr


def test_no_address_is_wrong_nothing_undefined_and_nothing_leaks(models, tmp_path):
    preload = f"{runtime('libasan.so')} {runtime('libstdc++.so')}"  # which it looks for when it is loaded
    file = tmp_path / "asan.so"
    build.build(file, extra="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1")
    options = {
        "ASAN_OPTIONS": "detect_leaks=1:max_malloc_fill_size=1073741824:malloc_fill_byte=127",
        # What Python itself never frees is no matter; what the native library took shows by its functions' names.
        "LSAN_OPTIONS": "exitcode=0:print_suppressions=0:max_leaks=0",
        "PYTHONMALLOC": "malloc",
    }
    said = drive(preload, file, models, **options)
    assert "runtime error" not in said and "ERROR: AddressSanitizer" not in said, said[-6000:]
    assert "gf_" not in said and "gf::" not in said, said[-6000:]


def test_threads_do_not_race(models, tmp_path):
    preload = runtime("libtsan.so")
    file = tmp_path / "tsan.so"
    build.build(file, extra="-fsanitize=thread -g1")
    # The sanitizer's own memory has to lie where it wants it.
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    said = drive(preload, file, models, *fixed, TSAN_OPTIONS="exitcode=0:report_signal_unsafe=0")
    assert "ThreadSanitizer" not in said, said[-6000:]

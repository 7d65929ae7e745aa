"""The native library that these tests run: the one built here, or a fresh one where it is absent or out of date."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.runtime import build, library


@pytest.fixture(scope="session", autouse=True)
def native_library(tmp_path_factory) -> Path:
    sources = [file for pattern in ("*.cpp", "*.h") for file in build.SOURCES.glob(pattern)]
    newest = max(file.stat().st_mtime for file in sources)
    if build.sum_of(library.FILE).exists() and library.FILE.exists() and library.FILE.stat().st_mtime >= newest:
        return library.FILE
    if build.compiler() is None:
        pytest.skip("no native library is built here, and there is no C++ compiler to build one")
    library.FILE = tmp_path_factory.mktemp("native") / build.NAME
    build.build(library.FILE)
    library.library.cache_clear()
    return library.FILE

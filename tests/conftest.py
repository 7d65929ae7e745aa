"""What every test stands on: fixed seeds, one thread, and the folder of test data beside the repository."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

# Models are packed for tests where no user's are.
if "GLASSFORMER_CACHE" not in os.environ:
    os.environ["GLASSFORMER_CACHE"] = tempfile.mkdtemp(prefix="glassformer-tests-")
    atexit.register(shutil.rmtree, os.environ["GLASSFORMER_CACHE"], ignore_errors=True)
# Before anything imports torch, and inherited by every process a test starts: tiny tensors are fastest on one thread,
# and a fixed number of threads keeps float sums in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent

# A first call that imports or compiles is no defect; examples follow from the test's name, so a red test stays red.
settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.load_profile("steady")


@pytest.fixture
def shared() -> Path:
    """The folder of test data beside the repository; where it is absent the test is skipped, and says so."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the folder of test data ../shared is absent")
    return folder


@pytest.fixture
def repository() -> Path:
    """The root of the repository."""
    return REPOSITORY


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)

"""How long does a whole process take, from the shell's point of view? The files are in the system's cache.

``import torch`` is what any program on PyTorch pays before its first line of work, and the import of Hugging Face's
Marian what a script with their translation model pays: they stand as the peers.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import partial

from benchmarks.measure import Call, Question, System


def whole_process(setting: str, *, arguments: tuple[str, ...]) -> Call:
    """A call that starts Python with some arguments and waits for its end."""

    def call() -> None:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"exit code {done.returncode}: {last[0]}")

    return call


def _systems(threads: int) -> list[System]:
    def system(name: str, *arguments: str, peer: bool = False, package: str = "glassformer") -> System:
        prepare = partial(whole_process, arguments=arguments)
        return System(name, prepare, threads=threads, peer=peer, packages=(package,))

    marian = "from transformers import MarianMTModel"
    return [
        system("glassformer --help", "-m", "glassformer", "--help"),
        system("glassformer translate 你好", "-m", "glassformer", "translate", "你好"),
        system("import torch", "-c", "import torch", peer=True, package="torch"),
        system("import MarianMTModel", "-c", marian, peer=True, package="transformers"),
    ]


def _rates(setting: str) -> Mapping[str, float]:
    return {}


QUESTION = Question(("warm",), ("warm",), _systems, _rates)

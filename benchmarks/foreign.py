"""A Hugging Face directory for everyone: packed for our native engine, and as CTranslate2 and onnxruntime read it.

What is made from a directory lies beside it: `made` names the place.
"""

from __future__ import annotations

import importlib
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.models import FOLDER

if TYPE_CHECKING:
    import numpy as np

PRECISIONS = ("int8", "bf16", "fp32")
CTRANSLATE2 = ("int8", "float32")


def made(directory: Path, form: str) -> Path:
    """Where a model lies in another form; a directory that was written anew has another name."""
    from glassformer.runtime.cache import origin

    return FOLDER / f"{origin(directory)}-{form}"


def pack(directory: Path) -> None:
    """Packs the model in every precision of the native engine, where `packed_model` opens it.

    Not by ``pack_model``, which refuses int8 where it is not faithful: random weights may be loud, and how faithful
    they came out stands in the table.
    """
    from glassformer.interop import hf
    from glassformer.runtime.cache import packed
    from glassformer.runtime.library import EngineUnavailable
    from glassformer.runtime.pack import Packer, pack_model

    @cache
    def loaded() -> tuple[Any, dict[str, np.ndarray]]:
        model = hf.load(directory).model
        return model.config, {name: tensor.numpy() for name, tensor in model.state_dict().items()}

    def write(precision: str, file: Path, origin: str) -> None:
        try:
            pack_model(*loaded(), precision, file, origin)
        except EngineUnavailable:  # unfaithful, as random weights may be: how fast it would be is still asked
            Packer(*loaded(), precision).write(file, origin)

    for precision in PRECISIONS:
        packed(directory, precision, partial(write, precision))


def packed_model(directory: Path, precision: str, threads: int) -> Any:
    """The native engine over what `pack` wrote."""
    from glassformer.runtime.cache import packed
    from glassformer.runtime.engine import NativeModel

    return NativeModel.open(packed(directory, precision), threads=threads)


class Digits:
    """A tokenizer for converters that ask for one: its pieces are the ids, written in digits."""

    def __init__(self, vocab_size: int, end: int = 0) -> None:
        self.vocab_size = vocab_size
        self.bos_token = self.eos_token = self.unk_token = str(end)

    def get_vocab(self) -> dict[str, int]:
        return {str(index): index for index in range(self.vocab_size)}


def write_ctranslate2(directory: Path, kind: str, end: int = 0) -> None:
    """Converts the model with CTranslate2's own loader, ``GPT2Loader`` or ``BertLoader``, in each of `CTRANSLATE2`."""
    import torch

    from glassformer.store import atomic_directory

    transformers = importlib.import_module("transformers")
    loaders = importlib.import_module("ctranslate2.converters.transformers")
    for precision in CTRANSLATE2:
        if (folder := made(directory, f"ctranslate2-{precision}")).exists():
            continue
        loader = getattr(loaders, kind)()
        model = getattr(transformers, loader.architecture_name).from_pretrained(directory).eval()
        model.config.position_embedding_type = (
            "absolute"  # BERT's only one since transformers 5; the loader asks for it
        )
        with torch.no_grad():
            spec = loader(model, Digits(model.config.vocab_size, end))
        spec.validate()
        spec.optimize(quantization=None if precision == "float32" else precision)
        with atomic_directory(folder) as scratch:
            spec.save(str(scratch))


def write_onnx(directory: Path) -> None:
    """Exports a BERT, fuses what onnxruntime's optimiser can, and quantises that dynamically: ``fp32`` and ``int8``."""
    import torch

    fused, small = (made(directory, f"{precision}.onnx") for precision in ("fp32", "int8"))
    if small.exists():
        return
    optimizer = importlib.import_module("onnxruntime.transformers.optimizer")
    quantization = importlib.import_module("onnxruntime.quantization")
    bert = importlib.import_module("transformers").BertModel
    model = bert.from_pretrained(directory, attn_implementation="eager").eval()
    heads, width = model.config.num_attention_heads, model.config.hidden_size

    class Hidden(torch.nn.Module):
        # Without a mask, since nothing is padded: less work for the runtime.
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor) -> Any:
            return self.model(input_ids=input_ids).last_hidden_state

    plain = fused.with_suffix(".plain")
    torch.onnx.export(
        Hidden(),
        (torch.ones(2, 8, dtype=torch.long),),
        str(plain),
        input_names=["input_ids"],
        dynamic_axes={"input_ids": {0: "B", 1: "S"}},
        opset_version=17,
        dynamo=False,  # the optimiser fuses more of what the older exporter writes
    )
    optimizer.optimize_model(
        str(plain), model_type="bert", num_heads=heads, hidden_size=width, opt_level=1
    ).save_model_to_file(str(fused))
    plain.unlink()
    quantization.quantize_dynamic(
        fused,
        small,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
        extra_options={"DefaultTensorType": 1},  # float32: it infers no shapes behind fused nodes
    )

"""Models of every kind and format but our own translators, as what a Python user touches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.errors import UserError
from glassformer.header import CONFIG, read_config

if TYPE_CHECKING:
    import torch

    from glassformer.config import ModelConfig
    from glassformer.engines.engine import Engine
    from glassformer.store import Loaded


def is_translator(path: Path) -> bool:
    """Whether a path is taken for a MODEL of ours with an encoder and a decoder; loads neither PyTorch nor pydantic.

    A damaged one is, too, so that its own reader says what is wrong with it.
    """
    try:
        data = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        model = data.get("model")
    except (OSError, ValueError, AttributeError):
        return (path / CONFIG).is_file()
    if "format_version" not in data:
        return "model_type" not in data and not (path / "model.bin").is_file()
    if not isinstance(model, dict):
        return True
    return all(model.get(stack) for stack in ("encoder", "decoder")) and data.get("tokenizer_sha256", "") is not None


def read_model(path: Path) -> Loaded:
    """Reads a model of any kind and format.

    Raises:
        UserError: It is none, or is damaged, or says what we cannot represent.
    """
    from glassformer import interop
    from glassformer.store import load_model

    if (name := _format(path)) is None:
        return load_model(path)
    return interop.load(path, name)


def read_model_config(path: Path) -> ModelConfig:
    """The configuration of a model of any kind and format.

    Raises:
        UserError: As `read_model`.
    """
    from glassformer import interop
    from glassformer.store import read_header

    if (name := _format(path)) is None:
        return read_header(path).model
    return interop.model_config(path, name)


def open_model(path: Path, device: torch.device, precision: str, native: bool, threads: int | None = None) -> Any:
    """A `Generator`, `Embedder`, `Classifier`, `Tagger`, `Answerer` or `Translator`, by what the model is.

    Args:
        native: Whether the native engine computes, with so many threads; PyTorch's module does else.

    Raises:
        UserError: As `read_model`; or the native engine cannot run the model.

    An encoder–decoder without a tokenizer, which nothing can be said to, is given as it is: its ``model`` and
    ``tokenizer`` are all that it has.
    """
    from glassformer.answerer import Answerer
    from glassformer.classifier import Classifier
    from glassformer.config import ClassifierConfig, EmbedConfig, HeadConfig, SpanConfig, TokenClassifierConfig
    from glassformer.embedder import Embedder, Settings
    from glassformer.engines.model import ModelEngine
    from glassformer.generator import Generator
    from glassformer.tagger import Tagger
    from glassformer.translator import Translator

    loaded = read_model(path)
    config: ModelConfig = loaded.model.config

    def engine() -> Engine:
        if not native:
            return ModelEngine(loaded.model, device, precision)
        return _native(path, loaded.model, precision, threads)

    if config.kind == "encoder-decoder":
        if loaded.tokenizer is None:
            return loaded
        return Translator(engine(), loaded.tokenizer, loaded.translation, loaded.framing)
    if config.kind == "decoder" and isinstance(config.head, HeadConfig):
        return Generator(engine(), loaded.tokenizer, loaded.framing)
    for head, reader in ((ClassifierConfig, Classifier), (TokenClassifierConfig, Tagger), (SpanConfig, Answerer)):
        if isinstance(config.head, head):
            return reader(ModelEngine(loaded.model, device, precision), loaded.tokenizer, loaded.framing)
    if isinstance(config.embed, EmbedConfig):
        return Embedder(engine(), loaded.tokenizer, loaded.framing, Settings.read(path))
    return loaded


def _native(path: Path, module: Any, precision: str, threads: int | None) -> Engine:
    """The native engine over a module's weights, packed where no earlier call has left them packed."""
    from glassformer.engines.engine import Unavailable
    from glassformer.engines.native import open_native

    def pack(file: Path, origin: str) -> None:
        from glassformer.runtime.pack import pack_model

        weights = {name: tensor.float().numpy() for name, tensor in module.state_dict().items()}
        pack_model(module.config, weights, precision, file, origin)

    try:
        return open_native(path, module.config.target_vocab_size, precision, threads, lambda: module, pack)
    except Unavailable as error:
        raise UserError(f"--engine native: {error}") from None


def _format(path: Path) -> str | None:
    """The foreign format of a model, or None where it is a MODEL of ours.

    Raises:
        UserError: It is neither.
    """
    from glassformer import interop

    if (name := interop.format_of(path)) is not None:
        return name
    if path.is_dir():
        read_config(path)
        return None
    raise UserError(
        f"{path}: a file, but a model is a directory with {CONFIG} and model.safetensors in it, "
        "a .gguf file, or a .bin of rwkv.cpp or llama2.c"
    )

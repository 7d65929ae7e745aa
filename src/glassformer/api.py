"""What a Python user touches: `load` a model, then `translate` or `score` with it; `train` one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.engines.engine import ENGINES, PRECISIONS, Unavailable
from glassformer.engines.native import open_native
from glassformer.errors import UserError
from glassformer.header import Header, read_tokenizer
from glassformer.loading import is_translator, open_model
from glassformer.sentences import Score, TokenScore
from glassformer.text.glossary import Glossary
from glassformer.translation import Candidate, Translation
from glassformer.translator import Translator

if TYPE_CHECKING:
    import torch

    from glassformer.interop.convert import Comparison
    from glassformer.models.seq2seq import Seq2Seq

__all__ = [
    "Candidate",
    "Glossary",
    "Score",
    "TokenScore",
    "Translation",
    "Translator",
    "bundled_models",
    "convert",
    "find_model",
    "load",
    "train",
]

BUNDLED = Path(__file__).parent / "bundled"
DEFAULT_MODEL = "zh-en"
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def load(
    path_or_name: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    device: str | torch.device = "auto",
    engine: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    shortlist: str | os.PathLike[str] | None = None,
) -> Any:
    """Loads a model: a `Translator`, `Generator`, `Embedder`, `Classifier`, `Tagger` or `Answerer`, by what it is.

    Args:
        path_or_name: a MODEL, a Hugging Face directory, a .gguf, rwkv.cpp or llama2.c file, or the name of a bundled
            model. A bundled name goes first: write `./zh-en` for a directory that is called so.
        device: a PyTorch device; "auto" is the GPU if there is one.
        engine: what computes: "native" (CPU, without PyTorch), "torch" (CPU, PyTorch with its weights laid out for
            decoding) or "model" (PyTorch's module). "auto" is the first that can run the model on that device.
        precision: what matrix products run in: "fp32", "bf16" (in "model" by autocast), or "int8", which "model" has
            not. "auto" is the engine's choice; in "torch" and "model" it is fp32.
        threads: CPU threads; None is the engine's choice. PyTorch's are those of the whole process.
        shortlist: a file of `glassformer shortlist`: a translator in the native engine then computes the logits of no
            other pieces. Faster, most with a large vocabulary, and now and then another word; scores are those among
            the pieces listed.

    Raises:
        UserError: no such model, or a model, device, engine, precision, number of threads or shortlist that cannot be
            used.
    """
    for flag, value, able in (("engine", engine, ENGINES), ("precision", precision, PRECISIONS)):
        if value not in able:
            raise UserError(f"--{flag} {value}: must be one of {', '.join(able)}")
    if threads is not None and threads < 1:
        raise UserError(f"--threads {threads}: must be 1 or more")
    path, reasons = find_model(path_or_name), []
    if shortlist is not None:
        if not is_translator(path):
            raise UserError("--shortlist: it is for translators; leave it out")
        engine = "native" if engine == "auto" else engine
        if engine != "native":
            raise UserError(f"--shortlist: only --engine native has it, not {engine}")
    if not is_translator(path):
        return _other(path, device, engine, precision, threads)
    if engine in ("auto", "native"):
        try:
            return _native(path, device, precision, threads, shortlist)
        except Unavailable as error:
            if engine == "native":
                raise UserError(f"--engine native: {error}") from None
            reasons.append(f"native: {error}")
    return _torch(path, device, engine, precision, threads, reasons)


def _other(path: Path, device: str | torch.device, engine: str, precision: str, threads: int | None) -> Any:
    """What is no translator of ours: PyTorch's module computes it, or where it is asked for, the native engine."""
    import torch

    if engine == "torch":
        raise UserError("--engine torch: it runs translators only; give native or model")
    native = engine == "native" or (engine == "auto" and precision == "int8")
    if precision == "int8" and not native:
        raise UserError("--precision int8: only --engine native has it for this model; give fp32, bf16 or auto")
    if threads is not None:
        torch.set_num_threads(threads)
    used = torch.device("cpu") if native and device == "auto" else _device(device)
    if native and used.type != "cpu":
        raise UserError(f"--engine native: it runs on the CPU only, not on {used}")
    return open_model(path, used, precision, native, threads)


def _native(
    path: Path,
    device: str | torch.device,
    precision: str,
    threads: int | None,
    shortlist: str | os.PathLike[str] | None,
) -> Translator:
    if str(device) != "cpu" and (device != "auto" or _gpu()):
        raise Unavailable("it runs on the CPU only; give device cpu")
    try:
        header = Header.read(path)
    except (KeyError, TypeError):  # the model's own reader says what is wrong with it
        raise Unavailable(f"{path / 'config.json'} is not as this version writes it") from None

    def load_module() -> Seq2Seq:
        from glassformer.store import load_model

        return load_model(path).model

    engine = open_native(path, header.vocab_size, precision, threads, load_module)
    if shortlist is not None:
        from glassformer.runtime.shortlist import Shortlist

        engine.shortlist = Shortlist.load(Path(shortlist), header.vocab_size)
    tokenizer = read_tokenizer(path, header.tokenizer_sha256, engine.tokenizer)
    return Translator(engine, tokenizer, header.translation, header.framing)


def _torch(
    path: Path, device: str | torch.device, engine: str, precision: str, threads: int | None, reasons: list[str]
) -> Translator:
    """PyTorch's engines; `reasons` are why others are out."""
    import torch

    from glassformer.engines.model import ModelEngine
    from glassformer.engines.torch import TorchEngine
    from glassformer.store import load_model

    if threads is not None:
        torch.set_num_threads(threads)
    loaded, used = load_model(path), _device(device)
    if engine != "model":
        try:
            if used.type != "cpu":
                raise Unavailable("it runs on the CPU only; give device cpu")
            return Translator(
                TorchEngine(loaded.model, precision), loaded.tokenizer, loaded.translation, loaded.framing
            )
        except Unavailable as error:
            if engine == "torch":
                raise UserError(f"--engine torch: {error}") from None
            reasons.append(f"torch: {error}")
    if precision == "int8":
        why = "; ".join(reasons) or "--engine model leaves them out"
        raise UserError(f"--precision int8: only the engines native and torch have it ({why}); give fp32, bf16 or auto")
    return Translator(ModelEngine(loaded.model, used, precision), loaded.tokenizer, loaded.translation, loaded.framing)


def train(config: str | os.PathLike[str] | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Any:
    """Trains a model from a config file or mapping; `overrides` are its dotted keys, such as `{"train.lr": 1e-3}`."""
    from glassformer.train.loop import train as run

    return run(config, overrides)


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    to: str = "glassformer",
    *,
    quantization: str | None = None,
) -> Comparison:
    """Writes a model in another format, and runs it before and after.

    Args:
        source: what `load` takes.
        destination: a directory that does not exist yet.
        to: glassformer, hf (Hugging Face), ct2 (CTranslate2) or onnx.
        quantization: how CTranslate2 stores matrices, such as "int8".

    Raises:
        UserError: the source cannot be read, the format cannot represent it, the destination exists, or the result
            says something else than the source.
    """
    path = find_model(source)  # before PyTorch is loaded, which takes seconds
    if Path(destination).exists():
        raise UserError(f"{destination}: exists already; name a new directory")
    from glassformer.interop.convert import convert as run

    return run(path, Path(destination), to, quantization)


def bundled_models() -> list[str]:
    """The names of the models that ship with the package."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/config.json"))


def find_model(path_or_name: str | os.PathLike[str]) -> Path:
    """The MODEL behind a bundled name or a path, a directory or a file.

    Raises:
        UserError: there is none; the message names what there is.
    """
    name, path, bundled = os.fspath(path_or_name), Path(path_or_name), bundled_models()
    if name in bundled:
        return BUNDLED / name
    if path.is_dir():
        if not (path / "config.json").exists() and (path / "best" / "config.json").exists():
            raise UserError(f"{name}: a training run, not a model; give one of the models in it: -m {path / 'best'}")
        return path
    if path.exists():
        return path
    import difflib

    close = difflib.get_close_matches(name, bundled, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UserError(
        f"no model {name!r}: no such directory, and the bundled models are {', '.join(bundled) or 'none'}{hint}"
    )


def _device(device: str | torch.device) -> torch.device:
    import torch

    if device == "auto":
        return torch.device("cuda" if _gpu() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {str(device)!r}: cannot be used here ({str(error).splitlines()[0]})") from None
    return torch.device(device)


def _gpu() -> bool:
    """Whether PyTorch finds a GPU; it is loaded and asked only where there is a driver of one."""
    if not any(map(os.path.exists, _GPU_DRIVERS)):
        return False
    import torch

    return torch.cuda.is_available()

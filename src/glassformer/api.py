"""What a Python user touches: `load` a model, then `translate` or `score` with it; `train` one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from glassformer.errors import UserError
from glassformer.sentences import Score, TokenScore
from glassformer.store import load_model
from glassformer.text.glossary import Glossary
from glassformer.translation import Candidate, Translation
from glassformer.translator import Translator

__all__ = [
    "Candidate",
    "Glossary",
    "Score",
    "TokenScore",
    "Translation",
    "Translator",
    "bundled_models",
    "find_model",
    "load",
    "train",
]

BUNDLED = Path(__file__).parent / "bundled"
DEFAULT_MODEL = "zh-en"
PRECISIONS = ("auto", "fp32", "bf16")


def load(
    path_or_name: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    device: str | torch.device = "auto",
    precision: str = "auto",
) -> Translator:
    """Loads a model.

    Args:
        path_or_name: a MODEL directory, or the name of a bundled model. A bundled name goes first: write `./zh-en` for
            a directory that is called so.
        device: a PyTorch device; "auto" is the GPU if there is one.
        precision: what matrix products run in: "fp32", or "bf16" by autocast. The weights stay float32. "auto" is fp32.

    Raises:
        UserError: no such model, or a model, device or precision that cannot be used.
    """
    if precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: must be one of {', '.join(PRECISIONS)}")
    loaded = load_model(find_model(path_or_name))
    return Translator(loaded.model, loaded.tokenizer, loaded.translation, device=_device(device), precision=precision)


def train(config: str | os.PathLike[str] | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Any:
    """Trains a model from a config file or mapping; `overrides` are its dotted keys, such as `{"train.lr": 1e-3}`."""
    from glassformer.train.loop import train as run

    return run(config, overrides)


def bundled_models() -> list[str]:
    """The names of the models that ship with the package."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/config.json"))


def find_model(path_or_name: str | os.PathLike[str]) -> Path:
    """The MODEL directory behind a bundled name or a path.

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
        raise UserError(f"{name}: a file, but a model is a directory with config.json and model.safetensors in it")
    close = difflib.get_close_matches(name, bundled, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UserError(
        f"no model {name!r}: no such directory, and the bundled models are {', '.join(bundled) or 'none'}{hint}"
    )


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {str(device)!r}: cannot be used here ({str(error).splitlines()[0]})") from None
    return torch.device(device)

"""Other projects' models, in and out.

A format is a module with ``recognises(path)``, which looks at names and first bytes only, ``model_config(path)`` and
``load(path)``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.config import ModelConfig
    from glassformer.store import Loaded

FORMATS = ("hf", "ct2", "gguf", "rwkv_cpp", "llama2c")
"""Modules of this package, asked in this order."""


def format_of(path: Path) -> str | None:
    """The format of a model's file or directory; None where none of them recognises it."""
    return next((name for name in FORMATS if _module(name).recognises(path)), None)


def load(path: Path, name: str) -> Loaded:
    """Loads a model of that format.

    Raises:
        UserError: A file is missing or damaged, or says what we cannot represent.
    """
    loaded: Loaded = _module(name).load(path)
    return loaded


def model_config(path: Path, name: str) -> ModelConfig:
    """The configuration of a model of that format; raises as `load`, and reads no weights."""
    config: ModelConfig = _module(name).model_config(path)
    return config


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")

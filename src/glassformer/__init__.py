"""Glassformer: one Transformer you can train, run fast, and see through.

Every public name is imported on first use, so that `import glassformer` costs nothing and loads no PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.api import Translator as Translator
    from glassformer.api import convert as convert
    from glassformer.api import load as load
    from glassformer.api import train as train
    from glassformer.config import ModelConfig as ModelConfig
    from glassformer.errors import UserError as UserError
    from glassformer.families import build as build
    from glassformer.generator import Generator as Generator
    from glassformer.trace.recorder import record as record

__version__ = "0.1.0"

_HOME = {
    "Generator": "glassformer.generator",
    "ModelConfig": "glassformer.config",
    "Translator": "glassformer.api",
    "UserError": "glassformer.errors",
    "build": "glassformer.families",
    "convert": "glassformer.api",
    "load": "glassformer.api",
    "record": "glassformer.trace.recorder",
}

__all__ = [
    *("Generator", "ModelConfig", "Translator", "UserError", "__version__"),
    *("build", "convert", "load", "record", "train"),
]


class _TrainModule(ModuleType):
    """The sub-package `glassformer.train`, which is also the function `glassformer.train(config, overrides)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module("glassformer.api").train(*args, **kwargs)


class _Package(ModuleType):
    """This package. Importing a sub-package binds it here by its name, which must not hide the function `train`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "train" and isinstance(value, ModuleType):
            value.__class__ = _TrainModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "train":
        return importlib.import_module("glassformer.train")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Other projects' models, in and out.

A format is a module with ``recognises(path)``, which looks at names and first bytes only, and ``load(path)``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.store import Loaded

FORMATS = ("hf",)
"""Modules of this package, asked in this order."""


def format_of(path: Path) -> str | None:
    """The format of a model's file or directory; None where none of them recognises it."""
    modules = ((name, importlib.import_module(f"{__name__}.{name}")) for name in FORMATS)
    return next((name for name, module in modules if module.recognises(path)), None)


def load(path: Path, name: str) -> Loaded:
    """Loads a model of that format.

    Raises:
        UserError: A file is missing or damaged, or says what we cannot represent.
    """
    loaded: Loaded = importlib.import_module(f"{__name__}.{name}").load(path)
    return loaded

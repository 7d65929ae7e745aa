"""What `glassformer show` and `list` say of presets, kept as data, so that saying it takes no PyTorch.

Whole answers are reckoned on the meta device, for which PyTorch must be imported: that alone takes more than a second.
Presets are data, and so are the answers about them: ``python -m glassformer.catalogue`` writes them down. They are
read only while the families' files are those that they were reckoned from, and a test compares them with fresh ones.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.config import ModelConfig
    from glassformer.families.family import Family, Preset

FILE = Path(__file__).with_name("catalogue.json")
FAMILIES = Path(__file__).with_name("families")
CONTEXT = 128
"""The sequence length that the FLOPs of kept answers are stated for."""


def describe(config: ModelConfig, name: str, source: str, context: int = CONTEXT) -> dict[str, Any]:
    """A model in numbers: its configuration, the tree of its parts, and its cost, as plain data."""
    from dataclasses import asdict

    from glassformer.models.build import build_model
    from glassformer.models.describe import cost, tree

    built = build_model(config, device="meta", initialise=False)
    spent, root = asdict(cost(built, context)), tree(built, name).to_dict()
    return {"name": name, "source": source, "config": config.to_dict(), **spent, "tree": root}


def presets() -> dict[str, dict[str, Any]]:
    """The answer about every preset: that of `describe`, with ``family`` and ``kind``."""
    return _kept() or reckon()


def preset(name: str, context: int = CONTEXT) -> dict[str, Any] | None:
    """The answer about one preset; None where there is none of that name."""
    if context == CONTEXT and (kept := _kept()):
        return kept.get(name)
    from glassformer import families

    entry = families.presets().get(name)
    return _answer(name, entry, context) if entry else None


def reckon() -> dict[str, dict[str, Any]]:
    """What `presets` gives, reckoned anew."""
    from glassformer import families

    return {name: _answer(name, entry) for name, entry in families.presets().items()}


def _answer(name: str, entry: tuple[Family, Preset], context: int = CONTEXT) -> dict[str, Any]:
    from glassformer.families import configure

    family, given = entry
    told = describe(configure(name), name, given.source, context)
    return {"family": family.name, "kind": family.kind, **told}


def fingerprint() -> str:
    """Of the families' files, which is where presets' numbers stand."""
    files = sorted(FAMILIES.glob("*.py"))
    return hashlib.sha256(b"".join(b"%s\0%s\0" % (file.name.encode(), file.read_bytes()) for file in files)).hexdigest()


@cache
def _kept() -> dict[str, dict[str, Any]] | None:
    """The answers on file; None where the families have changed since."""
    try:
        data = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data["presets"] if data["families"] == fingerprint() else None


def write() -> None:
    """Writes the answers about all presets, one a line."""
    rows = [f"{json.dumps(name)}: {_plain(answer)}" for name, answer in reckon().items()]
    lines = ",\n".join(rows)
    FILE.write_text(f'{{"families": "{fingerprint()}", "presets": {{\n{lines}\n}}}}\n', encoding="utf-8")


def _plain(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    write()

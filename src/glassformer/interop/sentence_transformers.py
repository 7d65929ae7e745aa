"""What the directories of sentence-transformers say of vectors, beside the files of a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.errors import UserError

POOLINGS = {"mean": "mean", "cls": "first", "last": "last"}
"""Ours, and what a `pool` of hidden states calls them."""
_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
_OTHER_MODES = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
MODULES, LIMITS = "modules.json", "sentence_bert_config.json"


@dataclass(frozen=True)
class Settings:
    """How vectors are made where the caller does not say.

    Attributes:
        pooling: One of `POOLINGS`.
        normalise: Give vectors length 1.
        max_length: Most tokens of a text, special ones included; None is the model's positions.
    """

    pooling: str = "mean"
    normalise: bool = True
    max_length: int | None = None

    @classmethod
    def read(cls, path: Path) -> Settings | None:
        """Those of a sentence-transformers directory; None where it is none.

        Raises:
            UserError: It pools in a way that we cannot, or does more to a vector than to pool and normalise it.
        """
        if not (path / MODULES).is_file():
            return None
        modules = [(each["type"].rpartition(".")[2], path / each["path"]) for each in _json(path / MODULES)]
        pooling = "mean"
        for kind, folder in modules:
            if kind == "Pooling":
                pooling = _pooling(folder / "config.json")
            elif kind not in ("Transformer", "Normalize"):
                raise UserError(f"{path / MODULES}: a module of type {kind} cannot be represented")
        limit = _json(path / LIMITS).get("max_seq_length") if (path / LIMITS).is_file() else None
        return cls(pooling, any(kind == "Normalize" for kind, _ in modules), limit)

    def write(self, path: Path, d_model: int) -> None:
        """Puts them beside a model's files, in the form that sentence-transformers and `read` know."""
        kinds = [
            ("Transformer", ""),
            ("Pooling", "1_Pooling"),
            *([("Normalize", "2_Normalize")] if self.normalise else []),
        ]
        modules = [
            {"idx": index, "name": str(index), "path": folder, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, folder) in enumerate(kinds)
        ]
        modes = {mode: name == self.pooling for mode, name in _MODES.items()} | dict.fromkeys(_OTHER_MODES, False)
        files = {
            MODULES: modules,
            LIMITS: {"max_seq_length": self.max_length, "do_lower_case": False},
            "1_Pooling/config.json": {"word_embedding_dimension": d_model, **modes},
        }
        for _, folder in kinds[1:]:
            (path / folder).mkdir()
        for name, content in files.items():
            (path / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _pooling(file: Path) -> str:
    modes = [key for key, value in _json(file).items() if key.startswith("pooling_mode_") and value]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UserError(f"{file}: {' and '.join(modes) or 'no mode'} cannot be represented, only {', '.join(_MODES)}")
    return _MODES[modes[0]]


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file}: missing, though modules.json names it") from None
    except ValueError as error:
        raise UserError(f"{file}: not valid JSON ({error})") from None

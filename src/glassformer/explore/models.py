"""The models that can be looked into, by name; each is read when it is first asked for."""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from glassformer.api import BUNDLED, DEFAULT_MODEL, bundled_models, find_model
from glassformer.config import ClassifierConfig, EmbedConfig, ModelConfig
from glassformer.engines.model import ModelEngine
from glassformer.errors import UserError
from glassformer.explore.problem import Missing
from glassformer.explore.tokens import Tokens
from glassformer.generate.protocol import Decodable
from glassformer.header import Framing, Translation
from glassformer.loading import is_translator, read_model, read_model_config
from glassformer.models.describe import tree
from glassformer.runtime.cache import packed
from glassformer.runtime.decodable import NativeDecodable
from glassformer.runtime.engine import NativeModel
from glassformer.runtime.library import EngineUnavailable
from glassformer.sentences import SentenceModel
from glassformer.store import read_header
from glassformer.trace.manifest import Manifest, manifest
from glassformer.trace.provenance import weights

_EXAMPLES = {"zh": "我喜欢打篮球。", "en": "I like playing basketball.", "de": "Ich spiele gern Basketball."}
_MASKED, _PROMPT, _LABELLED = "I like playing [MASK].", "Once upon a time", "I like playing basketball."
TEACHING = "teaching"
MOST_PACKED = 100_000_000
"""Parameters of a model that is packed for the native engine, which keeps a copy on disk."""
log = logging.getLogger(__name__)


@dataclass
class Card:
    """What is said of a model before it is opened."""

    name: str
    path: Path
    config: ModelConfig | None
    translation: Translation | None
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `ModelCard`."""
        told: dict[str, Any] = {
            "name": self.name,
            "kind": self.config.kind if self.config else "encoder-decoder",
            "input": "image" if self.config and self.config.embed.type == "patches" else "text",
            "directions": [list(each) for each in self.translation.directions] if self.translation else [],
            "example": self._example(),
            "teaching": self.name == TEACHING and self.path == BUNDLED / TEACHING,
        }
        return {**told, "problem": self.problem} if self.problem else told

    def _example(self) -> str:
        if self.name == TEACHING:
            return "我爱自然语言处理"
        if self.name == DEFAULT_MODEL and self.path == BUNDLED / DEFAULT_MODEL:
            return "我爱自然语言处理。"
        config = self.config
        if config is None or not isinstance(config.embed, EmbedConfig):
            return ""
        if config.kind == "encoder-decoder":
            return _EXAMPLES.get(self.translation.source if self.translation else "en", _EXAMPLES["en"])
        if config.kind == "decoder":
            return _PROMPT
        return _MASKED if config.head is not None and config.head.type == "masked-lm" else _LABELLED


class Opened:
    """A model in memory, with what stands around its texts."""

    def __init__(self, card: Card) -> None:
        loaded = read_model(card.path)
        self.card, self.name = card, card.name
        self.model, self.config = loaded.model.eval(), loaded.model.config
        self.tokenizer, self.translation = loaded.tokenizer, loaded.translation
        self.framing = loaded.framing or Framing()
        self.source_tokens = Tokens(self.tokenizer) if self.tokenizer is not None else None
        self.target_tokens = Tokens(self.tokenizer.target) if self.tokenizer is not None else None
        self.weights = dict(weights(self.model))
        self._lock = threading.Lock()

    @cached_property
    def sentences(self) -> SentenceModel:
        """The model with its tokenizer, as `translate` has it."""
        return SentenceModel(ModelEngine(self.model), self.tokenizer, self.translation, self.framing)

    @cached_property
    def decodable(self) -> Decodable[Any]:
        """What searches a target: the native engine's steps in fp32 where it has this model, else the module."""
        config = self.config
        if config.kind != "encoder-decoder" or self.model.num_parameters() > MOST_PACKED:
            return self.model
        if not (self.card.path.is_dir() and is_translator(self.card.path)):
            return self.model
        try:
            return NativeDecodable(NativeModel.open(packed(self.card.path, "fp32")))
        except (EngineUnavailable, UserError, OSError) as reason:
            log.info("%s: PyTorch decodes (%s)", self.name, reason)
            return self.model

    @property
    def manifest(self) -> Manifest:
        """The graph of the model, found once."""
        with self._lock:
            if not hasattr(self, "_manifest"):
                self._manifest = manifest(self.model)
            return self._manifest

    @property
    def labels(self) -> tuple[str, ...]:
        """What a classifier tells apart."""
        head = self.config.head
        return head.labels if isinstance(head, ClassifierConfig) else ()

    def vocabulary(self) -> dict[str, Any]:
        """What each id of the output means, as `Vocabulary`.

        Raises:
            Missing: The model has no tokenizer.
        """
        if self.target_tokens is None:
            raise Missing(f"{self.name} has no tokenizer, so its ids have no names")
        told = [self.target_tokens.one(index) for index in range(self.config.target_vocab_size)]
        return {
            "pieces": [each["piece"] for each in told],
            "texts": [each["text"] for each in told],
            "special": [each["id"] for each in told if each["special"]],
        }

    def architecture(self) -> dict[str, Any]:
        """Plain data, as `Architecture`."""
        card, found = self.card.to_dict(), self.manifest
        shown = {"source": "from", "target": "to"}
        return {
            **{key: card[key] for key in ("name", "kind", "input")},
            "config": spelled_out(self.config),
            "parameters": self.model.num_parameters(),
            "vocab_size": self.config.target_vocab_size,
            "tree": tree(self.model, self.name).to_dict(),
            "parts": [{key: value for key, value in vars(part).items() if _told(key, value)} for part in found.parts],
            "edges": [{shown.get(key, key): value for key, value in vars(edge).items()} for edge in found.edges],
        }


def _told(key: str, value: Any) -> bool:
    return value is not None or key in ("stack", "layer")


def spelled_out(config: ModelConfig) -> dict[str, Any]:
    """A configuration as plain data, every block by itself."""
    data = config.to_dict()
    for stack in ("encoder", "decoder"):
        if data.get(stack):
            folded = data[stack]["blocks"]
            data[stack]["blocks"] = [entry["block"] for entry in folded for _ in range(entry["repeat"])]
    return data


class Models:
    """Models by name: those given first, then what ships with the package."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        paths: dict[str, Path] = {}
        for model in given:
            path = find_model(model)
            name = model if model in bundled_models() else path.resolve().name or str(path)
            place = 2
            while name in paths and paths[name] != path:
                name, place = f"{path.resolve().name}-{place}", place + 1
            paths[name] = path
        for name in sorted(bundled_models(), key=lambda name: (name != DEFAULT_MODEL, name)):
            paths.setdefault(name, BUNDLED / name)
        self._cards = {name: _card(name, path) for name, path in paths.items()}
        self._opened: dict[str, Opened] = {}
        self._locks = {name: threading.Lock() for name in paths}

    def read_ahead(self) -> None:
        """Reads the first model, so that the page finds it ready; what is wrong with it is told to who asks for it."""
        with suppress(Exception):
            first = self[self.cards[0].name]
            _ = first.manifest, first.decodable

    @property
    def cards(self) -> list[Card]:
        """What there is; the first one opens by default."""
        return list(self._cards.values())

    def __getitem__(self, name: str) -> Opened:
        """A model, read now if nobody asked for it before.

        Raises:
            Missing: There is none of that name, or it is gone from the disk.
            UserError: It cannot be read.
        """
        if name not in self._cards:
            near = difflib.get_close_matches(name, self._cards, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise Missing(f"no model {name!r}: there are {', '.join(self._cards)}{hint}")
        with self._locks[name]:
            if name not in self._opened:
                card = self._cards[name]
                if not card.path.exists():
                    raise Missing(f"model {name!r} is gone: {card.path} is no more")
                self._opened[name] = Opened(card)
            return self._opened[name]


def _card(name: str, path: Path) -> Card:
    try:
        config = read_model_config(path)
    except (UserError, OSError) as error:
        return Card(name, path, None, None, str(error))
    try:
        translation = read_header(path).translation if path.is_dir() else None
    except UserError:  # another format, which names no languages
        translation = None
    return Card(name, path, config, translation)

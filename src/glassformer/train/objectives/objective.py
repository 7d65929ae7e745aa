"""What every objective has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from glassformer.config import AnyHeadConfig, EmbedConfig, ModelConfig
from glassformer.data.batching import Plan, plan_epoch
from glassformer.data.collate import Batch, Labelled
from glassformer.errors import UserError
from glassformer.families import build
from glassformer.header import Framing, Translation
from glassformer.interop import word2vec
from glassformer.models.build import build_model
from glassformer.models.model import Model
from glassformer.store import Loaded
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.config import TrainConfig
from glassformer.train.distributed import World
from glassformer.train.objectives.loss import token_loss
from glassformer.train.setup import longest_example, start_of


class Objective(ABC):
    """The data of a run as examples, what a model of theirs minimises, and the figures of a dev set.

    What an epoch shows is a pure function of the data, the seed and the epoch, so that a resumed run sees what an
    uninterrupted one would have seen.

    Attributes:
        model: What is trained.
        tokenizer: Saved with it; None where it reads no text.
        framing: What stands around its texts.
        translation: What it is trained to translate, if it is.
        max_len: The most tokens on a side of an example.
        told: Lines about the data for the user.
        chosen_by: The beginning of the names of the dev figures whose mean chooses the best checkpoint; None is the
            dev loss.
    """

    chosen_by: ClassVar[str | None] = None
    smoothing: ClassVar[float] = 0.0
    model: Any
    tokenizer: Tokenizer | None = None
    framing: Framing = Framing()
    translation: Translation | None = None

    def __init__(self, config: TrainConfig, resumed: Loaded | None) -> None:
        self.config = config
        self.told: list[str] = []
        vectors = config.embeddings if resumed is None else None
        if vectors is not None:
            self._check_vectors(vectors)
        self.read()
        if (start := start_of(config, resumed)) is None:
            self.tokenizer = self.new_tokenizer()
            vocab_size = self.tokenizer.vocab_size if self.tokenizer else None
            shape = self.fitted(config.model_config_for(vocab_size))
            torch.manual_seed(config.train.seed)
            self.model = build(shape)
            if vectors is not None and self.tokenizer is not None:
                self.told.append(f"{vectors}: {word2vec.initialise_(self.model, self.tokenizer, vectors)}")
        else:
            self.tokenizer = start.tokenizer
            self.check(start)
            self.model = adapted(start.model, self.fitted(start.model.config), config.train.seed)
        if self.tokenizer is not None:
            own = Framing.of(self.tokenizer, self.model.config.kind)
            self.framing = (start.framing if start else None) or own
        embed = self.model.config.embed
        pieces = self.tokenizer.vocab_size if self.tokenizer else 0
        if isinstance(embed, EmbedConfig) and embed.vocab_size < pieces:
            raise UserError(f"the tokenizer has {pieces} pieces, but the model embeds {embed.vocab_size}")
        self.max_len = longest_example(self.model.config, config.data.max_len)
        self.prepare()

    def _check_vectors(self, file: Path) -> None:
        shape = self.config.shape()
        if not isinstance(shape.embed, EmbedConfig):
            raise UserError("model.embeddings: the model reads images, and words have the vectors; leave it out")
        word2vec.check(file, shape.d_model)

    @abstractmethod
    def read(self) -> None:
        """Reads ``data.train`` and ``data.dev``."""

    def new_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of a new model."""
        return None

    @abstractmethod
    def check(self, start: Loaded) -> None:
        """Refuses a model to start from that the data does not fit."""

    @abstractmethod
    def fitted(self, config: ModelConfig) -> ModelConfig:
        """The model's configuration with the head that this objective needs."""

    @abstractmethod
    def prepare(self) -> None:
        """Makes what examples are made of, once the model and the tokenizer are there."""

    @abstractmethod
    def sampled(self, seed: int, epoch: int, *, dropout: bool = True) -> Sequence[Any]:
        """The examples of an epoch; without ``dropout`` texts are cut as they are when the model is used."""

    @property
    @abstractmethod
    def dev(self) -> Sequence[Any]:
        """The examples of the dev set; none where there is no dev set."""

    @abstractmethod
    def lengths(self, example: Any) -> tuple[int, int]:
        """Tokens of an example's source and target, for batches."""

    @abstractmethod
    def batch(self, examples: Sequence[Any], rows: Sequence[int]) -> Batch | Labelled:
        """The tensors of some examples."""

    def loss(self, model: Any, batch: Batch | Labelled, smoothing: float) -> tuple[Tensor, Tensor]:
        """What is minimised, and the plain negative log-likelihood, summed over labels; in nats."""
        return token_loss(model, batch, smoothing=smoothing, pad_id=self.pad_id)

    def scores(
        self, model: Model, loss: float, world: World, autocast: AbstractContextManager[object]
    ) -> dict[str, float]:
        """Figures of the dev set besides its loss, each under the name that reports give it."""
        return {}

    @property
    def pad_id(self) -> int | None:
        """The id that no smoothing is spent on; it stands in the padding where there is one."""
        return self.tokenizer.pad_id if self.tokenizer else None

    def plan(self, examples: Sequence[Any], seed: int, epoch: int) -> Plan:
        """The batches of an epoch."""
        lengths = [self.lengths(example) for example in examples]
        limit = self.config.train.batch_tokens
        return plan_epoch(lengths, batch_tokens=limit, seed=seed, epoch=epoch, max_len=self.max_len)

    @property
    def limit(self) -> str:
        """The longest example, in words."""
        return f"{self.max_len} tokens a side or {self.config.train.batch_tokens} in all"


def with_head(config: ModelConfig, head: AnyHeadConfig) -> ModelConfig:
    """The configuration with another head, checked anew."""
    return ModelConfig.from_dict({**config.to_dict(), "head": head.to_dict()}, "model")


def adapted(model: Any, config: ModelConfig, seed: int) -> Any:
    """A model with another head: what both have keeps its weights, and the rest is drawn anew."""
    if model.config == config:
        return model
    torch.manual_seed(seed)
    new, old = build_model(config), dict(model.state_dict())
    for name, tensor in new.state_dict().items():
        if name in old and old[name].shape == tensor.shape:
            tensor.copy_(old[name])
    return new.eval()


def needs(config: ModelConfig, kinds: Sequence[str], objective: str) -> None:
    """Refuses a model of another kind."""
    if config.kind not in kinds or not isinstance(config.embed, EmbedConfig):
        found = config.kind if isinstance(config.embed, EmbedConfig) else "reader of images"
        raise UserError(
            f"objective {objective}: the model is of the kind {found}, and it takes {' or '.join(kinds)} over tokens; "
            "choose another preset, or leave objective out for the model's own"
        )

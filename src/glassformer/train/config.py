"""The training configuration, as read from YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from glassformer.config import Config, Dropout, ModelConfig, Positive
from glassformer.errors import UserError
from glassformer.families import configure

NonNegative = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class TokenizerSection(Config):
    """Which subwords to use: those of ``from``, or new ones learnt from the training text."""

    kind: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    vocab_size: Positive = 8000
    normalizer: Literal["none", "nfc", "nfkc"] = "nfc"
    min_frequency: Positive = 2
    limit_alphabet: Positive | None = None
    source: Annotated[str | None, Field(alias="from")] = None


class DataSection(Config):
    """The parallel text: a TSV or JSONL file, several, or ``[source file, target file]`` pairs."""

    train: str | list[str | tuple[str, str]]
    dev: str | None = None
    source: str = "source"
    target: str = "target"
    both_directions: bool = False
    max_len: Positive = 256
    """The most tokens on either side of an example; longer ones are dropped, with a count."""


class TrainSection(Config):
    """How to train. Every number of steps counts optimizer steps."""

    output: str = "runs/model"
    steps: Positive = 20_000
    batch_tokens: Positive = 4096
    """Padded source and target tokens of one batch."""
    accumulate: Positive = 1
    """Batches whose gradients are summed for one step."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """The highest learning rate, reached after ``warmup`` steps; for ``noam`` a factor of the paper's formula."""
    schedule: Literal["inverse-sqrt", "noam", "cosine", "linear", "constant"] = "inverse-sqrt"
    warmup: NonNegative = 1000
    min_lr: Share = 0.0
    """Where ``cosine`` and ``linear`` end, as a share of ``lr``."""
    betas: tuple[Share, Share] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest norm of the gradient."""
    label_smoothing: Dropout = 0.1
    bpe_dropout: Dropout = 0.0
    """Chance to drop each BPE merge, drawn anew every epoch (Provilkov et al. 2020)."""
    bpe_dropout_until: Share = 0.9
    """Epochs that begin after this share of the steps use the plain segmentation, as translation does."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    workers: Positive | Literal["auto"] = "auto"
    """Processes of one thread each on a CPU; ``auto`` is one for each core. Under torchrun its ranks train."""
    seed: int = 1
    eval_every: Positive = 1000
    eval_lines: NonNegative = 500
    """Dev sentences translated for BLEU; 0 chooses the best checkpoint by dev loss instead."""
    save_every: Positive = 1000
    keep: Positive = 3
    """Step checkpoints kept, newest first; the best one is always kept as well."""
    patience: Positive | None = None
    """Stop after so many evaluations without a better one."""
    log_every: Positive = 50


class TrainConfig(Config):
    """A whole training run."""

    model: dict[str, Any] = {"preset": "transformer-small"}
    tokenizer: TokenizerSection = TokenizerSection()
    data: DataSection
    train: TrainSection = TrainSection()

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if "preset" in self.model and "from" in self.model:
            raise ValueError("model: give either preset or from, not both")
        return self

    def model_config_for(self, vocab_size: int) -> ModelConfig:
        """The model to build: a preset with its numbers replaced, or a spelled-out ``ModelConfig``.

        Args:
            vocab_size: The tokenizer's, which always wins over a preset's.
        """
        if "preset" in self.model:
            settings = {key: value for key, value in self.model.items() if key != "preset"}
            return configure(self.model["preset"], **{**settings, "vocab_size": vocab_size})
        config = ModelConfig.from_dict(self.model, "model")
        for embed in (config.embed, config.target_embed):
            if embed and embed.vocab_size < vocab_size:
                size = embed.vocab_size
                raise UserError(f"model.embed.vocab_size {size} is smaller than the tokenizer's {vocab_size}")
        return config


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Reads a training configuration.

    Args:
        source: A YAML file, or its content as a mapping.
        overrides: ``{"train.lr": 1e-3}``: dotted keys that replace or add single values.

    Raises:
        UserError: On a missing file, bad YAML (with its line), an unknown key, or a value out of range.
    """
    if isinstance(source, Mapping):
        data, where = dict(source), "config"
    else:
        data, where = _read_yaml(Path(source)), str(source)
    for key, value in (overrides or {}).items():
        _set(data, key, value, where)
    return TrainConfig.from_dict(data, where)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot read the config ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the config as UTF-8") from None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not valid YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected keys such as data and train, found {type(data).__name__}")
    return data


def _set(data: dict[str, Any], dotted: str, value: Any, where: str) -> None:
    *parents, key = dotted.split(".")
    for parent in parents:
        child = data.get(parent)
        if child is None:
            child = {}
        if not isinstance(child, dict):
            raise UserError(f"{where}: cannot set {dotted}: {parent} is not a section")
        data[parent] = dict(child)
        data = data[parent]
    data[key] = value

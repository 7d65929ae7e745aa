"""The training configuration, as read from YAML."""

from __future__ import annotations

import difflib
import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BeforeValidator, Field, model_validator

from glassformer import interop
from glassformer.config import (
    ClassifierConfig,
    Config,
    Dropout,
    EmbedConfig,
    HeadConfig,
    MaskedLMHeadConfig,
    ModelConfig,
    PatchEmbedConfig,
    Positive,
    PositiveFloat,
    SpanConfig,
    TokenClassifierConfig,
)
from glassformer.errors import UserError
from glassformer.families import configure, presets
from glassformer.train.objective_config import (
    CausalLMObjective,
    ClassificationObjective,
    ExtractiveQAObjective,
    MaskedLMObjective,
    ObjectiveConfig,
    Seq2SeqObjective,
    Share,
    TokenClassificationObjective,
)

NonNegative = Annotated[int, Field(ge=0)]
T = TypeVar("T")
_VECTORS = "embeddings"


def _corpus(value: Any) -> Any:
    entries = value if isinstance(value, list | tuple) else [value]
    pairs = [entry for entry in entries if not isinstance(entry, str)]
    fits = all(isinstance(e, list | tuple) and len(e) == 2 and all(isinstance(f, str) for f in e) for e in pairs)
    if not entries or not fits:
        raise ValueError("expected a file, or a list of files and of pairs such as [[train.zh, train.en]]")
    return value


Corpus = Annotated[str | list[str | tuple[str, str]], BeforeValidator(_corpus)]
"""A TSV or JSONL file; or a list of such files and of ``[source file, target file]`` pairs of plain text."""


class TokenizerSection(Config):
    """Which subwords to use: those of ``from`` (a file or a MODEL), or new ones learnt from the training text."""

    kind: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    vocab_size: Positive = 8000
    normalizer: Literal["none", "nfc", "nfkc"] = "nfc"
    min_frequency: Positive = 2
    limit_alphabet: Positive | None = None
    source: Annotated[str | None, Field(alias="from")] = None


class DataSection(Config):
    """What is learnt from: parallel text, documents, or labelled texts, words or images.

    A parallel text: ``train: train.tsv`` is one file, ``train: [a.tsv, b.jsonl]`` two corpora in a row, and
    ``train: [[train.zh, train.en]]`` one corpus in two plain files, line by line; all may be mixed. Paths are relative
    to where the program runs.

    Documents are plain text files, or JSONL files with the key ``text``. Labelled texts are TSV, CSV or JSONL files
    with columns or keys ``text`` and ``label``; ``text: [premise, hypothesis]`` reads pairs of texts. Questions are
    SQuAD's JSON, or TSV or JSONL files with ``question``, ``context`` and ``answer``. Labelled words stand one a line,
    ``word<TAB>label``, with a blank line between sentences. Images are pairs of MNIST's idx files, CSV files with a row
    of pixels and the label at its end, ``.npz`` files with ``images`` and ``labels``, or TSV files of paths and labels.
    """

    train: Corpus
    dev: Corpus | None = None
    dev_share: Dropout = 0.0
    """Without ``dev``, the share at the end of ``train`` that is held out for it."""
    source: str = "source"
    """Language code of the source, and the name of its column or key."""
    target: str = "target"
    both_directions: bool = False
    """Train one model for both; its sources then begin with a target-language token."""
    reverse_share: Share = 1.0
    """Share of the pairs, drawn anew each epoch, that is also shown in the reverse direction."""
    masked_share: Share = 0.0
    """Share of the pairs that say the same number, Latin word or term on both sides, drawn anew each epoch, in which it
    is masked: translation puts such masks in the place of placeholders, URLs and tags."""
    mask_terms: Corpus | None = None
    """Terms and their translations, in a file like ``train``'s, that ``masked_share`` may mask as well."""
    document: Literal["file", "paragraph", "line"] = "file"
    """What of a plain text file is one document; paragraphs have blank lines between them."""
    text: str | tuple[str, str] = "text"
    """Name of the column or key of documents and labelled texts, or those of labelled pairs of texts."""
    label: str = "label"
    """Name of the column or key of their labels."""
    white: PositiveFloat = 255.0
    """The value of a white pixel in idx, CSV and npz files."""
    max_len: Positive = 256
    """The most tokens on either side of an example, or of a row that documents fill. Longer pairs are dropped, with a
    count; longer texts are cut."""

    def split(self, train: Sequence[T], dev: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
        """Takes ``dev_share`` off the end of what is read."""
        count = round(len(train) * self.dev_share)
        return (train, dev) if dev or not count else (train[:-count], train[-count:])

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.source == self.target:
            raise ValueError(f"source and target are both {self.source!r}; name two languages")
        if self.dev is not None and self.dev_share:
            raise ValueError("dev and dev_share are both given; leave one out")
        if self.mask_terms is not None and not self.masked_share:
            raise ValueError("mask_terms masks nothing while masked_share is 0; set masked_share, such as 0.3")
        return self


class TrainSection(Config):
    """How to train. Every number of steps counts optimizer steps."""

    output: str = "runs/model"
    steps: Positive = 20_000
    batch_tokens: Positive = 4096
    """Padded source and target tokens of one batch."""
    accumulate: Positive = 1
    """Batches whose gradients are summed for one step."""
    lr: PositiveFloat = 1e-3
    """The highest learning rate, reached after ``warmup`` steps; for ``noam`` a factor of the paper's formula."""
    schedule: Literal["inverse-sqrt", "noam", "cosine", "linear", "constant"] = "inverse-sqrt"
    warmup: NonNegative = 1000
    min_lr: Share = 0.0
    """Where ``cosine`` and ``linear`` end, as a share of ``lr``."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """``muon`` orthogonalises the updates of the layers' matrices and leaves the rest to AdamW."""
    muon_rate: PositiveFloat = 2.5
    """Learning rate of Muon's matrices, as a multiple of ``lr``."""
    betas: tuple[Dropout, Dropout] = (0.9, 0.98)
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    clip: PositiveFloat | None = 1.0
    """Largest norm of the gradient."""
    label_smoothing: Dropout | None = None
    """By default 0.1 for ``seq2seq``, and 0 for what else is learnt."""
    bpe_dropout: Dropout = 0.0
    """Chance to drop each BPE merge, drawn anew every epoch (Provilkov et al. 2020)."""
    bpe_dropout_until: Share = 0.9
    """Epochs that begin after this share of the steps use the plain segmentation, as translation does."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    workers: Positive | Literal["auto"] = "auto"
    """Processes of one thread each on a CPU; ``auto`` is one for each core, but no more than ``batch_tokens`` keeps
    busy. On a GPU there is one, and under torchrun its ranks train."""
    seed: int = 1
    eval_every: Positive = 1000
    eval_lines: NonNegative = 500
    """Dev sentences translated for BLEU; 0 chooses the best checkpoint by dev loss instead, also where labels are
    learnt, whose accuracy chooses else."""
    save_every: Positive = 1000
    keep: Positive = 3
    """Step checkpoints kept, newest first; the best one is always kept as well."""
    patience: Positive | None = None
    """Stop after so many evaluations without a better one."""
    log_every: Positive = 50


class TrainConfig(Config):
    """A whole training run."""

    model: dict[str, Any] = {"preset": "transformer-small"}
    """A preset with its numbers replaced, a whole ``ModelConfig``, or ``from``, a model to go on with. A new model may
    have ``embeddings``, a file of word2vec's, whose vectors its tokens begin with."""
    tokenizer: TokenizerSection = TokenizerSection()
    objective: ObjectiveConfig | None = None
    """What is learnt; by default what the model's kind and head are for."""
    data: DataSection
    train: TrainSection = TrainSection()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "from" in self.model and len(self.model) > 1:
            other = next(key for key in self.model if key != "from")
            raise ValueError(f"model: from brings a whole model along, so leave {other} out")
        for key in self.model:
            if key != _VECTORS and difflib.get_close_matches(key, [_VECTORS], cutoff=0.8):
                raise ValueError(f"model.{key}: unknown; did you mean {_VECTORS!r}?")
        if not isinstance(self.model.get(_VECTORS), str | None):
            raise ValueError(f"model.{_VECTORS}: expected the path of a file of word2vec's")
        if self.train.bpe_dropout and not isinstance(self.objective, Seq2SeqObjective | None):
            raise ValueError(f"train.bpe_dropout is for seq2seq, and objective is {self.objective.type}; leave it out")
        if self.train.patience is not None and self.data.dev is None and not self.data.dev_share:
            raise ValueError("train.patience counts evaluations: give data.dev as well")
        return self

    @property
    def reads_images(self) -> bool:
        """Whether the model reads images rather than text."""
        return isinstance(self.shape().embed, PatchEmbedConfig)

    @property
    def embeddings(self) -> Path | None:
        """The word vectors that a new model's tokens begin with."""
        return Path(self.model[_VECTORS]) if self.model.get(_VECTORS) else None

    def resolved(self) -> Self:
        """The same with the objective that its model is for, where none is given."""
        if self.objective:
            return self
        return self.model_copy(update={"objective": _objective_of(self.shape())})

    def shape(self) -> ModelConfig:
        """The model before the tokenizer is known, and before the objective gives it a head."""
        if "from" not in self.model:
            return self.model_config_for(vocab_size=1)
        path = Path(self.model["from"])
        name = interop.format_of(path)
        if name is not None:
            return interop.model_config(path, name)
        from glassformer.store import read_header  # PyTorch, which a config with a preset does without

        return read_header(path).model

    def model_config_for(self, vocab_size: int | None) -> ModelConfig:
        """The model to build: a preset with its numbers replaced, or a spelled-out ``ModelConfig``.

        Args:
            vocab_size: The tokenizer's, which always wins over a preset's; None where there is none.
        """
        given = {key: value for key, value in self.model.items() if key != _VECTORS}
        if "preset" in given:
            settings = {key: value for key, value in given.items() if key != "preset"}
            family, _ = presets().get(given["preset"], (None, None))
            reads = family is None or "vocab_size" in inspect.signature(family.configure).parameters
            sized = {"vocab_size": vocab_size} if reads and vocab_size is not None else {}
            return configure(given["preset"], **{**settings, **sized})
        config = ModelConfig.from_dict(given, "model")
        if vocab_size is None:
            return config
        for name, embed in (("embed", config.embed), ("target_embed", config.target_embed)):
            if isinstance(embed, EmbedConfig) and embed.vocab_size < vocab_size:
                size = embed.vocab_size
                raise UserError(f"model.{name}.vocab_size {size} is smaller than the tokenizer's {vocab_size}")
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
    config = TrainConfig.from_dict(data, where)
    if "from" in config.model:  # which another run may not have written yet
        return config
    try:
        config.shape()  # a misspelt model is told before the corpus is read
        return config.resolved()
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _objective_of(config: ModelConfig) -> Any:
    """What a model's kind and head are for."""
    match config.kind, config.head:
        case _, ClassifierConfig():
            return ClassificationObjective()
        case "encoder-decoder", HeadConfig():
            return Seq2SeqObjective()
        case "decoder", HeadConfig():
            return CausalLMObjective()
        case "encoder", MaskedLMHeadConfig():
            return MaskedLMObjective()
        case "encoder", TokenClassifierConfig():
            return TokenClassificationObjective()
        case "encoder", SpanConfig():
            return ExtractiveQAObjective()
    raise UserError(
        "the model's head does not say what to learn; give objective, such as {type: classification} or "
        "{type: masked-lm}"
    )


def dump_config(config: TrainConfig) -> str:
    """The whole configuration as YAML that ``load_config`` reads back as an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True)


def changes(old: TrainConfig, new: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ, each with the old and the new value."""
    before, after = (dict(_flat(config.model_dump(mode="json", by_alias=True))) for config in (old, new))
    keys = dict.fromkeys([*before, *after])
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class _Loader(yaml.SafeLoader):
    """Scalars of YAML 1.2: ``1e-3`` is a number, and ``no`` is the code of Norwegian."""


_BOOL, _FLOAT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:float"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_FLOAT, re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789"))


def parse_yaml(text: str, where: str) -> Any:
    """Reads YAML as a configuration file does.

    Raises:
        UserError: Where it is not YAML, with the line.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{where}{line}: not valid YAML ({problem})") from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot read the config ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the config as UTF-8") from None
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        found = "nothing" if data is None else type(data).__name__
        raise UserError(f"{path}: expected keys such as data and train, found {found}")
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

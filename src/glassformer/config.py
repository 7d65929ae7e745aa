"""Model configurations: frozen data that says everything about a model's shape. Imports no torch.

A configuration is a tree: ``ModelConfig`` → ``StackConfig`` → ``BlockConfig`` → mixer, feed-forward, norm. Parts that
can be swapped are unions of config types told apart by their ``type`` key, so that a part cannot carry another part's
options. Unknown keys are errors that name the nearest known one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from itertools import groupby
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_serializer, model_validator

from glassformer.errors import UserError


class Config(BaseModel):
    """Base of every configuration: immutable, strict about keys, round-trips through plain dicts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "config") -> Self:
        """Builds the configuration from plain data.

        Args:
            data: What ``to_dict`` gave, or a YAML file's content.
            where: What to call the data in an error, such as a file's path.

        Raises:
            UserError: On an unknown key (with the nearest known one), a missing key, or a value out of range.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise UserError(explain(cls, error, where)) from None

    def to_dict(self) -> dict[str, Any]:
        """Gives plain data (JSON and YAML types) that ``from_dict`` turns back into an equal configuration."""
        return self.model_dump(mode="json")


def explain(config: type[Config], error: ValidationError, where: str) -> str:
    """Says the first problem of a validation in one line."""
    first = error.errors(include_url=False)[0]
    path, here = _resolve(config, first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        near = difflib.get_close_matches(str(first["loc"][-1]), here, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(here)}" if here else ""
        return f"{where}: unknown key {path!r}{hint}{more}"
    message = first["msg"].removeprefix("Value error, ")
    value = first.get("input")
    plain = isinstance(value, str | int | float | bool | None) and first["type"] != "missing"
    got = f", got {value!r}" if plain else ""
    return f"{where}: {path}: {message}{got}{more}" if path else f"{where}: {message}{more}"


def _resolve(config: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, list[str]]:
    """Turns an error's location into a path of keys and indices, and lists the keys known where the path ends."""
    models: list[type[BaseModel]] = [config]
    path: list[str] = []
    for depth, part in enumerate(loc):
        chosen = [m for m in models if "type" in m.model_fields and m.model_fields["type"].default == part]
        if chosen:  # pydantic names the chosen member of a union; the data has no such key
            models = chosen
            continue
        path.append(str(part))
        if isinstance(part, str) and depth < len(loc) - 1:
            fields = [model.model_fields[part] for model in models if part in model.model_fields]
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return ".".join(path), [name for model in models for name in model.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[int, Field(gt=0)]


class LayerNormConfig(Config):
    """Layer normalisation (Ba et al. 2016)."""

    type: Literal["layer"] = "layer"
    eps: Annotated[float, Field(gt=0)] = 1e-5
    bias: bool = True


class SinusoidalConfig(Config):
    """Fixed sine and cosine positions (Vaswani et al. 2017, section 3.5)."""

    type: Literal["sinusoidal"] = "sinusoidal"
    max_len: Positive = 1024
    layout: Literal["interleaved", "halves"] = "interleaved"
    base: Annotated[float, Field(gt=1)] = 10000.0
    first: int = 0
    """The position of the first token."""


class LearnedPositionConfig(Config):
    """One learned vector for each position."""

    type: Literal["learned"] = "learned"
    max_len: Positive = 1024


PositionConfig = Annotated[SinusoidalConfig | LearnedPositionConfig, Field(discriminator="type")]


class AttentionConfig(Config):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

    type: Literal["attention"] = "attention"
    n_heads: Positive
    d_head: Positive | None = None
    """Size of one head; ``None`` means ``d_model / n_heads``."""
    causal: bool = False
    bias: bool = True


class MLPConfig(Config):
    """Position-wise feed-forward network (Vaswani et al. 2017, section 3.3)."""

    type: Literal["mlp"] = "mlp"
    d_ff: Positive
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = "relu"
    bias: bool = True


class BlockConfig(Config):
    """One layer: a mixer, perhaps cross-attention, perhaps a feed-forward part, each with a residual and a norm."""

    mixer: AttentionConfig
    cross: AttentionConfig | None = None
    ffn: MLPConfig | None = None
    norm: LayerNormConfig = LayerNormConfig()
    order: Literal["pre", "post"] = "post"
    """``post`` is the original ``norm(x + f(x))``; ``pre`` is ``x + f(norm(x))`` (Xiong et al. 2020)."""
    dropout: Dropout = 0.0

    @model_validator(mode="after")
    def _cross_sees_everything(self) -> Self:
        if self.cross is not None and self.cross.causal:
            raise ValueError("cross.causal must be false: every source position is known before the target is read")
        return self


class StackConfig(Config):
    """Blocks in a row, with what comes before the first and after the last.

    In plain data, equal neighbouring blocks are folded into one ``{"repeat": 6, "block": {...}}``.
    """

    position: PositionConfig | None = None
    blocks: tuple[BlockConfig, ...]
    final_norm: LayerNormConfig | None = None
    dropout: Dropout = 0.0
    """Dropout on the sum of embedding and position."""

    @model_validator(mode="before")
    @classmethod
    def _unfold(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("blocks"), list | tuple):
            return data
        blocks: list[Any] = []
        for index, entry in enumerate(data["blocks"]):
            if not isinstance(entry, Mapping) or "repeat" not in entry:
                blocks.append(entry)
                continue
            count = entry["repeat"]
            if set(entry) != {"repeat", "block"} or not isinstance(count, int) or count < 1:
                raise ValueError(f'blocks entry {index}: equal blocks are given as {{"repeat": 6, "block": {{...}}}}')
            blocks.extend([entry["block"]] * count)
        return {**data, "blocks": blocks}

    @model_serializer(mode="wrap")
    def _fold(self, handler: Any) -> dict[str, Any]:
        data = handler(self)
        runs = [(block, len(list(run))) for block, run in groupby(data["blocks"])]
        data["blocks"] = [{"repeat": count, "block": block} for block, count in runs]
        return data


class EmbedConfig(Config):
    """Token embedding: one row of ``d_model`` numbers for each of ``vocab_size`` ids."""

    vocab_size: Positive
    scale: bool = True
    """Multiply by √d_model, as in section 3.4 of the paper."""


class HeadConfig(Config):
    """The output layer that turns a hidden state into one logit for each id."""

    bias: bool = False


class ModelConfig(Config):
    """A whole model. With an ``encoder`` and a ``decoder`` it is a sequence-to-sequence Transformer."""

    d_model: Positive
    embed: EmbedConfig
    target_embed: EmbedConfig | None = None
    """The decoder's own embedding; ``None`` shares the encoder's."""
    encoder: StackConfig
    decoder: StackConfig
    head: HeadConfig = HeadConfig()
    tie: bool = True
    """The output layer reuses the decoder's embedding matrix (Press and Wolf 2017)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            for index, block in enumerate(stack.blocks):
                for attention in (block.mixer, block.cross):
                    if attention and attention.d_head is None and self.d_model % attention.n_heads:
                        raise ValueError(
                            f"{name} block {index}: d_model {self.d_model} is not a multiple of n_heads "
                            f"{attention.n_heads}; change one, or give d_head"
                        )
                if (name == "decoder") != (block.cross is not None):
                    raise ValueError(f"{name} block {index}: cross-attention belongs in the decoder and nowhere else")
                if (name == "decoder") != block.mixer.causal:
                    raise ValueError(f"{name} block {index}: self-attention is causal in the decoder and nowhere else")
            if isinstance(stack.position, SinusoidalConfig) and self.d_model % 2:
                raise ValueError(f"sinusoidal positions need an even d_model, got {self.d_model}")
        return self

    @property
    def target_vocab_size(self) -> int:
        """Number of logits."""
        return (self.target_embed or self.embed).vocab_size

"""Configurations of positions: added to embeddings, turned into queries and keys, or added to scores. No torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from glassformer.schema import Config, Length, Positive, PositiveFloat


class SinusoidalConfig(Config):
    """Fixed sine and cosine positions (Vaswani et al. 2017, section 3.5)."""

    type: Literal["sinusoidal"] = "sinusoidal"
    max_len: Length = 1024
    layout: Literal["interleaved", "halves"] = "interleaved"
    base: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 10000.0
    first: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    """The position of the first token."""


class LearnedPositionConfig(Config):
    """One learned vector for each position."""

    type: Literal["learned"] = "learned"
    max_len: Length = 1024
    first: Annotated[int, Field(ge=0, le=2**24)] = 0
    """The row of the first token; rows before it are stored and never read (2 in BART and RoBERTa)."""


PositionConfig = Annotated[SinusoidalConfig | LearnedPositionConfig, Field(discriminator="type")]


class LinearScaling(Config):
    """Positions divided by ``factor`` (Chen et al. 2023, arXiv:2306.15595)."""

    type: Literal["linear"] = "linear"
    factor: PositiveFloat


class DynamicScaling(Config):
    """A base that grows with the length beyond ``original_max_len`` (NTK-aware scaling, bloc97 2023)."""

    type: Literal["dynamic"] = "dynamic"
    factor: PositiveFloat
    original_max_len: Positive


class Llama3Scaling(Config):
    """Long waves divided by ``factor``, short ones kept, a ramp between (Dubey et al. 2024, arXiv:2407.21783)."""

    type: Literal["llama3"] = "llama3"
    factor: PositiveFloat
    low_freq_factor: PositiveFloat = 1.0
    high_freq_factor: PositiveFloat = 4.0
    original_max_len: Positive = 8192


class YarnScaling(Config):
    """Interpolation by parts and a sharper softmax (Peng et al. 2023, arXiv:2309.00071)."""

    type: Literal["yarn"] = "yarn"
    factor: PositiveFloat
    original_max_len: Positive
    beta_fast: PositiveFloat = 32.0
    beta_slow: PositiveFloat = 1.0
    attention_factor: PositiveFloat | None = None
    """Multiplies queries and keys; ``None`` means ``0.1 ln(factor) + 1``."""
    truncate: bool = True
    """Round the ends of the ramp to whole pairs."""


ScalingConfig = Annotated[LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling, Field(discriminator="type")]


class RotaryConfig(Config):
    """Queries and keys turned by an angle that grows with the position (Su et al. 2021, arXiv:2104.09864)."""

    type: Literal["rotary"] = "rotary"
    base: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 10000.0
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of each head's features that turn (0.25 in GPT-NeoX)."""
    layout: Literal["halves", "interleaved"] = "halves"
    """Which features make a pair: i and i + K/2, or 2i and 2i + 1."""
    scaling: ScalingConfig | None = None
    max_len: Positive | None = None
    """The length that the model was made for. It limits nothing."""


class T5BucketsConfig(Config):
    """One learned number a head for each bucket of distances, added to the scores (Raffel et al. 2020, section 2.1)."""

    type: Literal["t5"] = "t5"
    buckets: Annotated[int, Field(ge=4)] = 32
    max_distance: Positive = 128
    bidirectional: bool = True


class AlibiConfig(Config):
    """The distance times a fixed slope a head, taken from the scores (Press et al. 2022, arXiv:2108.12409)."""

    type: Literal["alibi"] = "alibi"


BiasConfig = Annotated[T5BucketsConfig | AlibiConfig, Field(discriminator="type")]

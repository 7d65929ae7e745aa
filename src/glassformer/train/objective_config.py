"""What a run may learn, as configured: a union told apart by ``type``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from glassformer.config import Config
from glassformer.schema import type_or

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Noise = Annotated[float, Field(gt=0.0, lt=1.0)]


class Seq2SeqObjective(Config):
    """An encoder–decoder writes each source's target."""

    type: Literal["seq2seq"] = "seq2seq"
    metric: Literal["bleu", "accuracy"] = "bleu"
    """What greedy outputs for the first ``train.eval_lines`` dev sources are scored by; ``accuracy`` is the share that
    equals its target."""


class CausalLMObjective(Config):
    """A decoder predicts each next token (Radford et al. 2018)."""

    type: Literal["causal-lm"] = "causal-lm"
    pack: bool = True
    """Fill rows of ``data.max_len`` tokens with document after document; ``False`` begins each in a row of its own."""


class MaskedLMObjective(Config):
    """An encoder predicts tokens that were masked, or replaced, or kept: 80, 10 and 10 % (Devlin et al. 2019)."""

    type: Literal["masked-lm"] = "masked-lm"
    noise: Noise = 0.15
    """Share of tokens to predict."""
    whole_words: bool = False
    """Take all tokens of a word, or none."""
    pack: bool = True


class SpanCorruptionObjective(Config):
    """An encoder–decoder writes the spans that sentinels stand for (Raffel et al. 2020, section 3.1.4)."""

    type: Literal["span-corruption"] = "span-corruption"
    noise: Noise = 0.15
    """Share of tokens in spans."""
    mean_span: Annotated[float, Field(ge=1.0)] = 3.0
    """Mean tokens of a span."""
    pack: bool = False


class DenoisingObjective(Config):
    """An encoder–decoder writes a text back from one with spans masked and sentences shuffled (Lewis et al. 2020)."""

    type: Literal["denoising"] = "denoising"
    noise: Noise = 0.3
    """Share of tokens in masked spans; each span is one mask, whatever its length."""
    mean_span: Annotated[float, Field(ge=1.0)] = 3.0
    """λ of the Poisson distribution that lengths of spans are drawn from; a span of length 0 inserts a mask."""
    permute_sentences: bool = True
    pack: bool = False


class ClassificationObjective(Config):
    """A model labels whole texts or images. Without a classifier's head it gets one, for the labels in the data."""

    type: Literal["classification"] = "classification"
    pool: Literal["first", "mean", "last"] | None = None
    """What the label is read from; by default the first token, a decoder's last, or as the model's own head has it."""
    hidden: Literal["tanh", "relu"] | None = None
    """Activation of a hidden layer; ``tanh`` goes on with BERT's pooler. By default none, or the head's own."""
    shift: Annotated[int, Field(ge=0)] = 0
    """Images are shifted by up to so many pixels each way, anew every epoch."""


class TokenClassificationObjective(Config):
    """An encoder labels each word, at its first token."""

    type: Literal["token-classification"] = "token-classification"


class ExtractiveQAObjective(Config):
    """An encoder points to the answer of a question in a passage (Rajpurkar et al. 2016; Devlin et al. 2019, 4.2)."""

    type: Literal["extractive-qa"] = "extractive-qa"


DocumentObjectiveConfig = CausalLMObjective | MaskedLMObjective | SpanCorruptionObjective | DenoisingObjective

ObjectiveConfig = Annotated[
    Annotated[Seq2SeqObjective, Tag("seq2seq")]
    | Annotated[CausalLMObjective, Tag("causal-lm")]
    | Annotated[MaskedLMObjective, Tag("masked-lm")]
    | Annotated[SpanCorruptionObjective, Tag("span-corruption")]
    | Annotated[DenoisingObjective, Tag("denoising")]
    | Annotated[ClassificationObjective, Tag("classification")]
    | Annotated[TokenClassificationObjective, Tag("token-classification")]
    | Annotated[ExtractiveQAObjective, Tag("extractive-qa")],
    Discriminator(type_or("seq2seq")),
]

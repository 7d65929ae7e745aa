"""The interface between sentences and what computes: ids in, hypotheses and log-probabilities out. Loads no PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from glassformer.generate.config import Request, SamplingConfig, SearchConfig
from glassformer.generate.hypothesis import Hypothesis

if TYPE_CHECKING:
    import numpy as np

    from glassformer.generate.events import Event
    from glassformer.models.seq2seq import Seq2Seq

ENGINES = ("auto", "native", "torch", "model")
PRECISIONS = ("auto", "fp32", "bf16", "int8")


class Unavailable(Exception):
    """An engine cannot run here, or not this model; the message is the reason, for the end of a sentence."""


class Engine(Protocol):
    """A model, ready to decode and to score on one device.

    Attributes:
        name: which engine it is, one of `ENGINES`.
        precision: what its matrix products run in: fp32, bf16 or int8.
        vocab_size: the number of logits.
        source_limit: most tokens of a source; None when there is no limit.
        target_limit: most tokens of a target, likewise.
        cross_heads: the decoder's layers with cross-attention, and how many heads each has.
        module: the torch module in eval mode, float32, for what only it can do, such as showing its attention.
    """

    @property
    def name(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def source_limit(self) -> int | None: ...
    @property
    def target_limit(self) -> int | None: ...
    @property
    def cross_heads(self) -> Mapping[int, int]: ...
    @property
    def module(self) -> Seq2Seq: ...

    def decode(
        self, sources: Sequence[Sequence[int]], config: SearchConfig | SamplingConfig, request: Request
    ) -> list[list[Hypothesis]]:
        """The targets of each source as `search` finds them, or as `generate` draws them."""

    def groups_itself(self, config: SearchConfig | SamplingConfig, request: Request) -> bool:
        """Whether `decode` takes any number of sources for such a request, in groups of a bounded size of its own."""

    def stream(self, sources: Sequence[Sequence[int]], config: SamplingConfig, request: Request) -> Iterator[Event]:
        """`decode` of a sampling, told token by token."""

    def logprobs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], bos_id: int
    ) -> list[list[float]]:
        """The natural log-probability of each token of each target, which holds its `</s>`, by teacher forcing."""

    def hidden(self, sources: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """The last hidden states of each source, float32 (S, D), of a model that has one stack."""

    def cross_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], heads: Sequence[tuple[int, int]]
    ) -> list[np.ndarray]:
        """What each position of the decoder gives to each source token by teacher forcing, of pairs of layer and head.

        Targets are as the decoder reads them, `<s> …`; of each pair of texts float32 (heads, T, S), rows of which add
        up to 1. Row t is from the step that reads target token t and predicts the next one.
        """

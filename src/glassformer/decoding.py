"""The options by which a translation is chosen, under the names of their flags. Loads no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from glassformer.errors import UserError
from glassformer.generate.config import SamplingConfig, SearchConfig, check_compatible

if TYPE_CHECKING:
    from glassformer.generate.processors import Processor

BEAM_SIZE = 5
LENGTH_PENALTY = 1.5
"""The default α: of 0.6, 1.0, 1.5 and 2.0 the best for the bundled translator on dev, both directions (docs/log.md)."""


@dataclass(frozen=True)
class Decoding:
    """How a translation is chosen: by beam search, or by sampling where an option of sampling is given.

    Attributes:
        beam_size: hypotheses kept a sentence; 1 is greedy search. None is 5, or 1 where `temperature` is given.
        n_best: translations wanted of each line, at most `beam_size`.
        length_penalty: α of the score (`glassformer.generate.search`).
        max_new_tokens: longest translation of a sentence in tokens, `</s>` included, after its forced prefix; None is
            twice the source's length plus ten.
        beam_groups, diversity: of a diverse beam, as `groups` and `diversity` of `SearchConfig`.
        temperature, top_k, top_p, min_p, typical_p: as in `SamplingConfig`; one that is not None asks for sampling, and
            temperature 0 for greedy search.
        seed: the same integer draws the same translations, whatever stands beside a sentence.
        repetition_penalty, no_repeat_ngram: processors, in search as in sampling.
        search, sampling, processors: what these options come to; `sampling` is None for a search.

    Raises:
        UserError: a value out of its range, or two that exclude each other.
    """

    beam_size: int | None = None
    n_best: int = 1
    length_penalty: float = LENGTH_PENALTY
    max_new_tokens: int | None = None
    beam_groups: int = 1
    diversity: float = 0.5
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram: int | None = None
    search: SearchConfig = field(init=False, repr=False)
    sampling: SamplingConfig | None = field(init=False, repr=False)
    processors: tuple[Processor, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        options = (self.temperature, self.top_k, self.top_p, self.min_p, self.typical_p)
        asked = any(option is not None for option in options)
        sampling = self._sampled() if asked else None
        samples = sampling is not None and sampling.temperature > 0
        if samples and self.n_best > 1:
            raise UserError(
                f"--n-best {self.n_best}: sampling draws one translation; set --temperature 0 and --beam-size"
            )
        default = 1 if asked else BEAM_SIZE
        config = SearchConfig(
            beam_size=default if self.beam_size is None else self.beam_size,
            n_best=self.n_best,
            length_penalty=self.length_penalty,
            max_new_tokens=self.max_new_tokens,
            groups=self.beam_groups,
            diversity=self.diversity,
        )
        if sampling is not None:
            check_compatible(config, sampling)
        object.__setattr__(self, "search", config)
        object.__setattr__(self, "sampling", sampling if samples else None)
        object.__setattr__(self, "processors", self._steering())

    def _sampled(self) -> SamplingConfig:
        return SamplingConfig(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k,
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=0.0 if self.min_p is None else self.min_p,
            typical_p=1.0 if self.typical_p is None else self.typical_p,
            seed=self.seed,
            max_new_tokens=self.max_new_tokens,
            length_penalty=self.length_penalty,
        )

    def _steering(self) -> tuple[Processor, ...]:
        penalty, ngram = self.repetition_penalty, self.no_repeat_ngram
        if penalty == 1 and ngram is None:
            return ()  # and nothing of them is loaded
        from glassformer.generate.processors import NoRepeatNgram, RepetitionPenalty

        return (
            *(() if penalty == 1 else (RepetitionPenalty(penalty),)),
            *(() if ngram is None else (NoRepeatNgram(ngram),)),
        )

    @property
    def config(self) -> SearchConfig | SamplingConfig:
        """What an engine is given: the whole beam's search if several translations are wanted, else the best one's.

        Different pieces can spell one text, so only the whole beam leaves n-best lists that are distinct as texts.
        """
        if self.sampling is not None:
            return self.sampling
        return replace(self.search, n_best=self.search.beam_size if self.n_best > 1 else 1)

    @property
    def left_to_right(self) -> SamplingConfig:
        """What an engine is given that is to tell tokens as they come: the sampling, or greedy search."""
        greedy = SamplingConfig(0.0, max_new_tokens=self.max_new_tokens, length_penalty=self.length_penalty)
        return greedy if self.sampling is None else self.sampling


def check_streamed(beam_size: int | None) -> None:
    """Refuses to tell tokens as they come from a beam, whose best hypothesis so far may yet be another one.

    Raises:
        UserError: there is a beam.
    """
    if beam_size not in (None, 1):
        raise UserError(
            f"--stream with --beam-size {beam_size}: a beam may change what it has written; "
            "set --beam-size 1, or leave out --stream"
        )

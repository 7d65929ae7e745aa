"""What decoding is asked for: how to search, how to sample, and what every way of decoding is told besides.

Nothing here imports PyTorch, so that options can be checked, and engines without it asked, before it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glassformer.errors import UserError
from glassformer.generate.constraints import Constraints

if TYPE_CHECKING:
    from glassformer.generate.processors import Processor

MAX_BEAM_SIZE = 512
MAX_SAMPLES = 512


@dataclass(frozen=True)
class SearchConfig:
    """How to search.

    Attributes:
        beam_size: hypotheses kept a sentence, 1 to 512; 1 is greedy search.
        n_best: hypotheses returned a sentence, 1 to `beam_size`.
        length_penalty: α of the score, 0 or more; 0 ranks by the raw sum of log-probabilities.
        max_new_tokens: longest target after its forced prefix, `</s>` included; None means twice the source's length
            plus ten, or more where forced phrases need it.
        groups: groups of a diverse beam, a divisor of `beam_size`; 1 is plain beam search.
        diversity: what a token costs a group for each earlier group that chose it, in nats, 0 or more.

    Raises:
        UserError: a value is out of its range.
    """

    beam_size: int = 1
    n_best: int = 1
    length_penalty: float = 1.0
    max_new_tokens: int | None = None
    groups: int = 1
    diversity: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.beam_size <= MAX_BEAM_SIZE:
            raise UserError(f"--beam-size {self.beam_size}: must be from 1 to {MAX_BEAM_SIZE}")
        if self.n_best < 1:
            raise UserError(f"--n-best {self.n_best}: must be 1 or more")
        if self.n_best > self.beam_size:
            raise UserError(
                f"--n-best {self.n_best} is more than --beam-size {self.beam_size}: "
                f"lower --n-best or set --beam-size {self.n_best}"
            )
        if not 0 <= self.length_penalty <= 100:
            raise UserError(f"--length-penalty {self.length_penalty}: must be from 0 to 100")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise UserError(f"--max-new-tokens {self.max_new_tokens}: must be 1 or more")
        if self.groups < 1 or self.beam_size % self.groups:
            raise UserError(f"--beam-groups {self.groups}: must divide --beam-size {self.beam_size}")
        if not (math.isfinite(self.diversity) and self.diversity >= 0):
            raise UserError(f"--diversity {self.diversity}: must be a finite number, 0 or more")


@dataclass(frozen=True)
class SamplingConfig:
    """How to sample.

    Attributes:
        temperature: 0 is greedy, whatever the filters say; 1 is the model's own distribution.
        top_k: keep the k likeliest tokens; None keeps all.
        top_p: keep the nucleus of this probability, in (0, 1]; 1 keeps all.
        min_p: keep tokens at least so likely, relative to the likeliest, in [0, 1].
        typical_p: keep the locally typical set of this probability, in (0, 1]; 1 keeps all.
        samples: targets drawn of each sentence, 1 to 512.
        seed: any integer gives the same targets each time; None gives other ones.
        max_new_tokens: as in `SearchConfig`.
        length_penalty: α of the score that a target is given; it changes no target.
        warpers: what the filters are, in the order in which they apply: temperature, top-k, top-p, min-p, typical.

    Raises:
        UserError: a value is out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    samples: int = 1
    seed: int | None = None
    max_new_tokens: int | None = None
    length_penalty: float = 1.0
    warpers: tuple[Processor, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or 1e-6 <= self.temperature <= 1e6):  # beyond, float32 holds no quotient
            raise UserError(f"--temperature {self.temperature}: must be 0, which is greedy, or from 1e-6 to 1e6")
        if not 1 <= self.samples <= MAX_SAMPLES:
            raise UserError(f"--samples {self.samples}: must be from 1 to {MAX_SAMPLES}")
        if self.samples > 1 and self.temperature == 0:
            raise UserError(
                f"--samples {self.samples} at --temperature 0 would all be the same: raise --temperature, or search "
                f"with --beam-size {self.samples} --n-best {self.samples}"
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise UserError(f"--max-new-tokens {self.max_new_tokens}: must be 1 or more")
        from glassformer.generate.processors import MinP, Temperature, TopK, TopP, Typical

        filters = (
            *(() if self.top_k is None else (TopK(self.top_k),)),
            TopP(self.top_p),
            MinP(self.min_p),
            Typical(self.typical_p),
        )
        hot = self.temperature > 0
        object.__setattr__(self, "warpers", (Temperature(self.temperature), *filters) if hot else ())


def check_compatible(search: SearchConfig, sampling: SamplingConfig) -> None:
    """Refuses to sample and to search with a beam at once.

    Raises:
        UserError: both are asked for.
    """
    if search.beam_size > 1 and sampling.temperature > 0:
        raise UserError(
            f"--beam-size {search.beam_size} searches but --temperature {sampling.temperature} samples: "
            "set --beam-size 1 or --temperature 0"
        )


@dataclass(frozen=True)
class Request:
    """What a batch's targets are made of, however they are decoded.

    Attributes:
        bos_id: the token that starts a target; None where `start` has read a prompt that the target goes on from.
        eos_id: the token that ends a target.
        banned_ids: tokens that are never produced (padding, `<s>`, language tokens, rows of a padded vocabulary).
        max_length: the model's own limit of target positions; it caps every sentence's length.
        processors: applied to every step's logits, from left to right; a sampling's own warpers come behind them.
        constraints: of each sentence, what its targets must hold; None is nothing. Phrases need a beam.
    """

    bos_id: int | None
    eos_id: int
    banned_ids: Sequence[int] = ()
    max_length: int | None = None
    processors: Sequence[Processor] = ()
    constraints: Sequence[Constraints] | None = None

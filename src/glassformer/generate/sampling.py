"""Drawing tokens: the distribution that sampling draws from, and random numbers that belong to one sentence.

Every random number is a hash of the seed, the sentence (its source and forced prefix), the number of the sample, the
position and a purpose (a counter-based generator, Salmon et al. 2011). So a draw depends on nothing that happens to
other sentences: not on batch mates, their order, or a shrinking batch; nor on what speculation tried in vain.
"""

import hashlib
import math
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from glassformer.errors import UserError
from glassformer.generate.processors import MinP, Processor, Temperature, TopK, TopP, Typical, process
from glassformer.generate.search import SearchConfig

MAX_SAMPLES = 512


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
    warpers: tuple[Processor, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(f"--temperature {self.temperature}: must be a finite number, 0 or more (0 is greedy)")
        if not 1 <= self.samples <= MAX_SAMPLES:
            raise UserError(f"--samples {self.samples}: must be from 1 to {MAX_SAMPLES}")
        if self.samples > 1 and self.temperature == 0:
            raise UserError(
                f"--samples {self.samples} at --temperature 0 would all be the same: raise --temperature, or search "
                f"with --beam-size {self.samples} --n-best {self.samples}"
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise UserError(f"--max-new-tokens {self.max_new_tokens}: must be 1 or more")
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


class Purpose(IntEnum):
    """What a random number is for; each purpose has its own at every position."""

    DRAW = 0
    DRAFT = 1
    ACCEPT = 2
    REPLACE = 3


class Randomness:
    """The random numbers of one sample of one sentence."""

    def __init__(self, seed: int, source: Sequence[int], prefix: Sequence[int], sample: int) -> None:
        text = f"{seed}|{','.join(map(str, source))}|{','.join(map(str, prefix))}|{sample}"
        self._key = hashlib.blake2b(text.encode(), digest_size=32).digest()

    def uniform(self, position: int, purpose: Purpose = Purpose.DRAW) -> float:
        """A number in [0, 1), always the same one for the same arguments."""
        counter = struct.pack("<QB", position, purpose)
        digest = hashlib.blake2b(counter, digest_size=8, key=self._key).digest()
        # 52 bits, so that the product with a sum of probabilities rounds to less than the sum.
        return (int.from_bytes(digest, "little") >> 12) * 2.0**-52


def resolved_seed(seed: int | None) -> int:
    """The seed itself, or a fresh one."""
    return secrets.randbits(63) if seed is None else seed


def distribution(logits_NV: Tensor, ids_NT: Tensor, warpers: Sequence[Processor]) -> Tensor:
    """The probabilities that are drawn from, in float64: one-hot at the best token when there are no warpers.

    A row in which everything is forbidden has no probability at all.
    """
    if not warpers:
        best_N = logits_NV.argmax(1)
        probs_NV = torch.zeros_like(logits_NV, dtype=torch.float64).scatter(1, best_N.unsqueeze(1), 1.0)
    else:
        probs_NV = process(warpers, ids_NT, logits_NV).double().softmax(1)
    return probs_NV.masked_fill(logits_NV.isneginf(), 0.0)


def draw(probs_NV: Tensor, uniform_N: Sequence[float]) -> Tensor:
    """One token of each row, by inverting the cumulative distribution; probabilities need not sum to 1.

    Returns:
        Ids (N,); a token of probability 0 is never among them unless the whole row is 0.
    """
    cumulative_NV = probs_NV.cumsum(1)
    at_N1 = torch.tensor(uniform_N, dtype=torch.float64, device=probs_NV.device).unsqueeze(1) * cumulative_NV[:, -1:]
    return torch.searchsorted(cumulative_NV, at_N1, right=True).squeeze(1).clamp(max=probs_NV.shape[1] - 1)

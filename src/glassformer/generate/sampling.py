"""Drawing tokens: the distribution that sampling draws from, and random numbers that belong to one sentence.

Every random number is a hash of the seed, the sentence (its source and forced prefix), the number of the sample, the
position and a purpose (a counter-based generator, Salmon et al. 2011). So a draw depends on nothing that happens to
other sentences: not on batch mates, their order, or a shrinking batch; nor on what speculation tried in vain.
"""

import hashlib
import secrets
import struct
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from glassformer.generate.processors import Processor, process


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

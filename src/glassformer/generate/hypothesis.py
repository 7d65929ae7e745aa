"""A target and its score."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """One target.

    Attributes:
        ids: its tokens, a forced prefix included, without `<s>` and `</s>`.
        score: `normalised_score` of `token_logprobs`.
        token_logprobs: natural log-probability of every token of `ids`, then of `</s>` if it was produced: the model's
            own, whatever processors and constraints did to the choice, so that teacher forcing recomputes them.
        finished: whether `</s>` was produced; if not, the length limit cut the target, or no token was allowed.
    """

    ids: tuple[int, ...]
    score: float
    token_logprobs: tuple[float, ...]
    finished: bool


def length_penalty(length: int, alpha: float) -> float:
    """lp(length) = ((5 + length) / 6) ** α (Wu et al. 2016, equation 14)."""
    return float(((5 + length) / 6) ** alpha)


def normalised_score(token_logprobs: Sequence[float], alpha: float) -> float:
    """The score of a target from its token log-probabilities, `</s>`'s included."""
    return math.fsum(token_logprobs) / length_penalty(len(token_logprobs), alpha)

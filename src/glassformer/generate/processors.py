"""Processors: pure functions that change the logits before a token is chosen.

A processor takes the target tokens so far, `ids_NT` (a forced prefix included, `<s>` and the source not: a translation
may well repeat its source), and the logits `logits_NV` of what comes next, and returns new logits; -inf forbids a
token. A row's result depends on that row alone. Ranges are checked when a processor is made.

Only methods of tensors are used, not PyTorch itself, so that an engine without it can check its options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassformer.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Processor = Callable[["Tensor", "Tensor"], "Tensor"]
AllowedTokens = Callable[[tuple[int, ...]], Collection[int] | None]


def process(processors: Sequence[Processor], ids_NT: Tensor, logits_NV: Tensor) -> Tensor:
    """Applies processors from left to right."""
    for processor in processors:
        logits_NV = processor(ids_NT, logits_NV)
    return logits_NV


@dataclass(frozen=True)
class Temperature:
    """Divides by τ > 0: below 1 sharpens, above 1 flattens. (τ = 0 is greedy: a matter of choice, not of logits.)"""

    temperature: float

    def __post_init__(self) -> None:
        _require(0 < self.temperature < math.inf, "--temperature", self.temperature, "a finite number above 0")

    def __call__(self, ids_NT: Tensor, logits_NV: Tensor) -> Tensor:
        # Relative to the best, or a tiny τ would overflow; softmax sees only differences. An all -inf row stays one.
        best_N1 = logits_NV.amax(1, keepdim=True).nan_to_num(neginf=0.0)
        return (logits_NV - best_N1) / self.temperature


@dataclass(frozen=True)
class TopK:
    """Keeps the k likeliest tokens (Fan et al. 2018); ties with the k-th stay too."""

    k: int

    def __post_init__(self) -> None:
        _require(self.k >= 1, "--top-k", self.k, "1 or more")

    def __call__(self, ids_NT: Tensor, logits_NV: Tensor) -> Tensor:
        least_N1 = logits_NV.topk(min(self.k, logits_NV.shape[1])).values[:, -1:]
        return logits_NV.masked_fill(logits_NV < least_N1, -math.inf)


@dataclass(frozen=True)
class TopP:
    """Keeps the fewest likeliest tokens whose probabilities reach p (Holtzman et al. 2020): the nucleus, at least one.

    The token that crosses p belongs to it.
    """

    p: float

    def __post_init__(self) -> None:
        _require(0 < self.p <= 1, "--top-p", self.p, "more than 0 and at most 1")

    def __call__(self, ids_NT: Tensor, logits_NV: Tensor) -> Tensor:
        if self.p == 1:
            return logits_NV
        probs_NV = logits_NV.double().softmax(1)
        return _keep_mass(logits_NV, probs_NV, probs_NV.sort(dim=1, descending=True, stable=True).indices, self.p)


@dataclass(frozen=True)
class MinP:
    """Keeps tokens at least p times as likely as the likeliest (Nguyen et al. 2024)."""

    p: float

    def __post_init__(self) -> None:
        _require(0 <= self.p <= 1, "--min-p", self.p, "from 0 to 1")

    def __call__(self, ids_NT: Tensor, logits_NV: Tensor) -> Tensor:
        if self.p == 0:
            return logits_NV
        least_N1 = logits_NV.amax(1, keepdim=True) + math.log(self.p)
        return logits_NV.masked_fill(logits_NV < least_N1, -math.inf)


@dataclass(frozen=True)
class Typical:
    """Keeps the tokens whose surprise is nearest to what is expected (Meister et al. 2023, equation 10).

    Ordered by |−log p(y) − H|, H being the entropy, the first ones whose probabilities reach `p`; at least one.
    """

    p: float

    def __post_init__(self) -> None:
        _require(0 < self.p <= 1, "--typical-p", self.p, "more than 0 and at most 1")

    def __call__(self, ids_NT: Tensor, logits_NV: Tensor) -> Tensor:
        if self.p == 1:
            return logits_NV
        logprobs_NV = logits_NV.double().log_softmax(1)
        probs_NV = logprobs_NV.exp()
        entropy_N1 = -(probs_NV * logprobs_NV).nan_to_num(nan=0.0).sum(1, keepdim=True)
        distance_NV = (-logprobs_NV - entropy_N1).abs()
        return _keep_mass(logits_NV, probs_NV, distance_NV.sort(dim=1, stable=True).indices, self.p)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Divides a positive logit, multiplies a negative one, by θ where the token occurs already (Keskar et al. 2019).

    Section 4.1 of "CTRL"; the negative case is the usual mending, without which θ would reward such tokens. θ = 1
    changes nothing; below 1 repetition is encouraged.
    """

    penalty: float

    def __post_init__(self) -> None:
        _require(0 < self.penalty < math.inf, "--repetition-penalty", self.penalty, "a finite number above 0")

    def __call__(self, ids_NT: Tensor, logits_NV: Tensor) -> Tensor:
        seen_NT = logits_NV.gather(1, ids_NT)
        penalised_NT = (seen_NT / self.penalty).where(seen_NT > 0, seen_NT * self.penalty)
        return logits_NV.scatter(1, ids_NT, penalised_NT)


@dataclass(frozen=True)
class NoRepeatNgram:
    """Forbids the token that would write an n-gram of the target a second time (Paulus et al. 2018, section 2.5)."""

    n: int

    def __post_init__(self) -> None:
        _require(self.n >= 1, "--no-repeat-ngram", self.n, "1 or more")

    def __call__(self, ids_NT: Tensor, logits_NV: Tensor) -> Tensor:
        length = ids_NT.shape[1]
        if length < self.n:
            return logits_NV
        windows_NWn = ids_NT.unfold(1, self.n, 1)
        tail_N1n = ids_NT[:, None, length - self.n + 1 :]
        row, place = (windows_NWn[:, :, :-1] == tail_N1n).all(2).nonzero(as_tuple=True)
        return logits_NV.index_put((row, windows_NWn[row, place, -1]), logits_NV.new_tensor(-math.inf))


@dataclass(frozen=True)
class BannedWords:
    """Forbids the token that would complete a banned sequence of ids.

    A word has as many sequences as the tokenizer has ways to spell it (with and without the leading space, upper and
    lower case): give each.
    """

    words: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for word in self.words:
            _require(len(word) > 0, "--banned-words", list(word), "sequences of one token or more")

    def __call__(self, ids_NT: Tensor, logits_NV: Tensor) -> Tensor:
        logits_NV = logits_NV.clone()
        length = ids_NT.shape[1]
        for *before, last in self.words:
            if len(before) <= length:
                ends_N = (ids_NT[:, length - len(before) :] == ids_NT.new_tensor(before)).all(1)
                logits_NV[ends_N, last] = -math.inf
        return logits_NV


@dataclass(frozen=True)
class Allowed:
    """Forbids what a function does not allow: a grammar, a list of words, a format.

    Attributes:
        function: takes the target so far and gives the ids that may follow (`</s>` among them where it may end), or
            None for all. A target that nothing may follow ends there, unfinished.
    """

    function: AllowedTokens

    def __call__(self, ids_NT: Tensor, logits_NV: Tensor) -> Tensor:
        result_NV = logits_NV.clone()
        for row, ids in enumerate(ids_NT.tolist()):
            allowed = self.function(tuple(ids))
            if allowed is not None:
                index = ids_NT.new_tensor(sorted(allowed))
                result_NV[row] = -math.inf
                result_NV[row, index] = logits_NV[row, index]
        return result_NV


def _keep_mass(logits_NV: Tensor, probs_NV: Tensor, order_NV: Tensor, p: float) -> Tensor:
    """Forbids all but the first tokens in `order_NV` whose probabilities sum to `p`."""
    sorted_NV = probs_NV.gather(1, order_NV)
    before_NV = sorted_NV.cumsum(1) - sorted_NV
    drop_NV = before_NV >= p
    drop_NV[:, 0] = False
    return logits_NV.masked_fill(drop_NV.new_zeros(drop_NV.shape).scatter(1, order_NV, drop_NV), -math.inf)


def _require(holds: bool, flag: str, value: object, limit: str) -> None:
    if not holds:
        raise UserError(f"{flag} {value}: must be {limit}")

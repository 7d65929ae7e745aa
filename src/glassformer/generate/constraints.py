"""What a target must hold: a forced prefix, and phrases that must occur somewhere in it.

Beam search meets the phrases by dynamic beam allocation (Post & Vilar 2018, arXiv:1804.06609): hypotheses are banked by
how many tokens their missing phrases still cost, and the slots are shared out over the banks, since a hypothesis that
has just written a forced word is less likely than those that have not and would lose against them. What the paper
leaves to chance is held here: a hypothesis from which the phrases no longer fit under the length limit is dropped, and
`</s>` waits for all of them, so whatever fits is written.

A constraint is stronger than a processor or a list of banned ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.generate.config import Request

# An exact cost tries the phrases in every order; above this many they are counted one after another.
_EXACT = 7


@dataclass(frozen=True)
class Constraints:
    """What the target of one sentence must hold.

    Attributes:
        prefix: the tokens it begins with. They count in its length and its score like any others.
        phrases: sequences of tokens that must each occur in it (in the prefix, too), in any order; they may overlap.

    Raises:
        UserError: a phrase is empty.
    """

    prefix: tuple[int, ...] = ()
    phrases: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not all(self.phrases):
            raise UserError("--glossary: a forced term has no tokens")


class Progress(NamedTuple):
    """Where a target stands.

    Attributes:
        missing: the phrases that have not occurred yet.
        begun: the longest end of the target that is the beginning of one of them.
    """

    missing: frozenset[tuple[int, ...]]
    begun: tuple[int, ...]


class Phrases:
    """The automaton of one sentence's phrases, over `Progress`; empty phrases make one that is always done."""

    def __init__(self, phrases: Sequence[tuple[int, ...]]) -> None:
        distinct = frozenset(phrases)
        # A phrase inside another one is met with it.
        self._phrases = frozenset(p for p in distinct if not any(p != q and _inside(p, q) for q in distinct))
        self.cost = cache(self._cost)

    def start(self, prefix: Sequence[int] = ()) -> Progress:
        """The progress that a prefix makes."""
        progress = Progress(self._phrases, ())
        for token in prefix:
            progress = self.advance(progress, token)
        return progress

    def advance(self, progress: Progress, token: int) -> Progress:
        """The progress after one more token."""
        if not progress.missing:
            return progress
        text = (*progress.begun, token)
        missing = frozenset(p for p in progress.missing if text[-len(p) :] != p)
        return Progress(missing, text[len(text) - max((_overlap(text, p) for p in missing), default=0) :])

    def useful(self, progress: Progress) -> list[int]:
        """The tokens that begin or continue a missing phrase, in ascending order."""
        begun = progress.begun
        ends = [begun[i:] for i in range(len(begun) + 1)]
        return sorted({p[len(end)] for p in progress.missing for end in ends if len(end) < len(p) and _starts(p, end)})

    def _cost(self, progress: Progress) -> int:
        """The fewest tokens that complete all missing phrases; at least one useful token lowers it by one.

        As none lies inside another, the best completion writes them in some order, each overlapping what stands before
        as far as it can. Above `_EXACT` phrases, only what is begun is spared: an upper bound.
        """
        missing, begun = progress
        if not missing:
            return 0
        if len(missing) > _EXACT:
            return sum(map(len, missing)) - max(_overlap(begun, p) for p in missing)
        return min(len(p) - _overlap(begun, p) + self.cost(Progress(missing - {p}, p)) for p in missing)


def check_constraints(request: Request, sentences: int) -> list[Constraints]:
    """One `Constraints` for each sentence.

    Raises:
        ValueError: there are not as many as sentences.
        UserError: a constraint holds `</s>`.
    """
    if request.constraints is None:
        return [Constraints()] * sentences
    if len(request.constraints) != sentences:
        raise ValueError(f"{len(request.constraints)} constraints for {sentences} sentences")
    for number, constraint in enumerate(request.constraints, 1):
        for ids in (constraint.prefix, *constraint.phrases):
            if request.eos_id in ids:
                raise UserError(f"sentence {number}: its forced text holds </s>, after which nothing can follow")
    return list(request.constraints)


def refuse_phrases(constraints: Sequence[Constraints]) -> None:
    """Refuses forced phrases where there is no beam to bank.

    Raises:
        UserError: there is one.
    """
    if any(constraint.phrases for constraint in constraints):
        raise UserError("--glossary: forced terms need beam search; set --temperature 0 and --beam-size 4 or more")


def limits(
    source_lengths: Sequence[int],
    constraints: Sequence[Constraints],
    max_new_tokens: int | None,
    max_length: int | None,
) -> list[int]:
    """The longest target of each sentence, prefix and `</s>` included.

    Args:
        max_new_tokens: tokens after the prefix; None means twice the source's length plus ten, or what the missing
            phrases and `</s>` take if that is more.
        max_length: the model's own limit of target positions.

    Raises:
        UserError: a prefix or phrases do not fit.
    """
    result = []
    for number, (source_length, constraint) in enumerate(zip(source_lengths, constraints, strict=True), 1):
        phrases = Phrases(constraint.phrases)
        needed = phrases.cost(phrases.start(constraint.prefix))
        new = max(2 * source_length + 10, needed + 1) if max_new_tokens is None else max_new_tokens
        limit = len(constraint.prefix) + new
        flag = f"--max-new-tokens {max_new_tokens}"
        if max_length is not None and max_length < limit:
            limit, flag = max_length, f"the model's limit of {max_length} tokens"
        if len(constraint.prefix) >= limit:
            raise UserError(
                f"sentence {number}: its forced prefix of {len(constraint.prefix)} tokens leaves no room under {flag}"
            )
        if len(constraint.prefix) + needed > limit:
            raise UserError(
                f"sentence {number}: its forced terms take {needed} tokens, but {flag} "
                f"leaves {limit - len(constraint.prefix)}; drop some, or raise --max-new-tokens"
            )
        result.append(limit)
    return result


def allocate(scores: Sequence[float], costs: Sequence[int], slots: int) -> list[int]:
    """Shares slots out over banks of equal cost: the best of each bank in turn, from the cheapest bank on.

    Args:
        scores: of each candidate; -inf is no candidate.
        costs: what each candidate's missing phrases still cost.
        slots: how many to choose.

    Returns:
        The indices of the chosen, at most `slots`.
    """
    banks: dict[int, list[int]] = {}
    for index in sorted(range(len(scores)), key=lambda i: -scores[i]):
        if scores[index] > -math.inf:
            banks.setdefault(costs[index], []).append(index)
    rounds = sorted((turn, cost, index) for cost, bank in banks.items() for turn, index in enumerate(bank))
    return [index for _, _, index in rounds[:slots]]


def _overlap(text: Sequence[int], phrase: tuple[int, ...]) -> int:
    """Length of the longest end of `text` that is a beginning of `phrase`, but not all of it."""
    text = tuple(text)
    return next(n for n in range(min(len(text), len(phrase) - 1), -1, -1) if text[len(text) - n :] == phrase[:n])


def _starts(phrase: tuple[int, ...], beginning: tuple[int, ...]) -> bool:
    return phrase[: len(beginning)] == beginning


def _inside(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    return any(_starts(large[i:], small) for i in range(len(large) - len(small) + 1))

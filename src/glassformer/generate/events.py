"""What decoding from left to right tells: each token as it is chosen, and each target's end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from glassformer.generate.hypothesis import Hypothesis, normalised_score


@dataclass(frozen=True)
class Token:
    """One token was written.

    Attributes:
        sentence: index in the batch.
        sample: which of the sentence's samples.
        id: the token; `</s>` too.
        logprob: the model's own natural log-probability of it.
        forced: whether a prefix forced it.
    """

    sentence: int
    sample: int
    id: int
    logprob: float
    forced: bool


@dataclass(frozen=True)
class End:
    """A target is complete.

    Attributes:
        reason: `</s>` was written, the length limit is reached, or no token was allowed.
    """

    sentence: int
    sample: int
    reason: Literal["eos", "limit", "stuck"]


Event = Token | End


def collect(events: Iterable[Event], length_penalty: float = 1.0) -> list[list[Hypothesis]]:
    """The targets that events tell: of each sentence its samples, in their order.

    Args:
        events: of a whole decoding.
        length_penalty: α of the scores.
    """
    written: dict[tuple[int, int], list[Token]] = {}
    ends: dict[tuple[int, int], str] = {}
    for event in events:
        key = (event.sentence, event.sample)
        tokens = written.setdefault(key, [])
        if isinstance(event, Token):
            tokens.append(event)
        else:
            ends[key] = event.reason
    targets: list[list[Hypothesis]] = []
    for (sentence, _), tokens in sorted(written.items(), key=lambda item: item[0]):
        if sentence == len(targets):
            targets.append([])
        finished = ends[sentence, len(targets[sentence])] == "eos"
        logprobs = tuple(token.logprob for token in tokens)
        ids = tuple(token.id for token in (tokens[:-1] if finished else tokens))
        targets[sentence].append(Hypothesis(ids, normalised_score(logprobs, length_penalty), logprobs, finished))
    return targets

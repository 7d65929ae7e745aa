"""Speculative decoding: a cheap draft proposes several tokens, the model judges them all in one pass.

Leviathan et al. 2023 ("Fast Inference from Transformers via Speculative Decoding", arXiv:2211.17192), algorithm 1. With
p the model's distribution (after processors and filters) and q the draft's, a proposal x is accepted with probability
min(1, p(x) / q(x)); at the first refusal the token is drawn from max(p − q, 0), normalised, and the rest is forgotten.
Whatever the draft, the tokens then follow p exactly (appendix A.1); a bad draft costs time alone. At temperature 0,
p is one-hot, and the tokens are those of greedy decoding, one for one.

Sentences accept different numbers of tokens, so they are decoded one after another.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol

import torch
from torch import Tensor

from glassformer.errors import UserError
from glassformer.generate.config import Request, SamplingConfig
from glassformer.generate.constraints import check_constraints, limits, refuse_phrases
from glassformer.generate.events import End, Event, Token
from glassformer.generate.opening import lengths, unpadded
from glassformer.generate.processors import process
from glassformer.generate.protocol import Decodable, StateT
from glassformer.generate.sampling import Purpose, Randomness, distribution, draw, resolved_seed

MAX_LOOKAHEAD = 64
Judge = Callable[[Sequence[int], Tensor], Tensor]


class Proposals(NamedTuple):
    """What a draft expects next.

    Attributes:
        tokens: the ids, first to last.
        probs_TV: the distribution that each was drawn from; None if they were not drawn but picked.
    """

    tokens: list[int]
    probs_TV: Tensor | None


class Guesser(Protocol):
    """A draft at work on one target."""

    def propose(self, ids: Sequence[int], count: int, random: Randomness) -> Proposals:
        """At most `count` tokens that may follow `ids` (which no longer need extend those of the last call)."""


class Draft(Protocol):
    """A source of proposals."""

    def begin(self, source_1S: Tensor, judge: Judge, bos_id: int, eos_id: int) -> Guesser:
        """Starts on one source; `judge` turns (ids, logits_V) into the probabilities that would be drawn from."""


@dataclass(frozen=True)
class DraftModel(Generic[StateT]):
    """A smaller model with the same vocabulary, which draws from its own distribution, equally steered."""

    model: Decodable[StateT]

    def begin(self, source_1S: Tensor, judge: Judge, bos_id: int, eos_id: int) -> Guesser:
        return _ModelGuesser(self.model, source_1S, judge, bos_id, eos_id)


@dataclass(frozen=True)
class PromptLookup:
    """Proposes what followed the last words where they stood before, in the source or the target (Saxena 2023).

    Attributes:
        max_ngram: the longest run of last tokens that is looked up; shorter ones are tried if it is not found.
    """

    max_ngram: int = 3

    def __post_init__(self) -> None:
        if self.max_ngram < 1:
            raise UserError(f"--lookup-ngram {self.max_ngram}: must be 1 or more")

    def begin(self, source_1S: Tensor, judge: Judge, bos_id: int, eos_id: int) -> Guesser:
        return _LookupGuesser(source_1S[0].tolist(), self.max_ngram)


@torch.no_grad()
def stream_speculative(
    model: Decodable[StateT],
    source_BS: Tensor,
    source_mask_BS: Tensor | None,
    config: SamplingConfig,
    request: Request,
    *,
    draft: Draft,
    lookahead: int = 4,
) -> Iterator[Event]:
    """`stream`, faster: the same events, sentence after sentence, with tokens of the same distribution.

    At temperature 0 they are the same tokens. Otherwise a seed gives other ones than it gives `stream`.

    Args:
        draft: what proposes.
        lookahead: tokens proposed at a time, 1 to 64.

    Raises:
        UserError: as `stream`; a lookahead out of its range.
        FloatingPointError: the model gave NaN logits.
    """
    if not 1 <= lookahead <= MAX_LOOKAHEAD:
        raise UserError(f"--lookahead {lookahead}: must be from 1 to {MAX_LOOKAHEAD}")
    bos_id, eos_id, constraints = request.bos_id, request.eos_id, check_constraints(request, len(source_BS))
    if bos_id is None:
        raise UserError("drafts are for an encoder–decoder, whose targets begin with a token of their own")
    refuse_phrases(constraints)
    lengthiest = limits(lengths(source_BS, source_mask_BS), constraints, config.max_new_tokens, request.max_length)
    seed, device = resolved_seed(config.seed), source_BS.device
    banned = torch.tensor(sorted(set(request.banned_ids)), dtype=torch.long, device=device)

    def judge(ids: Sequence[int], logits_V: Tensor) -> Tensor:
        ids_1T = torch.tensor([list(ids)], dtype=torch.long, device=device)
        logits_1V = logits_V.float().unsqueeze(0)
        if logits_1V.isnan().any():
            raise FloatingPointError(f"the model gave NaN logits at target position {len(ids) + 1}")
        steered_1V = process(request.processors, ids_1T, logits_1V.index_fill(1, banned, -math.inf))
        probs_V = distribution(steered_1V, ids_1T, config.warpers)[0]
        return probs_V / probs_V.sum().clamp(min=torch.finfo(probs_V.dtype).tiny)

    for sentence, source in enumerate(unpadded(source_BS, source_mask_BS)):
        source_1S = torch.tensor([source], device=device)
        prefix = constraints[sentence].prefix
        for sample in range(config.samples):
            random = Randomness(seed, source, prefix, sample)
            guesser = draft.begin(source_1S, judge, bos_id, eos_id)
            target = _Target(model, source_1S, prefix, lengthiest[sentence], lookahead, bos_id, eos_id)
            for event in target.write(guesser, judge, random):
                if isinstance(event, _Step):
                    yield Token(sentence, sample, event.token, event.logprob, event.forced)
                    if event.token == eos_id or event.length == lengthiest[sentence]:
                        yield End(sentence, sample, "eos" if event.token == eos_id else "limit")
                else:
                    yield End(sentence, sample, "stuck")


class _Step(NamedTuple):
    token: int
    logprob: float
    forced: bool
    length: int


class _Target(Generic[StateT]):
    """One target that is being written."""

    def __init__(
        self,
        model: Decodable[StateT],
        source_1S: Tensor,
        prefix: tuple[int, ...],
        limit: int,
        lookahead: int,
        bos_id: int,
        eos_id: int,
    ) -> None:
        self.model, self.state, self.device = model, model.start(source_1S), source_1S.device
        self.prefix, self.limit, self.lookahead, self.bos_id, self.eos_id = prefix, limit, lookahead, bos_id, eos_id
        self.ids: list[int] = []

    def write(self, guesser: Guesser, judge: Judge, random: Randomness) -> Iterator[_Step | None]:
        """The target's tokens, then None if no token is allowed before it is complete."""
        known = list(self.prefix)
        while True:
            # The last token is still to come when the proposals are all accepted, hence one less than the room.
            guess = guesser.propose(known, min(self.lookahead, self.limit - len(known) - 1), random)
            read = [self.bos_id, *known, *guess.tokens][self.state.length :]
            first = self.state.length
            logits_TV = self.model.step(torch.tensor([read], device=self.device), self.state, last_only=False)[0]
            for place in range(len(self.ids), len(known) + len(guess.tokens) + 1):
                logits_V = logits_TV[place - first]
                if place < len(self.prefix):
                    yield self._append(self.prefix[place], logits_V, forced=True)
                    continue
                probs_V = judge(self.ids, logits_V)
                if not probs_V.any():
                    yield None
                    return
                index = place - len(known)
                token, accepted = _judged(probs_V, guess, index, place, random)
                yield self._append(token, logits_V, forced=False)
                if token == self.eos_id or len(self.ids) == self.limit:
                    return
                if not accepted:
                    break
            known = list(self.ids)
            self.state.truncate(min(self.state.length, len(known)))

    def _append(self, token: int, logits_V: Tensor, *, forced: bool) -> _Step:
        self.ids.append(token)
        logits_V = logits_V.float()
        return _Step(token, float(logits_V[token] - logits_V.logsumexp(0)), forced, len(self.ids))


def _judged(probs_V: Tensor, guess: Proposals, index: int, position: int, random: Randomness) -> tuple[int, bool]:
    """The token at a position, and whether it is the one that was proposed (algorithm 1, and its last line)."""
    if index == len(guess.tokens):
        return _drawn(probs_V, random.uniform(position)), False
    token = guess.tokens[index]
    if guess.probs_TV is None:
        draft_V = torch.zeros_like(probs_V).index_fill(0, torch.tensor(token, device=probs_V.device), 1.0)
    else:
        draft_V = guess.probs_TV[index]
    if random.uniform(position, Purpose.ACCEPT) * float(draft_V[token]) < float(probs_V[token]):
        return token, True
    return _drawn((probs_V - draft_V).clamp(min=0), random.uniform(position, Purpose.REPLACE)), False


def _drawn(probs_V: Tensor, uniform: float) -> int:
    return int(draw(probs_V.unsqueeze(0), [uniform]))


class _ModelGuesser(Generic[StateT]):
    def __init__(self, model: Decodable[StateT], source_1S: Tensor, judge: Judge, bos_id: int, eos_id: int) -> None:
        self.model, self.state, self.judge = model, model.start(source_1S), judge
        self.bos_id, self.eos_id, self.device = bos_id, eos_id, source_1S.device
        self.read: list[int] = []

    def propose(self, ids: Sequence[int], count: int, random: Randomness) -> Proposals:
        tokens: list[int] = []
        probs: list[Tensor] = []
        while len(tokens) < count and self.eos_id not in tokens:
            logits_V = self._logits([self.bos_id, *ids, *tokens])
            probs_V = self.judge([*ids, *tokens], logits_V)
            if not probs_V.any():
                break
            probs.append(probs_V)
            tokens.append(_drawn(probs_V, random.uniform(len(ids) + len(tokens), Purpose.DRAFT)))
        return Proposals(tokens, torch.stack(probs) if probs else None)

    def _logits(self, wanted: list[int]) -> Tensor:
        """What follows the wanted tokens; only those that the state does not hold yet are read."""
        held = next((i for i, (a, b) in enumerate(zip(self.read, wanted, strict=False)) if a != b), len(self.read))
        held = min(held, len(wanted) - 1)
        self.state.truncate(held)
        self.read = wanted
        return self.model.step(torch.tensor([wanted[held:]], device=self.device), self.state)[0]


class _LookupGuesser:
    def __init__(self, source: list[int], max_ngram: int) -> None:
        self.source, self.max_ngram = source, max_ngram

    def propose(self, ids: Sequence[int], count: int, random: Randomness) -> Proposals:
        text = [*self.source, *ids]
        for n in range(min(self.max_ngram, len(ids)), 0, -1):
            last = text[len(text) - n :]
            for at in range(len(text) - n - 1, -1, -1):
                if text[at : at + n] == last:
                    return Proposals(text[at + n : at + n + count], None)
        return Proposals([], None)

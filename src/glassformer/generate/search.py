"""Greedy and beam search over the `Decodable` protocol.

The score of a hypothesis y is

    score(y) = Σ_t log p(y_t | y_<t, x) / lp(|y|),    lp(n) = ((5 + n) / 6) ** α

(Wu et al. 2016, "Google's Neural Machine Translation System", equation 14, without the coverage term), where |y| counts
`</s>`. Log-probabilities are those of the model's whole softmax: a banned token is never chosen, but it keeps its
probability, so that a printed score can be recomputed by teacher forcing.

A sentence has `beam_size` slots. A hypothesis that ends keeps its slot and the others share what is left, so a beam of
one is greedy search by construction. A sentence leaves the batch only when no hypothesis that is still growing can
enter its n-best.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from glassformer.errors import UserError

MAX_BEAM_SIZE = 512


class DecodeState(Protocol):
    """Everything that one decoding remembers between steps."""

    length: int

    def select(self, index_N: Tensor) -> None:
        """Makes row i the old row `index_N[i]`, in place: expands, reorders and shrinks the batch."""


StateT = TypeVar("StateT", bound=DecodeState)


class Decodable(Protocol[StateT]):
    """A model that search can drive."""

    def start(self, source_BS: Tensor, source_mask_BS: Tensor | None = None) -> StateT:
        """Encodes the sources once and returns a state of B rows."""

    def step(self, tokens_BT: Tensor, state: StateT) -> Tensor:
        """Appends the tokens to the state and returns the logits (B, V) of the last position."""


@dataclass(frozen=True)
class SearchConfig:
    """How to search.

    Attributes:
        beam_size: hypotheses kept a sentence, 1 to 512; 1 is greedy search.
        n_best: hypotheses returned a sentence, 1 to `beam_size`.
        length_penalty: α of the score, 0 or more; 0 ranks by the raw sum of log-probabilities.
        max_new_tokens: longest target, `</s>` included; None means twice the source's length plus ten.

    Raises:
        UserError: a value is out of its range.
    """

    beam_size: int = 1
    n_best: int = 1
    length_penalty: float = 1.0
    max_new_tokens: int | None = None

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
        if not (math.isfinite(self.length_penalty) and self.length_penalty >= 0):
            raise UserError(f"--length-penalty {self.length_penalty}: must be a finite number, 0 or more")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise UserError(f"--max-new-tokens {self.max_new_tokens}: must be 1 or more")


@dataclass(frozen=True)
class Hypothesis:
    """One target.

    Attributes:
        ids: its tokens, without `<s>` and `</s>`.
        score: the normalised score of the module's docstring.
        token_logprobs: natural log-probability of every token of `ids`, then of `</s>` if it was produced.
        finished: whether `</s>` was produced; if not, the length limit cut the target.
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


class _Pool:
    """The hypotheses of one sentence that grow no more."""

    def __init__(self, limit: int, config: SearchConfig) -> None:
        self.limit = limit
        self.config = config
        self.hypotheses: list[Hypothesis] = []

    def add(self, tokens: list[int], logprobs: list[float], finished: bool) -> None:
        score = normalised_score(logprobs, self.config.length_penalty)
        ids = tuple(tokens[:-1] if finished else tokens)
        self.hypotheses.append(Hypothesis(ids, score, tuple(logprobs), finished))

    def best(self) -> list[Hypothesis]:
        return sorted(self.hypotheses, key=lambda h: -h.score)[: self.config.n_best]

    def settled(self, best_live_sum: float) -> bool:
        """Whether no descendant of the best live hypothesis can enter the n-best.

        Log-probabilities are at most 0, so a sum only falls, and for α ≥ 0 dividing by lp at the length limit is the
        kindest that can happen to it.
        """
        if best_live_sum == -math.inf:
            return True
        if len(self.hypotheses) < self.config.n_best:
            return False
        return best_live_sum / length_penalty(self.limit, self.config.length_penalty) <= self.best()[-1].score


@torch.no_grad()
def search(
    model: Decodable[StateT],
    source_BS: Tensor,
    source_mask_BS: Tensor | None,
    config: SearchConfig,
    *,
    bos_id: int,
    eos_id: int,
    banned_ids: Sequence[int] = (),
    max_length: int | None = None,
) -> list[list[Hypothesis]]:
    """Finds the best targets of a batch of sources; put the model in eval mode first.

    Args:
        model: what to decode with.
        source_BS: source ids, padded at the right.
        source_mask_BS: True at real tokens; None when nothing is padding.
        config: how to search.
        bos_id: the token that starts a target.
        eos_id: the token that ends a target.
        banned_ids: tokens that are never produced (padding, `<s>`, language tokens, rows of a padded vocabulary).
        max_length: the model's own limit of target positions; it caps every sentence's length.

    Returns:
        For each sentence at most `n_best` distinct hypotheses, best first; fewer only where fewer exist.

    Raises:
        FloatingPointError: the model gave NaN logits.
    """
    sentences, source_length = source_BS.shape
    if sentences == 0:
        return []
    lengths = [source_length] * sentences if source_mask_BS is None else source_mask_BS.sum(1).tolist()
    limits = [config.max_new_tokens or 2 * int(n) + 10 for n in lengths]
    if max_length is not None:
        limits = [min(limit, max_length) for limit in limits]
    pools = [_Pool(limit, config) for limit in limits]

    device = source_BS.device
    banned = torch.tensor(sorted(set(banned_ids)), dtype=torch.long, device=device)
    state = model.start(source_BS, source_mask_BS)

    # Model rows are a (sentence, slot) grid, W slots wide; -inf marks a slot without a hypothesis. The grid's own
    # numbers stay on the CPU in float64: they are few, and each step then costs one transfer in each direction.
    live = list(range(sentences))
    sums_BW = torch.zeros(sentences, 1, dtype=torch.float64)
    ids_BWT = torch.empty(sentences, 1, 0, dtype=torch.long)
    logprobs_BWT = torch.empty(sentences, 1, 0, dtype=torch.float64)
    last_BW = torch.full((sentences, 1), bos_id, dtype=torch.long)
    length = 0
    while live:
        length += 1
        width = last_BW.shape[1]
        slots = [config.beam_size - len(pools[s].hypotheses) for s in live]
        logits_NV = model.step(last_BW.reshape(-1, 1).to(device), state)
        next_logprobs_NC, next_ids_NC = _best_tokens(logits_NV, banned, max(slots))
        if next_logprobs_NC.isnan().any():
            raise FloatingPointError(f"the model gave NaN logits at target position {length}")

        # The best candidates of each sentence, over all its hypotheses.
        choices = next_ids_NC.shape[1]
        candidates = (sums_BW.unsqueeze(2) + next_logprobs_NC.view(len(live), width, choices)).flatten(1)
        new_sums_BR, flat_BR = candidates.topk(min(max(slots), candidates.shape[1]))
        parent_BR = flat_BR // choices
        new_ids_BR = next_ids_NC.view(len(live), -1).gather(1, flat_BR)
        new_logprobs_BR = next_logprobs_NC.view(len(live), -1).gather(1, flat_BR)
        rank_R = torch.arange(flat_BR.shape[1])
        valid_BR = (rank_R < torch.tensor(slots).unsqueeze(1)) & new_sums_BR.isfinite()
        at_limit_B = torch.tensor([pools[s].limit <= length for s in live])
        closed_BR = valid_BR & ((new_ids_BR == eos_id) | at_limit_B.unsqueeze(1))

        history = parent_BR.unsqueeze(2).expand(-1, -1, length - 1)
        ids_BRT = torch.cat([ids_BWT.gather(1, history), new_ids_BR.unsqueeze(2)], 2)
        logprobs_BRT = torch.cat([logprobs_BWT.gather(1, history), new_logprobs_BR.unsqueeze(2)], 2)
        for b, r in closed_BR.nonzero().tolist():
            tokens = ids_BRT[b, r].tolist()
            pools[live[b]].add(tokens, logprobs_BRT[b, r].tolist(), finished=tokens[-1] == eos_id)

        growing_BR = valid_BR & ~closed_BR
        new_sums_BR = new_sums_BR.masked_fill(~growing_BR, -math.inf)
        best_sums = new_sums_BR.amax(1).tolist()
        kept = [b for b, s in enumerate(live) if not pools[s].settled(best_sums[b])]
        if not kept:
            break
        live = [live[b] for b in kept]
        kept_B = torch.tensor(kept)

        # Hypotheses that still grow move to the front of their sentence's slots, in order, and the grid shrinks.
        width_next = int(growing_BR[kept_B].sum(1).max())
        front_BW = (~growing_BR[kept_B]).int().argsort(dim=1, stable=True)[:, :width_next]
        sums_BW = new_sums_BR[kept_B].gather(1, front_BW)
        last_BW = new_ids_BR[kept_B].gather(1, front_BW)
        steps = front_BW.unsqueeze(2).expand(-1, -1, length)
        ids_BWT = ids_BRT[kept_B].gather(1, steps)
        logprobs_BWT = logprobs_BRT[kept_B].gather(1, steps)
        row_N = (kept_B.unsqueeze(1) * width + parent_BR[kept_B].gather(1, front_BW)).flatten()
        if not torch.equal(row_N, torch.arange(logits_NV.shape[0])):
            state.select(row_N.to(device))
    return [pool.best() for pool in pools]


def _best_tokens(logits_NV: Tensor, banned: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each row's `count` likeliest tokens that are not banned: log-probabilities in float64 and ids, on the CPU."""
    logits_NV = logits_NV.float()
    normaliser_N1 = logits_NV.logsumexp(1, keepdim=True)
    top = logits_NV.index_fill(1, banned, -math.inf).topk(min(count, logits_NV.shape[1]))
    return (top.values - normaliser_N1).cpu().double(), top.indices.cpu()

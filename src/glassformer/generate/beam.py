"""Greedy and beam search over the `Decodable` protocol.

The score of a hypothesis y is

    score(y) = Σ_t log p(y_t | y_<t, x) / lp(|y|),    lp(n) = ((5 + n) / 6) ** α

(Wu et al. 2016, "Google's Neural Machine Translation System", equation 14, without the coverage term), where |y| counts
`</s>`. Log-probabilities are those of the model's whole softmax: a banned token is never chosen, but it keeps its
probability, so that a printed score can be recomputed by teacher forcing. Processors, too, steer which candidates
survive a step, while hypotheses carry, and are ranked by, what the model itself says.

A sentence has `beam_size` slots. A hypothesis that ends keeps its slot and the others share what is left, so a beam of
one is greedy search by construction. A sentence leaves the batch only when no hypothesis that is still growing can
enter its n-best.

With `groups` (Vijayakumar et al. 2018, "Diverse Beam Search"), the slots are split evenly; each step the groups choose
one after another, and a token costs a group `diversity` for each time that earlier groups chose it (equation 7, Hamming
diversity).
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.generate.config import Request, SearchConfig
from glassformer.generate.constraints import Constraints, Phrases, Progress, allocate, check_constraints, limits
from glassformer.generate.hypothesis import Hypothesis, length_penalty, normalised_score
from glassformer.generate.opening import force, lengths, normaliser, prefill
from glassformer.generate.processors import process
from glassformer.generate.protocol import Decodable, StateT

_BEHIND_ALL = 1e6  # more than log-probabilities add up to: chosen only where a bank has nothing else


class Step(NamedTuple):
    """What one step of a search saw and chose, for whoever watches it.

    Attributes:
        ids_BWT: the hypotheses that were extended; of a slot without one, anything.
        logprobs_BWT: the log-probability of each of their tokens.
        sums_BW: the sum of these; -inf is a slot without a hypothesis.
        logits_NV: the model's logits of the B · W rows.
        steered_NV: what was chosen by instead; -inf is forbidden.
        parent_BR, new_ids_BR, new_logprobs_BR: each survivor's row, token, and its log-probability, best first.
        valid_BR: whether it is one.
        closed_BR: whether it grows no more: it ended, or reached the limit.
    """

    ids_BWT: Tensor
    logprobs_BWT: Tensor
    sums_BW: Tensor
    logits_NV: Tensor
    steered_NV: Tensor
    parent_BR: Tensor
    new_ids_BR: Tensor
    new_logprobs_BR: Tensor
    valid_BR: Tensor
    closed_BR: Tensor


class _Unit:
    """One group of one sentence's beam: its hypotheses that grow no more, and how far the others are."""

    def __init__(self, sentence: int, group: int, limit: int, constraints: Constraints, config: SearchConfig) -> None:
        self.sentence, self.group, self.limit, self.config = sentence, group, limit, config
        self.width = config.beam_size // config.groups
        self.prefix = constraints.prefix
        self.phrases = Phrases(constraints.phrases) if constraints.phrases else None
        self.progress: list[Progress] = []  # of each growing hypothesis, if there are phrases
        self.hypotheses: list[Hypothesis] = []

    @property
    def slots(self) -> int:
        """The slots left to hypotheses that still grow."""
        return self.width - len(self.hypotheses)

    def forced(self, length: int) -> int | None:
        """The prefix's token behind `length` tokens."""
        return self.prefix[length] if length < len(self.prefix) else None

    def add(self, tokens: list[int], logprobs: list[float], finished: bool) -> None:
        score = normalised_score(logprobs, self.config.length_penalty)
        ids = tuple(tokens[:-1] if finished else tokens)
        self.hypotheses.append(Hypothesis(ids, score, tuple(logprobs), finished))

    def settled(self, best_live_sum: float) -> bool:
        """Whether no descendant of the best live hypothesis can enter the n-best.

        Log-probabilities are at most 0, so a sum only falls, and for α ≥ 0 dividing by lp at the length limit is the
        kindest that can happen to it. A group never settles: its choices are still felt by the groups behind it, whose
        results must not depend on how many hypotheses are wanted.
        """
        if best_live_sum == -math.inf:
            return True
        if self.config.groups > 1 or len(self.hypotheses) < self.config.n_best:
            return False
        bound = best_live_sum / length_penalty(self.limit, self.config.length_penalty)
        return bound <= _best(self.hypotheses, self.config.n_best)[-1].score


@torch.no_grad()
def search(
    model: Decodable[StateT],
    source_BS: Tensor,
    source_mask_BS: Tensor | None,
    config: SearchConfig,
    request: Request,
    watch: Callable[[Step], None] | None = None,
) -> list[list[Hypothesis]]:
    """Finds the best targets of a batch of sources; put the model in eval mode first.

    Args:
        model: what to decode with.
        source_BS: source ids, padded at the right.
        source_mask_BS: True at real tokens; None when nothing is padding.
        config: how to search.
        request: what the targets are made of.
        watch: called after each step; it changes nothing.

    Returns:
        For each sentence at most `n_best` distinct hypotheses, best first; fewer only where fewer exist, never none.

    Raises:
        UserError: a constraint does not fit under the length limit, or holds `</s>`.
        FloatingPointError: the model gave NaN logits.
    """
    sentences = len(source_BS)
    if sentences == 0:
        return []
    eos_id, constraints = request.eos_id, check_constraints(request, sentences)
    lengthiest = limits(lengths(source_BS, source_mask_BS), constraints, config.max_new_tokens, request.max_length)
    units = [_Unit(s, g, lengthiest[s], constraints[s], config) for s in range(sentences) for g in range(config.groups)]
    device = source_BS.device
    banned = torch.tensor(sorted(set(request.banned_ids)), dtype=torch.long, device=device)
    state = model.start(source_BS, source_mask_BS)
    if config.groups > 1:
        state.select(torch.arange(sentences, device=device).repeat_interleave(config.groups))
    logits_NV, ids_NT, logprobs_NT = prefill(model, state, [unit.prefix for unit in units], request.bos_id, device)

    # Model rows are a (unit, slot) grid, W slots wide; -inf marks a slot without a hypothesis. The grid's own numbers
    # stay on the CPU in float64: they are few, and each step then costs one transfer in each direction.
    live = units
    sums_BW = logprobs_NT.sum(1, keepdim=True)
    ids_BWT, logprobs_BWT = ids_NT.unsqueeze(1), logprobs_NT.unsqueeze(1)
    length = ids_NT.shape[1]
    for unit in units:
        unit.progress = [unit.phrases.start(unit.prefix[:length])] if unit.phrases else []
    while True:
        width = sums_BW.shape[1]
        logits_NV = logits_NV.float()
        allowed_NV = logits_NV.index_fill(1, banned, -math.inf)
        steered_NV = process(request.processors, ids_BWT.flatten(0, 1).to(device), allowed_NV)
        steered_NV = force(steered_NV, logits_NV, [unit.forced(length) for unit in live for _ in range(width)])
        length += 1
        choice = _choose(live, sums_BW, logits_NV, steered_NV, length, eos_id)
        parent_BR, new_ids_BR, new_logprobs_BR, valid_BR, progress = choice

        history = parent_BR.unsqueeze(2).expand(-1, -1, length - 1)
        ids_BRT = torch.cat([ids_BWT.gather(1, history), new_ids_BR.unsqueeze(2)], 2)
        logprobs_BRT = torch.cat([logprobs_BWT.gather(1, history), new_logprobs_BR.unsqueeze(2)], 2)
        new_sums_BR = sums_BW.gather(1, parent_BR) + new_logprobs_BR
        at_limit_B = torch.tensor([unit.limit <= length for unit in live])
        closed_BR = valid_BR & ((new_ids_BR == eos_id) | at_limit_B.unsqueeze(1))
        if watch is not None:
            rows = (ids_BWT, logprobs_BWT, sums_BW, logits_NV, steered_NV)
            watch(Step(*rows, parent_BR, new_ids_BR, new_logprobs_BR, valid_BR, closed_BR))
        for b, r in closed_BR.nonzero().tolist():
            tokens = ids_BRT[b, r].tolist()
            live[b].add(tokens, logprobs_BRT[b, r].tolist(), finished=tokens[-1] == eos_id)
        for b in (~valid_BR.any(1)).nonzero().flatten().tolist():
            if not live[b].hypotheses:  # nothing is allowed any more: what stands is all there is
                for w in sums_BW[b].isfinite().nonzero().flatten().tolist():
                    live[b].add(ids_BWT[b, w].tolist(), logprobs_BWT[b, w].tolist(), finished=False)

        growing_BR = valid_BR & ~closed_BR
        new_sums_BR = new_sums_BR.masked_fill(~growing_BR, -math.inf)
        best_sums = new_sums_BR.amax(1).tolist()
        kept = [b for b, unit in enumerate(live) if not unit.settled(best_sums[b])]
        if not kept:
            return [
                _best([h for unit in units if unit.sentence == s for h in unit.hypotheses], config.n_best)
                for s in range(sentences)
            ]
        kept_B = torch.tensor(kept)

        # Hypotheses that still grow move to the front of their unit's slots, in order, and the grid shrinks.
        width_next = int(growing_BR[kept_B].sum(1).max())
        front_BW = (~growing_BR[kept_B]).int().argsort(dim=1, stable=True)[:, :width_next]
        for b, front_W in zip(kept, front_BW.tolist(), strict=True):
            live[b].progress = [progress[b][r] for r in front_W if r < len(progress[b])]
        live = [live[b] for b in kept]
        sums_BW = new_sums_BR[kept_B].gather(1, front_BW)
        last_BW = new_ids_BR[kept_B].gather(1, front_BW)
        steps = front_BW.unsqueeze(2).expand(-1, -1, length)
        ids_BWT = ids_BRT[kept_B].gather(1, steps)
        logprobs_BWT = logprobs_BRT[kept_B].gather(1, steps)
        row_N = (kept_B.unsqueeze(1) * width + parent_BR[kept_B].gather(1, front_BW)).flatten()
        if not torch.equal(row_N, torch.arange(logits_NV.shape[0])):
            state.select(row_N.to(device))
        logits_NV = model.step(last_BW.reshape(-1, 1).to(device), state)


_Choice = tuple[Tensor, Tensor, Tensor, Tensor, list[list[Progress]]]


def _choose(
    live: Sequence[_Unit], sums_BW: Tensor, logits_NV: Tensor, steered_NV: Tensor, length: int, eos_id: int
) -> _Choice:
    """The pure step of a beam: which candidates of each unit survive, best first.

    Args:
        live: the units that still search.
        sums_BW: log-probability of each hypothesis; -inf is none.
        logits_NV: the model's logits of its B · W rows.
        steered_NV: what is chosen by instead; -inf is forbidden.
        length: of the hypotheses that the choice makes.
        eos_id: the token that needs every phrase met.

    Returns:
        Each survivor's parent, token, log-probability, and whether it is one, all (B, R); and their progress where a
        unit has phrases.
    """
    width = sums_BW.shape[1]
    most = max(unit.slots for unit in live)
    normaliser_N1 = normaliser(logits_NV)
    parts: list[tuple[list[int], _Choice]] = []
    chosen: dict[int, Counter[int]] = {}
    for group in sorted({unit.group for unit in live}):
        members = [b for b, unit in enumerate(live) if unit.group == group]
        some = [live[b] for b in members]
        row_N = (torch.tensor(members).unsqueeze(1) * width + torch.arange(width)).flatten().to(logits_NV.device)
        whole = len(some) == len(live)
        raw_NV = logits_NV if whole else logits_NV[row_N]
        steer_NV = steered_NV if whole else steered_NV[row_N]
        norm_N1 = normaliser_N1 if whole else normaliser_N1[row_N]
        if group:
            steer_NV = _diversified(some, steer_NV, chosen)
        # Banks reach beyond the best: as many as a whole beam has slots, or the choice would depend on batch mates.
        reach = some[0].width if any(unit.phrases for unit in some) else most
        steer_NC, ids_NC = steer_NV.topk(min(reach, logits_NV.shape[1]))
        raw_NC = raw_NV.gather(1, ids_NC)
        if any(unit.phrases for unit in some):
            steer_NC, ids_NC, raw_NC = _with_useful(some, steer_NC, ids_NC, raw_NV, raw_NC, length)
        part = _pick(
            some,
            sums_BW[members],
            (steer_NC - norm_N1).cpu().double(),
            ids_NC.cpu(),
            (raw_NC - norm_N1).cpu().double(),
            most,
            length,
            eos_id,
        )
        for unit, ids_R, valid_R in zip(some, part[1], part[3], strict=True):
            chosen.setdefault(unit.sentence, Counter()).update(ids_R[valid_R].tolist())
        parts.append((members, part))
    if len(parts) == 1:
        return parts[0][1]
    ranks = max(part[0].shape[1] for _, part in parts)
    order = torch.tensor([b for members, _ in parts for b in members]).argsort()
    merged = [torch.cat([_widened(part[i], ranks) for _, part in parts])[order] for i in range(4)]  # type: ignore[arg-type]
    progress = {b: states for members, part in parts for b, states in zip(members, part[4], strict=True)}
    return merged[0], merged[1], merged[2], merged[3], [progress[b] for b in range(len(live))]


def _pick(
    units: Sequence[_Unit],
    sums_BW: Tensor,
    steer_NC: Tensor,
    ids_NC: Tensor,
    raw_NC: Tensor,
    most: int,
    length: int,
    eos_id: int,
) -> _Choice:
    """The survivors of each unit, over the candidates (N, C) of all its hypotheses."""
    if raw_NC.isnan().any():
        raise FloatingPointError(f"the model gave NaN logits at target position {length}")
    count, width, choices = len(units), sums_BW.shape[1], ids_NC.shape[1]
    candidates_BK = (sums_BW.unsqueeze(2) + steer_NC.view(count, width, choices)).flatten(1)
    ids_BK, raw_BK = ids_NC.view(count, -1), raw_NC.view(count, -1)
    scores_BR, flat_BR = candidates_BK.topk(min(most, candidates_BK.shape[1]))
    slots_B1 = torch.tensor([unit.slots for unit in units]).unsqueeze(1)
    valid_BR = (torch.arange(flat_BR.shape[1]) < slots_B1) & scores_BR.isfinite() & raw_BK.gather(1, flat_BR).isfinite()
    progress: list[list[Progress]] = [[] for _ in units]
    for b, unit in enumerate(units):
        if unit.phrases is None:
            continue
        scores, tokens, reached = candidates_BK[b].tolist(), ids_BK[b].tolist(), []
        for k, token in enumerate(tokens):
            before = unit.progress[k // choices] if k // choices < len(unit.progress) else unit.phrases.start()
            after = before if token == eos_id else unit.phrases.advance(before, token)
            room = 0 if token == eos_id else unit.limit - length
            if unit.forced(length - 1) is None and unit.phrases.cost(after) > room:
                scores[k] = -math.inf
            elif before.missing and not before.begun and tokens[k // choices * choices] == eos_id:
                # Where the model would rather end, a phrase begun now would be tacked on to a whole sentence.
                scores[k] -= _BEHIND_ALL
            reached.append(after)
        picked = allocate(scores, [unit.phrases.cost(after) for after in reached], unit.slots)
        valid_BR[b] = torch.arange(flat_BR.shape[1]) < len(picked)
        flat_BR[b, : len(picked)] = torch.tensor(picked, dtype=torch.long)
        progress[b] = [reached[k] for k in picked]
    return flat_BR // choices, ids_BK.gather(1, flat_BR), raw_BK.gather(1, flat_BR), valid_BR, progress


def _with_useful(
    units: Sequence[_Unit], steer_NC: Tensor, ids_NC: Tensor, raw_NV: Tensor, raw_NC: Tensor, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Adds to the candidates the tokens that bring a phrase on, whatever a processor thinks of them."""
    width = len(raw_NV) // len(units)
    useful: list[list[int]] = []
    for unit in units:
        free = unit.phrases is not None and unit.forced(length - 1) is None
        states = unit.progress if free else []
        tokens = [unit.phrases.useful(state) for state in states] if unit.phrases else []
        useful += tokens + [[]] * (width - len(tokens))
    most = max(map(len, useful))
    device = ids_NC.device
    more_NE = torch.tensor([[*tokens, *[0] * (most - len(tokens))] for tokens in useful], device=device).long()
    real_NE = torch.arange(most, device=device) < torch.tensor([[len(t)] for t in useful], device=device)
    twice_NE = ((more_NE.unsqueeze(2) == ids_NC.unsqueeze(1)) & steer_NC.isfinite().unsqueeze(1)).any(2)
    more_raw_NE = raw_NV.gather(1, more_NE)
    more_steer_NE = more_raw_NE.masked_fill(~real_NE | twice_NE, -math.inf)
    return (
        torch.cat([steer_NC, more_steer_NE], 1),
        torch.cat([ids_NC, more_NE], 1),
        torch.cat([raw_NC, more_raw_NE], 1),
    )


def _diversified(units: Sequence[_Unit], steered_NV: Tensor, chosen: dict[int, Counter[int]]) -> Tensor:
    """Takes `diversity` off a token for each time that the sentence's earlier groups chose it at this step."""
    steered_BWV = steered_NV.view(len(units), -1, steered_NV.shape[1]).clone()
    for b, unit in enumerate(units):
        for token, times in chosen.get(unit.sentence, Counter()).items():
            steered_BWV[b, :, token] -= unit.config.diversity * times
    return steered_BWV.flatten(0, 1)


def _widened(part_BR: Tensor, ranks: int) -> Tensor:
    return torch.nn.functional.pad(part_BR, (0, ranks - part_BR.shape[1]))


def _best(hypotheses: Sequence[Hypothesis], count: int) -> list[Hypothesis]:
    """The best of distinct targets, sorted; groups may have found the same one."""
    distinct: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
    for hypothesis in hypotheses:
        distinct.setdefault((hypothesis.ids, hypothesis.finished), hypothesis)
    return sorted(distinct.values(), key=lambda h: -h.score)[:count]

"""`stream`: the one loop that decodes token by token, greedily or by sampling.

Everything that writes its targets from left to right is built on its events: `generate` collects them, a printer shows
them as they come, and speculative decoding yields the same ones. Beam search cannot, since its best hypothesis so far
may yet be another one: it has a pure step of its own (`search._choose`) and shares the beginning, the limits, the
constraints and the model's `start`, `step` and `select`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from glassformer.errors import UserError
from glassformer.generate.constraints import Constraints
from glassformer.generate.hypothesis import Hypothesis, normalised_score
from glassformer.generate.opening import check_constraints, force, lengths, limits, prefill
from glassformer.generate.processors import Processor, process
from glassformer.generate.protocol import Decodable, StateT
from glassformer.generate.sampling import Randomness, SamplingConfig, distribution, draw, resolved_seed


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


@torch.no_grad()
def stream(
    model: Decodable[StateT],
    source_BS: Tensor,
    source_mask_BS: Tensor | None,
    config: SamplingConfig,
    *,
    bos_id: int,
    eos_id: int,
    banned_ids: Sequence[int] = (),
    max_length: int | None = None,
    processors: Sequence[Processor] = (),
    constraints: Sequence[Constraints] | None = None,
) -> Iterator[Event]:
    """Writes targets for a batch of sources, and tells each token as it is chosen; put the model in eval mode first.

    A target that is complete leaves the batch. Arguments are those of `search`; `config.warpers` apply behind
    `processors`.

    Yields:
        A `Token` for each token, position by position, and an `End` after the last of each target.

    Raises:
        UserError: a prefix does not fit under the length limit or holds `</s>`; forced phrases, which need a beam.
        FloatingPointError: the model gave NaN logits.
    """
    if len(source_BS) == 0:
        return
    constraints = check_constraints(constraints, len(source_BS), eos_id)
    refuse_phrases(constraints)
    source_lengths = lengths(source_BS, source_mask_BS)
    lengthiest = limits(source_lengths, constraints, config.max_new_tokens, max_length)
    device, seed = source_BS.device, resolved_seed(config.seed)
    banned = torch.tensor(sorted(set(banned_ids)), dtype=torch.long, device=device)

    state = model.start(source_BS, source_mask_BS)
    logits_NV, ids_NT, logprobs_NT = prefill(model, state, [c.prefix for c in constraints], bos_id, device)
    if config.samples > 1:
        expanded_N = torch.arange(len(source_BS)).repeat_interleave(config.samples)
        ids_NT, logprobs_NT = ids_NT[expanded_N], logprobs_NT[expanded_N]
        logits_NV = logits_NV[expanded_N.to(device)]
        state.select(expanded_N.to(device))
    rows = [
        _Row(s, k, constraints[s].prefix, lengthiest[s], Randomness(seed, source, constraints[s].prefix, k))
        for s, source in enumerate(unpadded(source_BS, source_mask_BS))
        for k in range(config.samples)
    ]
    for t in range(ids_NT.shape[1]):
        for row, token, logprob in zip(rows, ids_NT[:, t].tolist(), logprobs_NT[:, t].tolist(), strict=True):
            yield Token(row.sentence, row.sample, token, logprob, forced=True)

    ids_NT = ids_NT.to(device)
    while rows:
        position = ids_NT.shape[1]
        logits_NV = logits_NV.float()
        steered_NV = process(processors, ids_NT, logits_NV.index_fill(1, banned, -math.inf))
        forced = [row.prefix[position] if position < len(row.prefix) else None for row in rows]
        steered_NV = force(steered_NV, logits_NV, forced)
        if config.warpers:
            probs_NV = distribution(steered_NV, ids_NT, config.warpers)
            token_N = draw(probs_NV, [row.random.uniform(position) for row in rows])
        else:
            token_N = steered_NV.argmax(1)
        logprob_N = logits_NV.gather(1, token_N.unsqueeze(1)).squeeze(1) - logits_NV.logsumexp(1)
        if logprob_N.isnan().any():
            raise FloatingPointError(f"the model gave NaN logits at target position {position + 1}")
        # A forbidden token is chosen only where all are.
        stuck_N = steered_NV.gather(1, token_N.unsqueeze(1)).squeeze(1).isneginf()

        kept = []
        chosen = zip(rows, token_N.tolist(), logprob_N.double().tolist(), stuck_N.tolist(), forced, strict=True)
        for n, (row, token, logprob, stuck, must) in enumerate(chosen):
            if stuck:
                yield End(row.sentence, row.sample, "stuck")
                continue
            yield Token(row.sentence, row.sample, token, logprob, forced=must is not None)
            if token == eos_id or position + 1 == row.limit:
                yield End(row.sentence, row.sample, "eos" if token == eos_id else "limit")
            else:
                kept.append(n)
        if not kept:
            return
        if len(kept) < len(rows):
            kept_N = torch.tensor(kept, device=device)
            state.select(kept_N)
            rows, ids_NT, token_N = [rows[n] for n in kept], ids_NT[kept_N], token_N[kept_N]
        ids_NT = torch.cat([ids_NT, token_N.unsqueeze(1)], 1)
        logits_NV = model.step(token_N.unsqueeze(1), state)


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


def generate(
    model: Decodable[StateT],
    source_BS: Tensor,
    source_mask_BS: Tensor | None,
    config: SamplingConfig,
    *,
    bos_id: int,
    eos_id: int,
    banned_ids: Sequence[int] = (),
    max_length: int | None = None,
    processors: Sequence[Processor] = (),
    constraints: Sequence[Constraints] | None = None,
    length_penalty: float = 1.0,
) -> list[list[Hypothesis]]:
    """`stream` to its end: of each sentence its `samples` targets, in the order of their numbers."""
    events = stream(
        model,
        source_BS,
        source_mask_BS,
        config,
        bos_id=bos_id,
        eos_id=eos_id,
        banned_ids=banned_ids,
        max_length=max_length,
        processors=processors,
        constraints=constraints,
    )
    return collect(events, length_penalty)


def refuse_phrases(constraints: Sequence[Constraints]) -> None:
    """Refuses forced phrases where there is no beam to bank.

    Raises:
        UserError: there is one.
    """
    if any(constraint.phrases for constraint in constraints):
        raise UserError("--glossary: forced terms need beam search; set --temperature 0 and --beam-size 4 or more")


def unpadded(source_BS: Tensor, source_mask_BS: Tensor | None) -> list[list[int]]:
    """The real tokens of each source."""
    if source_mask_BS is None:
        return [[int(i) for i in row] for row in source_BS.tolist()]
    return [row[mask].tolist() for row, mask in zip(source_BS, source_mask_BS, strict=True)]


@dataclass(frozen=True)
class _Row:
    """One target that is being written."""

    sentence: int
    sample: int
    prefix: tuple[int, ...]
    limit: int
    random: Randomness

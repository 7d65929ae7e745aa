"""`stream`: the one loop that decodes token by token, greedily or by sampling.

Everything that writes its targets from left to right is built on its events: `generate` collects them, a printer shows
them as they come, and speculative decoding yields the same ones. Beam search cannot, since its best hypothesis so far
may yet be another one: it has a pure step of its own (`beam._choose`) and shares the beginning, the limits, the
constraints and the model's `start`, `step` and `select`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.generate.config import Request, SamplingConfig
from glassformer.generate.constraints import check_constraints, limits, refuse_phrases
from glassformer.generate.events import End, Event, Token, collect
from glassformer.generate.hypothesis import Hypothesis
from glassformer.generate.opening import force, lengths, normaliser, prefill, unpadded
from glassformer.generate.processors import process
from glassformer.generate.protocol import Decodable, StateT
from glassformer.generate.sampling import Randomness, distribution, draw, resolved_seed


@torch.no_grad()
def stream(
    model: Decodable[StateT], source_BS: Tensor, source_mask_BS: Tensor | None, config: SamplingConfig, request: Request
) -> Iterator[Event]:
    """Writes targets for a batch of sources, and tells each token as it is chosen; put the model in eval mode first.

    A target that is complete leaves the batch. Arguments are those of `search`.

    Yields:
        A `Token` for each token, position by position, and an `End` after the last of each target.

    Raises:
        UserError: a prefix does not fit under the length limit or holds `</s>`; forced phrases, which need a beam.
        FloatingPointError: the model gave NaN logits.
    """
    if len(source_BS) == 0:
        return
    bos_id, eos_id, constraints = request.bos_id, request.eos_id, check_constraints(request, len(source_BS))
    refuse_phrases(constraints)
    source_lengths = lengths(source_BS, source_mask_BS)
    lengthiest = limits(source_lengths, constraints, config.max_new_tokens, request.max_length)
    device, seed = source_BS.device, resolved_seed(config.seed)
    banned = torch.tensor(sorted(set(request.banned_ids)), dtype=torch.long, device=device)

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
        steered_NV = process(request.processors, ids_NT, logits_NV.index_fill(1, banned, -math.inf))
        forced = [row.prefix[position] if position < len(row.prefix) else None for row in rows]
        steered_NV = force(steered_NV, logits_NV, forced)
        if config.warpers:
            probs_NV = distribution(steered_NV, ids_NT, config.warpers)
            token_N = draw(probs_NV, [row.random.uniform(position) for row in rows])
        else:
            token_N = steered_NV.argmax(1)
        logprob_N = (logits_NV.gather(1, token_N.unsqueeze(1)) - normaliser(logits_NV)).squeeze(1)
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


def generate(
    model: Decodable[StateT], source_BS: Tensor, source_mask_BS: Tensor | None, config: SamplingConfig, request: Request
) -> list[list[Hypothesis]]:
    """`stream` to its end: of each sentence its `samples` targets, in the order of their numbers."""
    return collect(stream(model, source_BS, source_mask_BS, config, request), config.length_penalty)


@dataclass(frozen=True)
class _Row:
    """One target that is being written."""

    sentence: int
    sample: int
    prefix: tuple[int, ...]
    limit: int
    random: Randomness

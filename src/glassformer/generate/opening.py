"""What every way of decoding does first: lengths, limits, and the forced prefixes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.errors import UserError
from glassformer.generate.constraints import Constraints, Phrases
from glassformer.generate.protocol import Decodable, StateT


def check_constraints(constraints: Sequence[Constraints] | None, sentences: int, eos_id: int) -> list[Constraints]:
    """One `Constraints` for each sentence.

    Raises:
        ValueError: there are not as many as sentences.
        UserError: a constraint holds `</s>`.
    """
    if constraints is None:
        return [Constraints()] * sentences
    if len(constraints) != sentences:
        raise ValueError(f"{len(constraints)} constraints for {sentences} sentences")
    for number, constraint in enumerate(constraints, 1):
        for ids in (constraint.prefix, *constraint.phrases):
            if eos_id in ids:
                raise UserError(f"sentence {number}: its forced text holds </s>, after which nothing can follow")
    return list(constraints)


def lengths(source_BS: Tensor, source_mask_BS: Tensor | None) -> list[int]:
    """The number of real tokens of each source."""
    if source_mask_BS is None:
        return [source_BS.shape[1]] * len(source_BS)
    return [int(n) for n in source_mask_BS.sum(1).tolist()]


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


def prefill(
    model: Decodable[StateT], state: StateT, prefixes: Sequence[tuple[int, ...]], bos_id: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Reads `<s>` and as many prefix tokens as every row has, in one pass.

    Returns:
        The logits (N, V) of what follows, the ids (N, T) read, and their log-probabilities (N, T): the last two on the
        CPU, log-probabilities in float64.
    """
    shared = min(map(len, prefixes))
    ids_NT = torch.tensor([prefix[:shared] for prefix in prefixes], dtype=torch.long).reshape(len(prefixes), shared)
    begin_NT = torch.cat([torch.full((len(prefixes), 1), bos_id), ids_NT], 1).to(device)
    if shared == 0:
        return model.step(begin_NT, state), ids_NT, ids_NT.double()
    logits_NTV = model.step(begin_NT, state, last_only=False)
    logprobs_NTV = logits_NTV[:, :-1].float().log_softmax(2)
    logprobs_NT = logprobs_NTV.gather(2, begin_NT[:, 1:, None]).squeeze(2)
    return logits_NTV[:, -1], ids_NT, logprobs_NT.cpu().double()


def force(steered_NV: Tensor, logits_NV: Tensor, forced: Sequence[int | None]) -> Tensor:
    """Leaves nothing but the forced token to every row that has one."""
    rows = [row for row, token in enumerate(forced) if token is not None]
    if not rows:
        return steered_NV
    row_R = torch.tensor(rows, device=steered_NV.device)
    token_R = torch.tensor([token for token in forced if token is not None], device=steered_NV.device)
    steered_NV = steered_NV.index_fill(0, row_R, -torch.inf)
    return steered_NV.index_put((row_R, token_R), logits_NV[row_R, token_R])

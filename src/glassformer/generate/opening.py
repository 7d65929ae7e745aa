"""What every way of decoding does first, and at each step: lengths, forced prefixes, and the softmax's normaliser."""

from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.generate.protocol import Decodable, StateT


def lengths(source_BS: Tensor, source_mask_BS: Tensor | None) -> list[int]:
    """The number of real tokens of each source."""
    if source_mask_BS is None:
        return [source_BS.shape[1]] * len(source_BS)
    return [int(n) for n in source_mask_BS.sum(1).tolist()]


def unpadded(source_BS: Tensor, source_mask_BS: Tensor | None) -> list[list[int]]:
    """The real tokens of each source."""
    if source_mask_BS is None:
        return [[int(i) for i in row] for row in source_BS.tolist()]
    return [row[mask].tolist() for row, mask in zip(source_BS, source_mask_BS, strict=True)]


def prefill(
    model: Decodable[StateT],
    state: StateT,
    prefixes: Sequence[tuple[int, ...]],
    bos_id: int | None,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """Reads `<s>`, where there is one, and as many prefix tokens as every row has, in one pass.

    Returns:
        The logits (N, V) of what follows, the ids (N, T) read, and their log-probabilities (N, T): the last two on the
        CPU, log-probabilities in float64.
    """
    shared = min(map(len, prefixes))
    ids_NT = torch.tensor([prefix[:shared] for prefix in prefixes], dtype=torch.long).reshape(len(prefixes), shared)
    read_NT = ids_NT.to(device)
    if bos_id is None:
        assert state.logits_BV is not None, "without a token that begins a target, start must have read a prompt"
        logits_NTV = state.logits_BV[:, None]
        if shared:
            logits_NTV = torch.cat([logits_NTV, model.step(read_NT, state, last_only=False)], 1)
    else:
        begin_NT = torch.cat([torch.full((len(prefixes), 1), bos_id, device=device), read_NT], 1)
        # Of one token both are the same, but the last position alone is what every step is best at.
        logits_NTV = model.step(begin_NT, state, last_only=False) if shared else model.step(begin_NT, state)[:, None]
    logprobs_NTV = logits_NTV[:, :-1].float().log_softmax(2)
    logprobs_NT = logprobs_NTV.gather(2, read_NT[:, :, None]).squeeze(2)
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


def normaliser(logits_NV: Tensor) -> Tensor:
    """The log of the sum of exponentials, read off `log_softmax`, which makes it in one pass instead of three."""
    likely_N1 = logits_NV[:, :64].argmax(1, keepdim=True)
    logprob_N1 = logits_NV.log_softmax(1).gather(1, likely_N1)
    if (logprob_N1 > -64).all():
        return logits_NV.gather(1, likely_N1) - logprob_N1
    return logits_NV.logsumexp(1, keepdim=True)  # next to so unlikely a token, the sum's digits would be lost

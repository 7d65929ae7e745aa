"""What every way of decoding does first: the sources' lengths, and the forced prefixes."""

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

"""What every model has."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.config import ModelConfig
from glassformer.models.heads import build_head
from glassformer.models.stack import Stack
from glassformer.nn.embed import PatchEmbedding, TokenEmbedding, build_embedding
from glassformer.nn.mixer import Context
from glassformer.nn.state import DecodeState
from glassformer.nn.tap import taps


class Model(nn.Module):
    """An embedding, one or two stacks, and perhaps a head."""

    embed: TokenEmbedding | PatchEmbedding

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = build_embedding(config.embed, config.d_model)

    def _build_head(self) -> None:
        """Last, so that the parts stand in the order in which data passes them."""
        self.head = build_head(self.config)

    @property
    def decoder_embed(self) -> TokenEmbedding | PatchEmbedding:
        """The embedding that the output layer may share."""
        return self.embed

    def logits(self, hidden_D: Tensor) -> Tensor:
        """What a head says of hidden states of any leading shape, one logit for each id with a language model's."""
        assert self.head is not None
        return self.head(hidden_D, self.decoder_embed)

    def _output(self, hidden_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        return hidden_BTD if self.head is None else self.head(hidden_BTD, self.decoder_embed, mask_BT)

    def taps(self) -> dict[str, str]:
        """The named internals that ``glassformer.record`` captures, name → axes."""
        return taps(self)

    def num_parameters(self) -> int:
        """Number of trained numbers, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


class Autoregressive(Model):
    """A model that writes: it has a decoder."""

    decoder: Stack

    def step(self, tokens_BT: Tensor, state: DecodeState, *, last_only: bool = True) -> Tensor:
        """Reads the next tokens of every row and predicts what follows the last of them.

        Returns:
            Logits of the last position only, shape (B, V), in float32; of all that were read, (B, T, V), with
            ``last_only=False``.
        """
        ctx = _context(state, tokens_BT.shape[1])
        hidden_BTD = self.decoder(self.decoder_embed(tokens_BT), ctx, state.blocks)
        state.length += tokens_BT.shape[1]
        state.logits_BV = None
        return self.logits(hidden_BTD[:, -1] if last_only else hidden_BTD).float()


def _context(state: DecodeState, n_tokens: int) -> Context:
    """What a step over the next tokens knows: where they stand, and which places before them are padding."""
    start, mask_BS, positions_BT = state.prompt + state.length, None, None
    if state.padding_B is not None:
        place_S = torch.arange(start + n_tokens, device=state.padding_B.device)
        mask_BS = place_S >= state.padding_B[:, None]
        positions_BT = (place_S[start:] - state.padding_B[:, None]).clamp(min=0)
    return Context(start, mask_BS, positions_BT, memory_mask_BS=state.memory_mask_BS)

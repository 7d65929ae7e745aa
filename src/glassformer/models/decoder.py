"""Models that write what follows: GPT, LLaMA and their kin."""

from __future__ import annotations

from torch import Tensor

from glassformer.config import ModelConfig
from glassformer.models.model import Autoregressive
from glassformer.models.stack import Stack
from glassformer.nn.mixer import Context
from glassformer.nn.state import DecodeState


class Decoder(Autoregressive):
    """One causal stack (Radford et al. 2018)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        assert config.decoder is not None
        self.decoder = Stack(config.decoder, config.d_model)
        self._build_head()

    def hidden(self, ids_BT: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """The last hidden states, shape (B, T, D)."""
        return self.decoder(self.embed(ids_BT), Context(mask_BS=mask_BT))

    def forward(self, ids_BT: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Logits: position t predicts what follows ``ids[:, : t + 1]``.

        Args:
            ids_BT: Token ids.
            mask_BT: True where a token is real; ``None`` when all are. Padding on either side moves no position.

        Returns:
            Logits (B, T, V), or what another head says; hidden states (B, T, D) without a head.
        """
        return self._output(self.hidden(ids_BT, mask_BT), mask_BT)

    def start(self, prompt_BS: Tensor, prompt_mask_BS: Tensor | None = None) -> DecodeState:
        """Reads the prompts in one pass; ``state.logits_BV`` says what follows each, in float32.

        Args:
            prompt_BS: At least one token a row.
            prompt_mask_BS: True where a token is real, wherever the padding stands; ``None`` when all are.
        """
        if prompt_BS.shape[1] == 0:
            raise ValueError("an empty prompt: start with the token that begins a text")
        padding_B = None
        if prompt_mask_BS is not None:
            # Padding goes to the left, so that what follows a prompt stands in one column.
            order_BS = prompt_mask_BS.long().argsort(dim=1, stable=True)
            prompt_BS, padding_B = prompt_BS.gather(1, order_BS), (~prompt_mask_BS).sum(1)
        blocks = self.decoder.init_states(None)
        state = DecodeState(blocks, None, len(prompt_BS), prompt_BS.device, padding_B=padding_B)
        state.logits_BV, state.prompt, state.length = self.step(prompt_BS, state), prompt_BS.shape[1], 0
        return state

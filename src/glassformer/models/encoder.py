"""Models that read: BERT and its kin over tokens, ViT over the patches of an image."""

from __future__ import annotations

from torch import Tensor

from glassformer.config import ModelConfig
from glassformer.errors import UserError
from glassformer.models.model import Model
from glassformer.models.stack import Stack
from glassformer.nn.mixer import Context
from glassformer.nn.sparse import SlidingAttention


class Encoder(Model):
    """One stack that sees its whole input at once (Devlin et al. 2019; Dosovitskiy et al. 2021)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        assert config.encoder is not None
        self.encoder = Stack(config.encoder, config.d_model)
        self._build_head()

    def hidden(
        self,
        inputs: Tensor,
        mask_BT: Tensor | None = None,
        token_types_BT: Tensor | None = None,
        global_BT: Tensor | None = None,
    ) -> Tensor:
        """The last hidden states, shape (B, T, D); arguments are those of ``forward``."""
        if global_BT is not None and not any(isinstance(module, SlidingAttention) for module in self.modules()):
            raise UserError("global_BT: no layer of this model has global tokens; a mixer of type sliding has")
        x_BTD = self.embed(inputs) if token_types_BT is None else self.embed(inputs, token_types_BT)
        return self.encoder(x_BTD, Context(mask_BS=mask_BT, global_BT=global_BT))

    def forward(
        self,
        inputs: Tensor,
        mask_BT: Tensor | None = None,
        token_types_BT: Tensor | None = None,
        global_BT: Tensor | None = None,
    ) -> Tensor:
        """What the head says, or the last hidden states without a head.

        Args:
            inputs: Token ids (B, T), or pixels (B, C, H, W).
            mask_BT: True where a token is real; ``None`` when all are.
            token_types_BT: Segments of the tokens; 0 by default.
            global_BT: True where a token sees and is seen by all others, with Longformer's attention, such as the
                tokens of a question; ``None`` leaves it to the configuration.

        Returns:
            Hidden states (B, T, D); logits (B, T, V) of ids, (B, T, labels) or (B, labels) of labels, (B, T, 2) of
            spans; vectors (B, D).
        """
        return self._output(self.hidden(inputs, mask_BT, token_types_BT, global_BT), mask_BT)

"""The encoder–decoder Transformer."""

from __future__ import annotations

from torch import Tensor

from glassformer.config import ModelConfig
from glassformer.models.model import Autoregressive
from glassformer.models.stack import Stack
from glassformer.nn.embed import PatchEmbedding, TokenEmbedding
from glassformer.nn.mixer import Context
from glassformer.nn.state import DecodeState


class Seq2Seq(Autoregressive):
    """Reads a source sequence and writes a target sequence (Vaswani et al. 2017, figure 1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        assert config.encoder is not None and config.decoder is not None
        self.target_embed = TokenEmbedding(config.target_embed, config.d_model) if config.target_embed else None
        self.encoder = Stack(config.encoder, config.d_model)
        self.decoder = Stack(config.decoder, config.d_model)
        self._build_head()

    @property
    def decoder_embed(self) -> TokenEmbedding | PatchEmbedding:
        """The embedding that the decoder reads."""
        return self.target_embed or self.embed

    def encode(self, source_BS: Tensor, source_mask_BS: Tensor | None = None) -> Tensor:
        """Runs the encoder.

        Args:
            source_BS: Token ids.
            source_mask_BS: True where a token is real; ``None`` when all are.

        Returns:
            Hidden states, shape (B, S, D).
        """
        return self.encoder(self.embed(source_BS), Context(mask_BS=source_mask_BS))

    def hidden(
        self,
        source_BS: Tensor,
        target_BT: Tensor,
        source_mask_BS: Tensor | None = None,
        target_mask_BT: Tensor | None = None,
    ) -> Tensor:
        """The decoder's last hidden states under teacher forcing, shape (B, T, D)."""
        memory_BSD = self.encode(source_BS, source_mask_BS)
        ctx = Context(mask_BS=target_mask_BT, memory_BSD=memory_BSD, memory_mask_BS=source_mask_BS)
        return self.decoder(self.decoder_embed(target_BT), ctx)

    def forward(
        self,
        source_BS: Tensor,
        target_BT: Tensor,
        source_mask_BS: Tensor | None = None,
        target_mask_BT: Tensor | None = None,
    ) -> Tensor:
        """Teacher-forced logits: position t predicts what follows ``target[:, : t + 1]``.

        Args:
            source_BS: Source ids.
            target_BT: Target ids shifted right, ``<s> …``; padding behind the last token changes nothing before it.
            source_mask_BS: True where a source token is real; ``None`` when all are.
            target_mask_BT: Likewise of the target; needed where padding stands on its left, or a classifier reads its
                last token.

        Returns:
            Logits, shape (B, T, V), or what another head says.
        """
        return self._output(self.hidden(source_BS, target_BT, source_mask_BS, target_mask_BT), target_mask_BT)

    def start(self, source_BS: Tensor, source_mask_BS: Tensor | None = None) -> DecodeState:
        """Runs the encoder once and projects its output once, for a decoding of ``step`` after ``step``."""
        memory_BSD = self.encode(source_BS, source_mask_BS)
        blocks = self.decoder.init_states(memory_BSD)
        return DecodeState(blocks, source_mask_BS, len(source_BS), source_BS.device)

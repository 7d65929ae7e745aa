"""The encoder–decoder Transformer."""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.config import ModelConfig
from glassformer.models.stack import Stack
from glassformer.nn.embed import OutputHead, TokenEmbedding
from glassformer.nn.mixer import Context
from glassformer.nn.state import DecodeState
from glassformer.nn.tap import taps


class Seq2Seq(nn.Module):
    """Reads a source sequence and writes a target sequence (Vaswani et al. 2017, figure 1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = TokenEmbedding(config.embed, config.d_model)
        self.target_embed = TokenEmbedding(config.target_embed, config.d_model) if config.target_embed else None
        self.encoder = Stack(config.encoder, config.d_model)
        self.decoder = Stack(config.decoder, config.d_model)
        self.head = OutputHead(config.head, config.d_model, config.target_vocab_size, config.tie)

    @property
    def decoder_embed(self) -> TokenEmbedding:
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

    def hidden(self, source_BS: Tensor, target_BT: Tensor, source_mask_BS: Tensor | None = None) -> Tensor:
        """The decoder's last hidden states under teacher forcing, shape (B, T, D)."""
        memory_BSD = self.encode(source_BS, source_mask_BS)
        ctx = Context(memory_BSD=memory_BSD, memory_mask_BS=source_mask_BS)
        return self.decoder(self.decoder_embed(target_BT), ctx)

    def logits(self, hidden_D: Tensor) -> Tensor:
        """One logit for each id, from hidden states of any leading shape."""
        return self.head(hidden_D, self.decoder_embed)

    def forward(self, source_BS: Tensor, target_BT: Tensor, source_mask_BS: Tensor | None = None) -> Tensor:
        """Teacher-forced logits: position t predicts what follows ``target[:, : t + 1]``.

        Args:
            source_BS: Source ids.
            target_BT: Target ids shifted right, ``<s> …``; padding behind the last token changes nothing before it.
            source_mask_BS: True where a source token is real; ``None`` when all are.

        Returns:
            Logits, shape (B, T, V).
        """
        return self.logits(self.hidden(source_BS, target_BT, source_mask_BS))

    def start(self, source_BS: Tensor, source_mask_BS: Tensor | None = None) -> DecodeState:
        """Runs the encoder once and projects its output once, for a decoding of ``step`` after ``step``."""
        memory_BSD = self.encode(source_BS, source_mask_BS)
        blocks = self.decoder.init_states(memory_BSD)
        return DecodeState(blocks, source_mask_BS, len(source_BS), source_BS.device)

    def step(self, tokens_BT: Tensor, state: DecodeState, *, last_only: bool = True) -> Tensor:
        """Reads the next tokens of every row and predicts what follows the last of them.

        Returns:
            Logits of the last position only, shape (B, V), in float32; of all that were read, (B, T, V), with
            ``last_only=False``.
        """
        ctx = Context(start=state.length, memory_mask_BS=state.memory_mask_BS)
        hidden_BTD = self.decoder(self.decoder_embed(tokens_BT), ctx, state.blocks)
        state.length += tokens_BT.shape[1]
        return self.logits(hidden_BTD[:, -1] if last_only else hidden_BTD).float()

    def taps(self) -> dict[str, str]:
        """The named internals that ``glassformer.record`` captures, name → axes."""
        return taps(self)

    def num_parameters(self) -> int:
        """Number of trained numbers, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

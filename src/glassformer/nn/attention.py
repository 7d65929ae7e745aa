"""Multi-head attention: self (over this sequence) and cross (over the encoder's output)."""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.config import AttentionConfig
from glassformer.nn import mask as masks
from glassformer.nn.attend import attend
from glassformer.nn.mixer import Context, Mixer
from glassformer.nn.state import KVState, State, StaticKV
from glassformer.nn.tap import Tap


class MultiHead(Mixer):
    """The projections and heads that self- and cross-attention share (Vaswani et al. 2017, section 3.2.2).

    ``MultiHead(Q, K, V) = Concat(head_1 … head_h) W_O`` with ``head_i = Attention(Q W_Q, K W_K, V W_V)``.
    """

    def __init__(self, config: AttentionConfig, d_model: int) -> None:
        super().__init__()
        self.config = config
        d_head = config.d_head or d_model // config.n_heads
        d_inner = config.n_heads * d_head
        self.query = nn.Linear(d_model, d_inner, bias=config.bias)
        self.key = nn.Linear(d_model, d_inner, bias=config.bias)
        self.value = nn.Linear(d_model, d_inner, bias=config.bias)
        self.out = nn.Linear(d_inner, d_model, bias=config.bias)
        self.q, self.k, self.v = Tap("B H T K"), Tap("B H S K"), Tap("B H S K")
        self.scores, self.pattern = Tap("B H T S"), Tap("B H T S")
        self.z, self.result = Tap("B H T K"), Tap("B T D")

    def _heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (self.config.n_heads, -1)).transpose(1, 2)

    def _keys_values(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        return self._heads(self.key(x_BSD)), self._heads(self.value(x_BSD))

    def _mix(self, x_BTD: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor | None) -> Tensor:
        q_BHTK = self.q(self._heads(self.query(x_BTD)))
        k_BHSK, v_BHSK = self.k(k_BHSK), self.v(v_BHSK)
        z_BHTK = attend(
            q_BHTK,
            k_BHSK,
            v_BHSK,
            mask=mask,
            causal=self.config.causal,
            see_scores=self.scores,
            see_pattern=self.pattern,
        )
        z_BHTK = self.z(z_BHTK)
        return self.result(self.out(z_BHTK.transpose(1, 2).flatten(2)))


class SelfAttention(MultiHead):
    """Attention of a sequence to itself; causal in a decoder."""

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        k_BHSK, v_BHSK = self._keys_values(x_BTD)
        mask = None if ctx.mask_BS is None else masks.padding(ctx.mask_BS)
        if state is not None:
            assert isinstance(state, KVState) and mask is None
            k_BHSK, v_BHSK = state.append(k_BHSK, v_BHSK, ctx.start)
        return self._mix(x_BTD, k_BHSK, v_BHSK, mask)

    def init_state(self) -> KVState:
        return KVState()


class CrossAttention(MultiHead):
    """Attention of the decoder to the encoder's output: Q from here, K and V from there."""

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        if state is not None:
            assert isinstance(state, StaticKV)
            k_BHSK, v_BHSK = state.k_BHSK, state.v_BHSK
        else:
            assert ctx.memory_BSD is not None
            k_BHSK, v_BHSK = self._keys_values(ctx.memory_BSD)
        mask = None if ctx.memory_mask_BS is None else masks.padding(ctx.memory_mask_BS)
        return self._mix(x_BTD, k_BHSK, v_BHSK, mask)

    def memory_state(self, memory_BSD: Tensor) -> StaticKV:
        """Projects the encoder's output once, for every step of a decoding."""
        return StaticKV(*self._keys_values(memory_BSD))

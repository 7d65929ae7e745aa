"""Multi-head attention: self (over this sequence) and cross (over the encoder's output)."""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.config import AttentionConfig
from glassformer.nn import mask as masks
from glassformer.nn.attend import attend
from glassformer.nn.mixer import Context, Kept, Mixer
from glassformer.nn.rotary import rotate
from glassformer.nn.state import KVState, State, StaticKV
from glassformer.nn.tap import Tap


class MultiHead(Mixer):
    """The projections and heads that self- and cross-attention share (Vaswani et al. 2017, section 3.2.2).

    ``MultiHead(Q, K, V) = Concat(head_1 … head_h) W_O`` with ``head_i = Attention(Q W_Q, K W_K, V W_V)``. With
    ``n_kv_heads`` a group of heads shares its keys and values (Ainslie et al. 2023, arXiv:2305.13245).
    """

    def __init__(self, config: AttentionConfig, d_model: int) -> None:
        super().__init__()
        self.config = config
        d_head = config.head_size(d_model)
        self.n_kv_heads = config.n_kv_heads or config.n_heads
        d_inner, d_shared = config.n_heads * d_head, self.n_kv_heads * d_head
        self.query = nn.Linear(d_model, d_inner, bias=config.bias)
        self.key = nn.Linear(d_model, d_shared, bias=config.bias)
        self.value = nn.Linear(d_model, d_shared, bias=config.bias)
        self.out = nn.Linear(d_inner, d_model, bias=config.bias if config.out_bias is None else config.out_bias)
        keys = "B H S K" if self.n_kv_heads == config.n_heads else "B G S K"
        self.q, self.k, self.v = Tap("B H T K"), Tap(keys), Tap(keys)
        self.scores, self.pattern = Tap("B H T S"), Tap("B H T S")
        self.z, self.result = Tap("B H T K"), Tap("B T D")

    def flops(self, context: int) -> int:
        return 4 * min(context, self.config.window or context) * self.query.out_features

    def kept(self) -> Kept:
        return Kept(per_token=self.key.out_features + self.value.out_features)

    def shape(self) -> str:
        config, heads = self.config, self.config.n_heads
        shared = f", {self.n_kv_heads} of keys and values" if self.n_kv_heads != heads else ""
        seen = (", causal" if config.causal else "") + (f", window {config.window}" if config.window else "")
        size = self.query.out_features // heads
        return f"{heads} × {size}{shared}{seen}" + (", rotary" if config.rotary else "")

    def _queries(self, x_BTD: Tensor) -> Tensor:
        return self.query(x_BTD).unflatten(-1, (self.config.n_heads, -1)).transpose(1, 2)

    def _keys_values(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        k_BSGK, v_BSGK = (y.unflatten(-1, (self.n_kv_heads, -1)) for y in (self.key(x_BSD), self.value(x_BSD)))
        return k_BSGK.transpose(1, 2), v_BSGK.transpose(1, 2)

    def _mix(
        self, q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, mask: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        z_BHTK = attend(
            self.q(q_BHTK),
            self.k(k_BGSK),
            self.v(v_BGSK),
            mask=mask,
            causal=self.config.causal,
            window=self.config.window,
            bias=bias,
            scale=self.config.scale,
            see_scores=self.scores,
            see_pattern=self.pattern,
        )
        z_BHTK = self.z(z_BHTK)
        return self.result(self.out(z_BHTK.transpose(1, 2).flatten(2)))


class SelfAttention(MultiHead):
    """Attention of a sequence to itself; causal in a decoder."""

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        q_BHTK = self._queries(x_BTD)
        k_BGSK, v_BGSK = self._keys_values(x_BTD)
        if self.config.rotary is not None:
            cos, sin = ctx.rotary[self.config.rotary]
            q_BHTK = rotate(q_BHTK, cos, sin, self.config.rotary.layout)
            k_BGSK = rotate(k_BGSK, cos, sin, self.config.rotary.layout)
        if state is not None:
            assert isinstance(state, KVState)
            k_BGSK, v_BGSK = state.append(k_BGSK, v_BGSK, ctx.start)
        # A state with a window hands out the last keys only.
        n_keys = k_BGSK.shape[2]
        mask = None if ctx.mask_BS is None else masks.padding(ctx.mask_BS[:, -n_keys:])
        bias = None if ctx.bias_HTS is None else ctx.bias_HTS[..., -n_keys:]
        return self._mix(q_BHTK, k_BGSK, v_BGSK, mask, bias)

    def init_state(self) -> KVState:
        return KVState(self.config.window)


class CrossAttention(MultiHead):
    """Attention of the decoder to the encoder's output: Q from here, K and V from there."""

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        if state is not None:
            assert isinstance(state, StaticKV)
            k_BGSK, v_BGSK = state.k_BHSK, state.v_BHSK
        else:
            assert ctx.memory_BSD is not None
            k_BGSK, v_BGSK = self._keys_values(ctx.memory_BSD)
        mask = None if ctx.memory_mask_BS is None else masks.padding(ctx.memory_mask_BS)
        return self._mix(self._queries(x_BTD), k_BGSK, v_BGSK, mask)

    def memory_state(self, memory_BSD: Tensor) -> StaticKV:
        """Projects the encoder's output once, for every step of a decoding."""
        return StaticKV(*self._keys_values(memory_BSD))

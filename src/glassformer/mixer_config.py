"""Configurations of token mixers: the parts that move information between positions. No torch.

Every one of them says whether it is ``causal``, which ``rotary`` tables it reads, and by ``problem`` what keeps it from
standing in a model. Those of ``RecurrentConfig`` read from left to right and carry a memory of constant size.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from glassformer.position_config import RotaryConfig
from glassformer.schema import Config, Positive, PositiveFloat, type_or

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "quick-gelu"]


class AttentionConfig(Config):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

    type: Literal["attention"] = "attention"
    n_heads: Positive
    n_kv_heads: Positive | None = None
    """Heads of keys and values, each shared by a group of queries (Ainslie et al. 2023); ``None`` means ``n_heads``."""
    d_head: Positive | None = None
    """Size of one head; ``None`` means ``d_model / n_heads``."""
    causal: bool = False
    window: Positive | None = None
    """Only keys less than ``window`` places away are seen (Child et al. 2019; Beltagy et al. 2020)."""
    bias: bool = True
    out_bias: bool | None = None
    """Bias of the output projection; ``None`` means ``bias``."""
    scale: PositiveFloat | None = None
    """Multiplies the scores; ``None`` means ``1/√d_head``."""
    rotary: RotaryConfig | None = None

    def head_size(self, d_model: int) -> int:
        """Size of one head."""
        return self.d_head or d_model // self.n_heads

    def problem(self, d_model: int) -> str | None:
        """What keeps this attention from standing in a model of that width."""
        if self.d_head is None and d_model % self.n_heads:
            return f"d_model {d_model} is not a multiple of n_heads {self.n_heads}; change one, or give d_head"
        if self.n_heads % (self.n_kv_heads or 1):
            return f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}; change one"
        if self.rotary and int(self.rotary.fraction * self.head_size(d_model)) % 2:
            return f"rotary.fraction {self.rotary.fraction} of a head of {self.head_size(d_model)} is no even number"
        return None


class RecurrentConfig(Config):
    """Base of every mixer that reads from left to right and remembers in constant space."""

    @property
    def causal(self) -> bool:
        """No token sees a later one."""
        return True

    @property
    def rotary(self) -> None:
        """The order of the tokens is in the recurrence itself."""
        return None

    def problem(self, d_model: int) -> str | None:
        """What keeps this mixer from standing in a model of that width."""
        return None


class RetentionConfig(RecurrentConfig):
    """Multi-scale retention (Sun et al. 2023, arXiv:2307.08621, section 2)."""

    type: Literal["retention"] = "retention"
    n_heads: Positive
    d_head: Positive | None = None
    """Size of one head of queries and keys; ``None`` means ``d_model / n_heads``."""
    d_value: Positive | None = None
    """Size of one head of values; ``None`` means ``2 · d_head``, as in section 3.1."""
    forget: tuple[Annotated[float, Field(ge=1e-30, lt=1)], ...] | None = None
    """1 − γ of each head: the share that is forgotten at each token; ``None`` means ``2^(−5−i)`` (equation 8)."""
    base: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 10000.0
    """Base of the angles by which queries and keys turn."""
    bias: bool = False
    chunk: Positive = 128
    """Tokens that are read in parallel; longer texts are read chunk after chunk. It changes no result."""
    eps: PositiveFloat = 1e-6

    def head_size(self, d_model: int) -> int:
        """Size of one head of queries and keys."""
        return self.d_head or d_model // self.n_heads

    def problem(self, d_model: int) -> str | None:
        """What keeps this retention from standing in a model of that width."""
        if self.d_head is None and d_model % self.n_heads:
            return f"d_model {d_model} is not a multiple of n_heads {self.n_heads}; change one, or give d_head"
        if self.head_size(d_model) % 2:
            return f"a head of {self.head_size(d_model)} features cannot turn: retention needs an even d_head"
        if self.forget is not None and len(self.forget) != self.n_heads:
            return f"forget has {len(self.forget)} numbers; it needs one for each of the {self.n_heads} heads"
        return None


class StateSpaceConfig(RecurrentConfig):
    """What both Mambas have."""

    d_conv: Positive = 4
    """Tokens that the convolution sees, this one included."""
    bias: bool = False
    """Of the linear layers in and out."""
    conv_bias: bool = True
    activation: Activation = "silu"
    dt_min: PositiveFloat = 0.001
    """The least step size that is drawn at first."""
    dt_max: PositiveFloat = 0.1
    """The largest one."""

    def problem(self, d_model: int) -> str | None:
        """What keeps it from standing in a model."""
        if self.dt_min > self.dt_max:
            return f"dt_min {self.dt_min} is more than dt_max {self.dt_max}; change one"
        return None


class MambaConfig(StateSpaceConfig):
    """A selective state space for each inner feature (Gu and Dao 2023, arXiv:2312.00752)."""

    type: Literal["mamba"] = "mamba"
    d_inner: Positive | None = None
    """Inner features; ``None`` means ``2 · d_model`` (section 3.4)."""
    d_state: Positive = 16
    """Numbers that each of them remembers."""
    dt_rank: Positive | None = None
    """Rank of the step sizes' projection; ``None`` means ``d_model / 16``, rounded up."""

    def inner(self, d_model: int) -> int:
        """Number of inner features."""
        return self.d_inner or 2 * d_model

    def rank(self, d_model: int) -> int:
        """Rank of the step sizes' projection."""
        return self.dt_rank or -(-d_model // 16)


class Mamba2Config(StateSpaceConfig):
    """Selective state spaces in heads, one decay for each (Dao and Gu 2024, arXiv:2405.21060)."""

    type: Literal["mamba2"] = "mamba2"
    n_heads: Positive
    d_head: Positive = 64
    n_groups: Positive = 1
    """Groups of heads that share what enters the state and how it is read."""
    d_state: Positive = 128
    """Numbers that each feature of a head remembers."""
    norm_groups: Positive | None = None
    """Groups of features that are normed by themselves behind the gate; ``None`` means ``n_groups``."""
    dt_range: tuple[Annotated[float, Field(ge=0)], PositiveFloat] | None = None
    """Step sizes are kept within it."""
    chunk: Positive = 64
    """Tokens that are read in parallel; longer texts are read chunk after chunk. It changes no result."""
    eps: PositiveFloat = 1e-5

    @property
    def inner(self) -> int:
        """Number of inner features."""
        return self.n_heads * self.d_head

    def problem(self, d_model: int) -> str | None:
        """What keeps it from standing in a model."""
        if self.n_heads % self.n_groups:
            return f"n_heads {self.n_heads} is not a multiple of n_groups {self.n_groups}; change one"
        if self.inner % (self.norm_groups or 1):
            return f"n_heads · d_head {self.inner} is not a multiple of norm_groups {self.norm_groups}; change one"
        if self.dt_range is not None and self.dt_range[0] > self.dt_range[1]:
            return f"dt_range {list(self.dt_range)} begins after its end; give the least step size first"
        return super().problem(d_model)


class LSTMConfig(RecurrentConfig):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; Gers et al. 2000)."""

    type: Literal["lstm"] = "lstm"
    d_hidden: Positive | None = None
    """Width of the memory; ``None`` means ``d_model``, and then no matrix stands behind it."""
    bias: bool = True


class RWKV4Config(RecurrentConfig):
    """RWKV-4's time-mix (Peng et al. 2023, arXiv:2305.13048)."""

    type: Literal["rwkv4"] = "rwkv4"
    d_attention: Positive | None = None
    """Number of channels; ``None`` means ``d_model``."""


class _RWKVHeadsConfig(RecurrentConfig):
    """What RWKV-5 and RWKV-7 have."""

    n_heads: Positive
    eps: PositiveFloat = 64e-5
    """Of the norm of each head."""

    def problem(self, d_model: int) -> str | None:
        """What keeps it from standing in a model of that width."""
        if d_model % self.n_heads:
            return f"d_model {d_model} is not a multiple of n_heads {self.n_heads}; change one"
        return None


class RWKV5Config(_RWKVHeadsConfig):
    """RWKV-5's time-mix, of Eagle (Peng et al. 2024, arXiv:2404.05892)."""

    type: Literal["rwkv5"] = "rwkv5"
    gate: bool = True
    """RWKV-5.2's gate; 5.1 has none."""


class RWKV7Config(_RWKVHeadsConfig):
    """RWKV-7's time-mix, of Goose (Peng et al. 2025, arXiv:2503.14456)."""

    type: Literal["rwkv7"] = "rwkv7"
    decay_rank: Positive = 64
    """Features through which a token chooses how fast each channel decays."""
    rate_rank: Positive = 64
    """Likewise, how much of an old value it takes out."""
    value_rank: Positive | None = None
    """Likewise, how much of the first layer's value it takes on; ``None``, as in the first layer itself, is nothing."""
    gate_rank: Positive = 128


_AnyRecurrent = (
    Annotated[RetentionConfig, Tag("retention")]
    | Annotated[MambaConfig, Tag("mamba")]
    | Annotated[Mamba2Config, Tag("mamba2")]
    | Annotated[LSTMConfig, Tag("lstm")]
    | Annotated[RWKV4Config, Tag("rwkv4")]
    | Annotated[RWKV5Config, Tag("rwkv5")]
    | Annotated[RWKV7Config, Tag("rwkv7")]
)


class BidirectionalConfig(Config):
    """Two recurrences for an encoder, ``f(x) + reverse(g(reverse(x)))``, each with its own weights."""

    type: Literal["bidirectional"] = "bidirectional"
    mixer: Annotated[_AnyRecurrent, Discriminator("type")]

    @property
    def causal(self) -> bool:
        """Every token sees all others."""
        return False

    @property
    def rotary(self) -> None:
        """The order of the tokens is in the recurrences themselves."""
        return None

    def problem(self, d_model: int) -> str | None:
        """What keeps it from standing in a model of that width."""
        return self.mixer.problem(d_model)


class SparseConfig(Config):
    """Base of attention that sees a part of the keys, so that its cost is linear in length."""

    n_heads: Positive
    d_head: Positive | None = None
    """Size of one head; ``None`` means ``d_model / n_heads``."""
    bias: bool = True
    out_bias: bool | None = None
    """Bias of the output projection; ``None`` means ``bias``."""

    @property
    def rotary(self) -> None:
        """Positions are added to the embeddings."""
        return None

    def head_size(self, d_model: int) -> int:
        """Size of one head."""
        return self.d_head or d_model // self.n_heads

    def problem(self, d_model: int) -> str | None:
        """What keeps this attention from standing in a model of that width."""
        if self.d_head is None and d_model % self.n_heads:
            return f"d_model {d_model} is not a multiple of n_heads {self.n_heads}; change one, or give d_head"
        return None


class SlidingConfig(SparseConfig):
    """A window that slides along, and a few tokens that see and are seen by all (Beltagy et al. 2020, section 3.1)."""

    type: Literal["sliding"] = "sliding"
    reach: Annotated[int, Field(ge=0, le=2**31 - 1)]
    """Steps to each side; the paper's window is twice that."""
    dilation: Positive = 1
    """Places in a step: those between are not seen."""
    causal: bool = False
    """Sees no later token; there are no global tokens then."""
    global_tokens: Literal["first", "none"] | None = None
    """Which tokens are global where a pass does not say: the first real one of each row, or none.

    ``None`` is ``first``, and ``none`` in causal attention, which has no global tokens: they would see later ones.
    """

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.causal and self.global_tokens == "first":
            raise ValueError("a global token sees later ones, so causal attention has none; leave global_tokens out")
        return self


class BlocksConfig(SparseConfig):
    """Neighbouring, first, last and random blocks of keys (Zaheer et al. 2020, arXiv:2007.14062, section 2).

    A text of at most ``5 + 2 · random`` blocks is read whole.
    """

    type: Literal["blocks"] = "blocks"
    block: Positive = 64
    """Tokens of one block."""
    random: Annotated[int, Field(ge=0, le=2**31 - 1)] = 3
    """Random blocks that each block sees."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """They are drawn from it once for all; each layer has another one."""
    drawn: Literal["always", "training"] = "always"
    """With ``training``, every random block is the first one outside of training (as `transformers` evaluates)."""
    plan_len: Positive = 4096
    """Texts of 1024, 3072 and 4096 tokens take the beginning of what is drawn for so many."""

    @property
    def causal(self) -> bool:
        """Every block sees later ones."""
        return False


MixerConfig = Annotated[
    Annotated[AttentionConfig, Tag("attention")]
    | _AnyRecurrent
    | Annotated[BidirectionalConfig, Tag("bidirectional")]
    | Annotated[SlidingConfig, Tag("sliding")]
    | Annotated[BlocksConfig, Tag("blocks")],
    Discriminator(type_or("attention")),
]

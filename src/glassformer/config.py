"""Model configurations: frozen data that says everything about a model's shape. Imports no torch.

A configuration is a tree: ``ModelConfig`` → ``StackConfig`` → ``BlockConfig`` → mixer, feed-forward, norm. Parts that
can be swapped are unions of config types told apart by their ``type`` key, so that a part cannot carry another part's
options. Unknown keys are errors that name the nearest known one. Every default is the original Transformer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_serializer, model_validator

from glassformer.errors import UserError
from glassformer.mixer_config import Activation as Activation
from glassformer.mixer_config import AttentionConfig as AttentionConfig
from glassformer.mixer_config import BidirectionalConfig as BidirectionalConfig
from glassformer.mixer_config import BlocksConfig as BlocksConfig
from glassformer.mixer_config import LSTMConfig as LSTMConfig
from glassformer.mixer_config import Mamba2Config as Mamba2Config
from glassformer.mixer_config import MambaConfig as MambaConfig
from glassformer.mixer_config import MixerConfig as MixerConfig
from glassformer.mixer_config import RecurrentConfig as RecurrentConfig
from glassformer.mixer_config import RetentionConfig as RetentionConfig
from glassformer.mixer_config import RWKV4Config as RWKV4Config
from glassformer.mixer_config import RWKV5Config as RWKV5Config
from glassformer.mixer_config import RWKV7Config as RWKV7Config
from glassformer.mixer_config import SlidingConfig as SlidingConfig
from glassformer.mixer_config import SparseConfig as SparseConfig
from glassformer.mixer_config import StateSpaceConfig as StateSpaceConfig
from glassformer.position_config import AlibiConfig as AlibiConfig
from glassformer.position_config import BiasConfig as BiasConfig
from glassformer.position_config import DynamicScaling as DynamicScaling
from glassformer.position_config import LearnedPositionConfig as LearnedPositionConfig
from glassformer.position_config import LinearScaling as LinearScaling
from glassformer.position_config import Llama3Scaling as Llama3Scaling
from glassformer.position_config import PositionConfig as PositionConfig
from glassformer.position_config import RotaryConfig as RotaryConfig
from glassformer.position_config import ScalingConfig as ScalingConfig
from glassformer.position_config import SinusoidalConfig as SinusoidalConfig
from glassformer.position_config import T5BucketsConfig as T5BucketsConfig
from glassformer.position_config import YarnScaling as YarnScaling
from glassformer.schema import Config as Config
from glassformer.schema import Positive as Positive
from glassformer.schema import PositiveFloat as PositiveFloat
from glassformer.schema import explain as explain
from glassformer.schema import type_or, unfolded

Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]


class LayerNormConfig(Config):
    """Layer normalisation (Ba et al. 2016)."""

    type: Literal["layer"] = "layer"
    eps: PositiveFloat = 1e-5
    bias: bool = True


class RMSNormConfig(Config):
    """Root-mean-square normalisation (Zhang and Sennrich 2019)."""

    type: Literal["rms"] = "rms"
    eps: PositiveFloat = 1e-6


NormConfig = Annotated[
    Annotated[LayerNormConfig, Tag("layer")] | Annotated[RMSNormConfig, Tag("rms")], Discriminator(type_or("layer"))
]


class MLPConfig(Config):
    """Position-wise feed-forward network (Vaswani et al. 2017, section 3.3)."""

    type: Literal["mlp"] = "mlp"
    d_ff: Positive
    activation: Activation = "relu"
    bias: bool = True


class GatedMLPConfig(Config):
    """Gated feed-forward network, such as SwiGLU (Shazeer 2020, arXiv:2002.05202)."""

    type: Literal["gated"] = "gated"
    d_ff: Positive
    activation: Activation = "silu"
    bias: bool = False


class ChannelMixConfig(Config):
    """RWKV's feed-forward part, which sees the token before, too (Peng et al. 2023, arXiv:2305.13048, section 3.1)."""

    type: Literal["channel-mix"] = "channel-mix"
    d_ff: Positive
    gate: bool = True
    """Multiplied by a gate, as in RWKV-4 and RWKV-5; RWKV-7 has none."""


FFNConfig = Annotated[
    Annotated[MLPConfig, Tag("mlp")]
    | Annotated[GatedMLPConfig, Tag("gated")]
    | Annotated[ChannelMixConfig, Tag("channel-mix")],
    Discriminator(type_or("mlp")),
]


class BlockConfig(Config):
    """One layer: a mixer, perhaps cross-attention, perhaps a feed-forward part, each with a residual and a norm."""

    mixer: MixerConfig
    cross: AttentionConfig | None = None
    ffn: FFNConfig | None = None
    norm: NormConfig = LayerNormConfig()
    order: Literal["pre", "post"] = "post"
    """``post`` is the original ``norm(x + f(x))``; ``pre`` is ``x + f(norm(x))`` (Xiong et al. 2020)."""
    parallel: bool = False
    """Mixer and feed-forward read the same input, ``x + f(norm x) + g(norm′ x)`` (Black et al. 2022, GPT-NeoX)."""
    dropout: Dropout = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.cross is not None:
            if self.cross.causal:
                raise ValueError("cross.causal must be false: every source position is known before the target is read")
            if self.cross.window or self.cross.rotary:
                raise ValueError("cross-attention has neither window nor rotary: source and target share no positions")
        if self.parallel and (self.order == "post" or self.cross or not self.ffn):
            raise ValueError("a parallel block needs order: pre and an ffn, and has no cross-attention")
        return self

    @property
    def attention(self) -> AttentionConfig:
        """The mixer, for what knows plain attention alone.

        Raises:
            UserError: It is another one.
        """
        if type(self.mixer) is not AttentionConfig:
            raise UserError(f"a mixer of type {self.mixer.type} cannot be represented, only attention")
        return self.mixer

    @property
    def mlp(self) -> MLPConfig | GatedMLPConfig | None:
        """The feed-forward part, for what knows those alone that look at one token.

        Raises:
            UserError: It is another one.
        """
        if not isinstance(self.ffn, MLPConfig | GatedMLPConfig | None):
            raise UserError(f"a feed-forward part of type {self.ffn.type} cannot be represented, only mlp or gated")
        return self.ffn


class StackConfig(Config):
    """Blocks in a row, with what comes before the first and after the last.

    In plain data, equal neighbouring blocks are folded into one ``{"repeat": 6, "block": {...}}``.
    """

    position: PositionConfig | None = None
    bias: BiasConfig | None = None
    """Added to the scores of every self-attention, computed once a pass."""
    input_norm: NormConfig | None = None
    """Norm of the sum of embedding and position, before dropout (BERT, BART)."""
    blocks: tuple[BlockConfig, ...]
    final_norm: NormConfig | None = None
    dropout: Dropout = 0.0
    """Dropout on the sum of embedding and position."""

    @property
    def max_len(self) -> int | None:
        """Most tokens that the stack can read; ``None`` when there is no limit."""
        return None if self.position is None else self.position.max_len

    @model_validator(mode="before")
    @classmethod
    def _unfold(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("blocks"), list | tuple):
            return data
        return {**data, "blocks": unfolded(data["blocks"])}

    @model_serializer(mode="wrap")
    def _fold(self, handler: Any) -> dict[str, Any]:
        data = handler(self)
        runs = [(block, len(list(run))) for block, run in groupby(data["blocks"])]
        data["blocks"] = [{"repeat": count, "block": block} for block, count in runs]
        return data

    def problem(self, d_model: int) -> str | None:
        """What keeps this stack from standing in a model of that width."""
        for index, block in enumerate(self.blocks):
            for mixer in (block.mixer, block.cross):
                if mixer and (problem := mixer.problem(d_model)):
                    return f"block {index}: {problem}"
            if self.bias and not isinstance(block.mixer, AttentionConfig):
                return f"block {index}: {block.mixer.type} has no scores that a bias could be added to"
        if self.bias and len({getattr(block.mixer, "n_heads", 0) for block in self.blocks}) > 1:
            return "a bias of the scores needs the same n_heads in every block"
        if isinstance(self.position, SinusoidalConfig) and d_model % 2:
            return f"sinusoidal positions need an even d_model, got {d_model}"
        return None


class EmbedConfig(Config):
    """Token embedding: one row of ``d_model`` numbers for each of ``vocab_size`` ids."""

    type: Literal["tokens"] = "tokens"
    vocab_size: Positive
    scale: bool = True
    """Multiply by √d_model, as in section 3.4 of the paper."""
    token_types: Annotated[int, Field(ge=0)] = 0
    """Rows of a second table that tells segments apart (Devlin et al. 2019, figure 2)."""


class PatchEmbedConfig(Config):
    """An image cut into patches, each one projected, with learned positions (Dosovitskiy et al. 2021, equation 1)."""

    type: Literal["patches"] = "patches"
    image_size: tuple[Positive, Positive]
    """Height and width that the positions are stored for; those of other sizes are interpolated."""
    patch_size: tuple[Positive, Positive]
    channels: Positive = 3
    class_token: bool = True
    bias: bool = True
    mean: tuple[float, ...] | None = None
    """Of each channel, for pixels in 0 … 1: image files are read as ``(pixel − mean) / deviation``. ``None`` is 0.5."""
    deviation: tuple[PositiveFloat, ...] | None = None
    """Likewise."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @model_validator(mode="after")
    def _whole_patches(self) -> Self:
        if self.image_size[0] % self.patch_size[0] or self.image_size[1] % self.patch_size[1]:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")
        for name in ("mean", "deviation"):
            if len(getattr(self, name) or range(self.channels)) != self.channels:
                raise ValueError(f"{name} needs one number for each of the {self.channels} channels")
        return self


InputConfig = Annotated[
    Annotated[EmbedConfig, Tag("tokens")] | Annotated[PatchEmbedConfig, Tag("patches")],
    Discriminator(type_or("tokens")),
]


class HeadConfig(Config):
    """The output layer that turns a hidden state into one logit for each id."""

    type: Literal["lm"] = "lm"
    bias: bool = False
    scale: bool = False
    """Divide the hidden state by √d_model first (T5 with tied embeddings)."""


class MaskedLMHeadConfig(Config):
    """A hidden layer, a norm, then one logit for each id (Devlin et al. 2019)."""

    type: Literal["masked-lm"] = "masked-lm"
    activation: Activation = "gelu"
    norm: NormConfig = LayerNormConfig(eps=1e-12)
    bias: bool = True


class ClassifierConfig(Config):
    """One vector for the whole sequence, perhaps a hidden layer, then one logit for each label."""

    type: Literal["classifier"] = "classifier"
    labels: Annotated[tuple[str, ...], Field(min_length=1)]
    pool: Literal["first", "mean", "last"] = "first"
    """``first`` reads BERT's ``[CLS]`` or ViT's class token, ``last`` the last real token (GPT, BART's ``</s>``)."""
    hidden: Literal["tanh", Activation] | None = None
    """Activation of the hidden layer; ``None`` leaves it out."""
    bias: bool = True
    dropout: Dropout = 0.0


class TokenClassifierConfig(Config):
    """One logit for each label at each position."""

    type: Literal["token-classifier"] = "token-classifier"
    labels: Annotated[tuple[str, ...], Field(min_length=1)]
    dropout: Dropout = 0.0


class SpanConfig(Config):
    """Two logits at each position: the answer starts here, the answer ends here (Devlin et al. 2019, section 4.2)."""

    type: Literal["span"] = "span"


class PoolConfig(Config):
    """One vector for a sentence (Reimers and Gurevych 2019)."""

    type: Literal["pool"] = "pool"
    pool: Literal["first", "mean", "last"] = "mean"
    normalise: bool = True
    """Give it length 1."""


class PoolerConfig(Config):
    """Hidden states as they are, and beside them ``tanh(x W + b)`` of the first one (Devlin et al. 2019).

    A trace shows it, and a classifier with ``hidden: tanh`` starts from its layer.
    """

    type: Literal["pooler"] = "pooler"


AnyHeadConfig = Annotated[
    Annotated[HeadConfig, Tag("lm")]
    | Annotated[MaskedLMHeadConfig, Tag("masked-lm")]
    | Annotated[ClassifierConfig, Tag("classifier")]
    | Annotated[TokenClassifierConfig, Tag("token-classifier")]
    | Annotated[SpanConfig, Tag("span")]
    | Annotated[PoolConfig, Tag("pool")]
    | Annotated[PoolerConfig, Tag("pooler")],
    Discriminator(type_or("lm")),
]


class InitConfig(Config):
    """How fresh weights are drawn.

    ``xavier``: Glorot and Bengio 2010, the original's. ``normal``: every matrix with deviation ``std`` (BERT), with
    ``residual`` those that end a sub-layer divided by √(number of sub-layers) (GPT-2, section 2.3). ``fan-in``: every
    matrix with deviation ``1/√inputs``, embeddings with 1 (T5).
    """

    type: Literal["xavier", "normal", "fan-in"] = "xavier"
    std: PositiveFloat = 0.02
    residual: bool = False


class ModelConfig(Config):
    """A whole model: an encoder (BERT, ViT), a decoder (GPT, LLaMA), or both (the original Transformer, T5, BART)."""

    d_model: Positive
    embed: InputConfig
    target_embed: EmbedConfig | None = None
    """The decoder's own embedding beside an encoder; ``None`` shares the encoder's."""
    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    head: AnyHeadConfig | None = HeadConfig()
    """What reads the last hidden states; ``None`` gives them as they are."""
    tie: bool = True
    """The output layer reuses the decoder's embedding matrix (Press and Wolf 2017)."""
    init: InitConfig = InitConfig()

    @property
    def kind(self) -> Literal["encoder-decoder", "encoder", "decoder"]:
        """Which of the three shapes it has."""
        return "encoder-decoder" if self.encoder and self.decoder else "encoder" if self.encoder else "decoder"

    @property
    def stacks(self) -> Iterator[tuple[str, StackConfig]]:
        """The encoder and the decoder, as far as there are any."""
        yield from ((name, stack) for name in ("encoder", "decoder") if (stack := getattr(self, name)) is not None)

    @property
    def target_vocab_size(self) -> int:
        """Number of logits of a language model."""
        embed = self.target_embed or self.embed
        return embed.vocab_size if isinstance(embed, EmbedConfig) else 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.encoder is None and self.decoder is None:
            raise ValueError("a model needs an encoder, a decoder, or both")
        for name, stack in self.stacks:
            if problem := stack.problem(self.d_model):
                raise ValueError(f"{name} {problem}" if problem.startswith("block") else problem)
            for index, block in enumerate(stack.blocks):
                if (name == "decoder" and self.encoder is not None) != (block.cross is not None):
                    where = "in the decoder of an encoder–decoder" if self.encoder is None else "in the decoder"
                    raise ValueError(f"{name} block {index}: cross-attention belongs {where} and nowhere else")
                causal = name == "decoder"
                # A recurrence may stand in an encoder, too: it reads from left to right.
                if block.mixer.causal == causal or isinstance(block.mixer, RecurrentConfig):
                    continue
                if not isinstance(block.mixer, AttentionConfig | SlidingConfig):
                    raise ValueError(f"{name} block {index}: {block.mixer.type} sees later tokens; a decoder cannot")
                wrong = "self-attention is causal in the decoder and nowhere else"
                raise ValueError(f"{name} block {index}: {wrong}; set causal: {str(causal).lower()}")
        if self.target_embed is not None and self.kind != "encoder-decoder":
            raise ValueError("target_embed is for an encoder–decoder: a single stack reads embed")
        if isinstance(self.embed, PatchEmbedConfig):
            if self.kind != "encoder":
                raise ValueError("patches are read by an encoder alone")
            if isinstance(self.head, HeadConfig | MaskedLMHeadConfig):
                raise ValueError(f"head {self.head.type}: an image has no ids to predict; take a classifier, or null")
        return self

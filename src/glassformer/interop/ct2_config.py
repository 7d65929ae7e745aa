"""What the variables of a CTranslate2 model say of its shape, and which of our tensors they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from glassformer.config import (
    AttentionConfig,
    BlockConfig,
    EmbedConfig,
    GatedMLPConfig,
    HeadConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    MLPConfig,
    ModelConfig,
    NormConfig,
    RMSNormConfig,
    SinusoidalConfig,
    StackConfig,
    T5BucketsConfig,
)
from glassformer.errors import UserError
from glassformer.interop.ct2_file import Variables
from glassformer.interop.ct2_rotary import read_rotary
from glassformer.nn.position import sinusoids
from glassformer.weights import Copy, Rule, Split, Tie, ignore

ACTIVATIONS = ("relu", "gelu-tanh", "silu", "gelu", "quick-gelu")
"""By CTranslate2's number."""
SPECS = {"TransformerBase": True, "TransformerBig": True, "TransformerSpec": True, "TransformerDecoderSpec": False}
"""Kinds of models, and whether there is an encoder."""
LAYOUTS: tuple[Literal["halves", "interleaved"], ...] = ("halves", "interleaved")
ENDLESS = 1024
"""Positions that we give a model whose sinusoids CTranslate2 computes without a limit."""


def configuration(variables: Variables, options: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a model's variables and its ``config.json`` say.

    Raises:
        UserError: A scalar or a spec that we do not know.
    """
    if variables.spec not in SPECS:
        raise UserError(f"a {variables.spec} cannot be represented, only {', '.join(SPECS)}")
    return _Reading(variables, options).config(SPECS[variables.spec])


class _Reading:
    """One reading of a configuration; every scalar is taken, or is an error in the end."""

    def __init__(self, variables: Variables, options: Mapping[str, Any]) -> None:
        self.variables, self.left = variables, dict(variables.scalars)
        self.epsilon = options.get("layer_norm_epsilon")

    def take(self, name: str, default: Any = None) -> Any:
        return self.left.pop(name, default)

    def only(self, name: str, value: float) -> None:
        if (found := self.take(name, value)) != value:
            raise UserError(f"{name} {found} cannot be represented, only {value}")

    def config(self, with_encoder: bool) -> ModelConfig:
        source, target = source_embedding(self.variables), "decoder/embeddings/weight"
        vocab_size, d_model = self.variables.shape(source if with_encoder else target)
        decoder, scale = self.stack("decoder", d_model)
        encoder, source_scale = self.stack("encoder", d_model) if with_encoder else (None, scale)
        shared = not with_encoder or (source_scale == scale and self.variables.same(source, target))
        target_embed = None if shared else EmbedConfig(vocab_size=self.variables.shape(target)[0], scale=scale)
        projection, factor = "decoder/projection", self.take("decoder/scale_outputs")
        if factor is not None and abs(factor - d_model**-0.5) > 1e-6:
            raise UserError(f"decoder/scale_outputs {factor} cannot be represented, only 1/√{d_model}")
        # Where attention is read for alignments, and how the decoder starts, is not the model's shape.
        for name in ("alignment_layer", "alignment_heads", "start_from_zero_embedding"):
            self.take(f"decoder/{name}")
        for name in ("alibi", "alibi_use_positive_positions", "scale_alibi"):
            self.only(f"decoder/{name}", 0)
        self.take("encoder/embeddings_merge")  # of a single embedding
        self.only("encoder/multi_query_attention", 0)
        left = [name for name in self.left if not name.endswith("_scale")]
        if left:
            raise UserError(f"{', '.join(left[:4])}: unknown, so what the model computes cannot be represented")
        return ModelConfig(
            d_model=d_model,
            embed=EmbedConfig(vocab_size=vocab_size, scale=source_scale),
            target_embed=target_embed,
            encoder=encoder,
            decoder=decoder,
            head=HeadConfig(bias=f"{projection}/bias" in self.variables, scale=factor is not None),
            tie=self.variables.same(f"{projection}/weight", target),
        )

    def stack(self, name: str, d_model: int) -> tuple[StackConfig, bool]:
        """A stack, and whether its embeddings are multiplied by √d_model."""
        pre, heads = bool(self.take(f"{name}/pre_norm", 1)), int(self.take(f"{name}/num_heads", 8))
        activation = int(self.take(f"{name}/activation", 0))
        if activation >= len(ACTIVATIONS):
            raise UserError(f"{name}/activation {activation} cannot be represented")
        count = 0
        while f"{name}/layer_{count}/ffn/linear_0/weight" in self.variables:
            count += 1
        blocks = tuple(self.block(f"{name}/layer_{i}", name, pre, heads, activation) for i in range(count))
        embed = "embeddings_0" if f"{name}/embeddings_0/weight" in self.variables else "embeddings"
        scale = self.take(f"{name}/scale_embeddings", self.take(f"{name}/{embed}/multiply_by_sqrt_depth", 1))
        if min(abs(scale - value) for value in (0, 1, d_model**0.5)) > 1e-3:
            raise UserError(f"{name}/scale_embeddings {scale} cannot be represented, only √{d_model} or none")
        # Written as a yes or a no, or as the factor itself, of which 1 is a no: a file has one form or the other.
        yes = scale == 1 if isinstance(scale, int) else abs(scale - d_model**0.5) < 1e-3
        bias = None
        if (table := f"{name}/layer_0/self_attention/relative_attention_bias") in self.variables:
            distances = {
                self.take(f"{name}/layer_{i}/self_attention/relative_attention_max_distance") for i in range(count)
            }
            buckets = self.variables.shape(table)[0]
            bias = T5BucketsConfig(buckets=buckets, max_distance=distances.pop(), bidirectional=name == "encoder")
        turned = any(block.attention.rotary for block in blocks)
        stack = StackConfig(
            position=None if bias or turned else self.position(f"{name}/position_encodings/encodings", d_model),
            bias=bias,
            input_norm=self.norm(f"{name}/layernorm_embedding"),
            blocks=blocks,
            final_norm=self.norm(f"{name}/layer_norm"),
        )
        return stack, yes

    def position(self, name: str, d_model: int) -> SinusoidalConfig | LearnedPositionConfig:
        if name not in self.variables:
            return own_sinusoids(d_model, ENDLESS)
        table_TD, tolerance = self.variables[name], 1e-6 if self.variables.exact(name) else 4e-3
        for layout in LAYOUTS:
            fixed_TD = sinusoids(torch.arange(len(table_TD)), d_model, layout=layout)
            if torch.allclose(table_TD, fixed_TD, rtol=0, atol=tolerance):
                return SinusoidalConfig(max_len=len(table_TD), layout=layout)
        return LearnedPositionConfig(max_len=len(table_TD))

    def block(self, name: str, stack: str, pre: bool, heads: int, activation: int) -> BlockConfig:
        parallel = f"{name}/input_layer_norm/gamma" in self.variables
        norm = self.norm(f"{name}/input_layer_norm" if parallel else f"{name}/self_attention/layer_norm")
        if norm is None or (parallel and f"{name}/post_attention_layer_norm/gamma" not in self.variables):
            raise UserError(f"{name}: sub-layers without a norm of their own cannot be represented")
        cross = f"{name}/attention"
        ffn = GatedMLPConfig if f"{name}/ffn/linear_0_noact/weight" in self.variables else MLPConfig
        return BlockConfig(
            mixer=self.attention(f"{name}/self_attention", heads, 1, causal=stack == "decoder"),
            cross=self.attention(cross, heads, 2) if f"{cross}/linear_0/weight" in self.variables else None,
            ffn=ffn(
                d_ff=self.variables.shape(f"{name}/ffn/linear_0/weight")[0],
                activation=ACTIVATIONS[activation],
                bias=f"{name}/ffn/linear_0/bias" in self.variables,
            ),
            norm=norm,
            order="pre" if pre else "post",
            parallel=parallel,
        )

    def attention(self, name: str, heads: int, last: int, *, causal: bool = False) -> AttentionConfig:
        inner, d_model = self.variables.shape(f"{name}/linear_{last}/weight")[::-1]
        shared = self.take(f"{name}/num_heads_kv")
        self.take(f"{name}/head_dim")  # what the matrices say, too
        bias, out_bias = (f"{name}/linear_{i}/bias" in self.variables for i in (0, last))
        scale = self.take(f"{name}/queries_scale")
        return AttentionConfig(
            n_heads=heads,
            n_kv_heads=None if shared in (None, heads) else int(shared),
            d_head=None if inner == d_model else inner // heads,
            causal=causal,
            bias=bias,
            out_bias=None if out_bias == bias else out_bias,
            scale=scale,
            rotary=read_rotary(self.take, name, inner // heads),
        )

    def norm(self, name: str) -> NormConfig | None:
        self.only(f"{name}/layer_norm_use_residual", 0)
        if f"{name}/gamma" not in self.variables:
            return None
        kind = LayerNormConfig if f"{name}/beta" in self.variables else RMSNormConfig
        return kind() if self.epsilon is None else kind(eps=self.epsilon)


def source_embedding(variables: Mapping[str, Any]) -> str:
    """The name of the encoder's embedding, which carries a number since there may be several."""
    old = "encoder/embeddings/weight"
    return old if old in variables else "encoder/embeddings_0/weight"


def own_sinusoids(d_model: int, max_len: int) -> SinusoidalConfig:
    """Those of CTranslate2, where a file holds no table: from 1 on, in halves, wavelengths up to exactly 10000 · 2π."""
    return SinusoidalConfig(max_len=max_len, layout="halves", base=10000 ** (d_model / (d_model - 2)), first=1)


def rules(config: ModelConfig, source: str = "encoder/embeddings_0/weight") -> list[Rule]:
    """The table of weights, theirs being CTranslate2's names.

    Args:
        source: The name of the encoder's embedding.
    """
    target, projection = "decoder/embeddings/weight", "decoder/projection"
    ours = "target_embed.weight" if config.target_embed else "embed.weight"
    table = [Rule("embed.weight", source if config.encoder else target)]
    if config.encoder is not None:
        table.append(Rule(ours, target, Copy() if config.target_embed else Tie()))
    table.append(Rule(ours if config.tie else "head.weight", f"{projection}/weight", Tie() if config.tie else Copy()))
    table.append(Rule("head.bias", f"{projection}/bias"))
    for name, stack in config.stacks:
        encodings = f"{name}/position_encodings/encodings"
        table += [Rule(f"{name}.position.weight", encodings)]
        table += [ignore(encodings)] if isinstance(stack.position, SinusoidalConfig) else []
        table += _norm(f"{name}.input_norm", f"{name}/layernorm_embedding")
        table += _norm(f"{name}.final_norm", f"{name}/layer_norm")
        for i, block in enumerate(stack.blocks):
            at, theirs = f"{name}.layers.{i}", f"{name}/layer_{i}"
            heads, shared = block.attention.n_heads, block.attention.n_kv_heads or block.attention.n_heads
            mixer, bias = f"{theirs}/self_attention", f"{name}.bias.weight"
            table += _linear(f"{at}.mixer", ("query", "key", "value"), f"{mixer}/linear_0", heads, shared, shared)
            table += _linear(f"{at}.mixer", ("out",), f"{mixer}/linear_1", 1)
            own = ("input_layer_norm", "post_attention_layer_norm")
            before = own if block.parallel else ("self_attention/layer_norm", "ffn/layer_norm")
            table += _norm(f"{at}.mixer_residual.norm", f"{theirs}/{before[0]}")
            table += _norm(f"{at}.ffn_residual.norm", f"{theirs}/{before[1]}")
            table.append(Rule(bias, f"{mixer}/relative_attention_bias", Tie() if i else Copy()))
            table += _linear(f"{at}.cross", ("query",), f"{theirs}/attention/linear_0", 1)
            table += _linear(f"{at}.cross", ("key", "value"), f"{theirs}/attention/linear_1", 1, 1)
            table += _linear(f"{at}.cross", ("out",), f"{theirs}/attention/linear_2", 1)
            table += _norm(f"{at}.cross_residual.norm", f"{theirs}/attention/layer_norm")
            gated = isinstance(block.ffn, GatedMLPConfig)
            for part, linear in (("up", "linear_0_noact"), ("gate", "linear_0")) if gated else (("up", "linear_0"),):
                table += _linear(f"{at}.ffn", (part,), f"{theirs}/ffn/{linear}", 1)
            table += _linear(f"{at}.ffn", ("down",), f"{theirs}/ffn/linear_1", 1)
    return table


def _linear(ours: str, parts: tuple[str, ...], theirs: str, *sizes: int) -> list[Rule]:
    op = Split(sizes) if len(sizes) > 1 else Copy()
    return [
        Rule(tuple(f"{ours}.{part}.{kind}" for part in parts), f"{theirs}/{kind}", op) for kind in ("weight", "bias")
    ]


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.weight", f"{theirs}/gamma"), Rule(f"{ours}.bias", f"{theirs}/beta")]

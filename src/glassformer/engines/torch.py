"""PyTorch with the module's weights laid out for decoding on the CPU: the engine where the native one cannot run.

What it does otherwise than the module: weights are packed once (`products`); queries, keys and values are one product;
the beams of a sentence are queries over one copy of its cross-attention keys and values; the caches of
self-attention are written in place and reordered row by row into a second buffer; nothing is named, so nothing can be
recorded. Activations between products, and attention, are float32 in every precision.

Axes besides those of `nn`: N rows of (batch, heads); a trailing 2K or 3K holds a head's (query,) key and value.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from glassformer.config import (
    AttentionConfig,
    BlockConfig,
    Config,
    EmbedConfig,
    HeadConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    MLPConfig,
    ModelConfig,
    RMSNormConfig,
    SinusoidalConfig,
    StackConfig,
)
from glassformer.engines.engine import Unavailable
from glassformer.engines.model import ModelEngine
from glassformer.engines.products import Product, build_product
from glassformer.errors import UserError
from glassformer.generate.protocol import Decodable
from glassformer.nn.attention import SelfAttention
from glassformer.nn.block import Block
from glassformer.nn.embed import OutputHead, TokenEmbedding
from glassformer.nn.ffn import ACTIVATIONS, MLP

if TYPE_CHECKING:
    from glassformer.models.seq2seq import Seq2Seq
    from glassformer.models.stack import Stack
    from glassformer.nn.attention import MultiHead

Norm = Callable[[Tensor], Tensor]

FAITHFUL = 0.998
"""The least cosine between int8's logits and float32's."""

_ROOM = 8
"""Target positions by which caches grow."""

_NEVER = -1e30
"""Added to a score that must not count; finite, so that a source of nothing but padding gives no NaN."""

_KNOWN: dict[type[Config], set[str]] = {
    ModelConfig: {"d_model", "embed", "target_embed", "encoder", "decoder", "head", "tie", "init"},
    EmbedConfig: {"vocab_size", "scale"},
    HeadConfig: {"bias", "scale"},
    StackConfig: {"position", "input_norm", "blocks", "final_norm", "dropout"},
    SinusoidalConfig: {"max_len", "layout", "base", "first"},
    LearnedPositionConfig: {"max_len", "first"},
    BlockConfig: {"mixer", "cross", "ffn", "norm", "order", "dropout"},
    AttentionConfig: {"n_heads", "d_head", "causal", "bias", "out_bias", "scale"},
    MLPConfig: {"d_ff", "activation", "bias"},
    LayerNormConfig: {"eps", "bias"},
    RMSNormConfig: {"eps"},
}
"""What of each part is computed here; every other setting must stand at its default."""


class TorchEngine(ModelEngine):
    """A module's weights, laid out for decoding on the CPU.

    Args:
        module: made float32 and put in eval mode; it stays in memory, for what only it can do.
        precision: "fp32", "bf16" or "int8"; "auto" is fp32.

    Raises:
        Unavailable: the module has a part that is not known here, or int8 is absent or would change what it says.
        UserError: a weight is NaN or infinite.
    """

    name = "torch"

    def __init__(self, module: Seq2Seq, precision: str = "auto") -> None:
        _refuse_unknown(module.config)
        for name, weight in module.state_dict().items():
            if weight.is_floating_point() and not weight.isfinite().all():
                raise UserError(f"{name}: holds NaN or infinity, so the model cannot be run; train it again")
        super().__init__(module, "cpu", precision)
        fast = FastSeq2Seq(self.module, self.precision)
        if self.precision == "int8" and (cosine := _cosine(self.module, fast)) < FAITHFUL:
            raise Unavailable(f"int8 logits would be only {cosine:.4f} like float32's, less than {FAITHFUL}")
        self.decodable = fast

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # each product knows its own precision


class FastState:
    """A `DecodeState`: the target's keys and values of each row, and the source's of each sentence.

    A sentence's rows stand together, `beams` of each; where a selection makes their numbers differ, each row gets its
    sentence's keys and values to itself.
    """

    logits_BV: Tensor | None = None

    def __init__(self, cross: list[tuple[Tensor, Tensor]], bias_B11S: Tensor | None, batch: int) -> None:
        self.length, self.beams = 0, 1
        self.cross, self.bias_B11S = cross, bias_B11S  # of each layer, keys (B, H, K, S) and values (B, H, S, K)
        self._rows = batch
        self._caches: list[Tensor | None] = [None] * len(cross)  # (B, H, S, 2K)
        self._spares: list[Tensor | None] = [None] * len(cross)

    def append(self, layer: int, kv_NTK: Tensor) -> Tensor:
        """Writes a layer's new keys and values behind those of `length` positions, and returns all, (N, S, 2K)."""
        end, cache = self.length + kv_NTK.shape[1], self._caches[layer]
        if cache is None or end > cache.shape[2]:
            room = -(-end // _ROOM) * _ROOM
            grown = kv_NTK.new_empty(self._rows, len(kv_NTK) // self._rows, room, kv_NTK.shape[2])
            if cache is not None:
                grown[:, :, : self.length] = cache[:, :, : self.length]
            self._caches[layer] = cache = grown
        all_NSK = cache.flatten(0, 1)
        all_NSK[:, self.length : end] = kv_NTK
        return all_NSK[:, :end]

    @torch.inference_mode()
    def select(self, index_N: Tensor) -> None:
        rows, sentences = len(index_N), self._rows // self.beams
        from_N = index_N // self.beams
        kept_B, counts_B = from_N.unique_consecutive(return_counts=True)
        self.beams = rows // len(kept_B)
        if not (counts_B == self.beams).all():
            kept_B, self.beams = from_N, 1
        if not torch.equal(kept_B, torch.arange(sentences)):
            self.cross = [(k.index_select(0, kept_B), v.index_select(0, kept_B)) for k, v in self.cross]
            if self.bias_B11S is not None:
                self.bias_B11S = self.bias_B11S.index_select(0, kept_B)
        for layer, (cache, spare) in enumerate(zip(self._caches, self._spares, strict=True)):
            if cache is None:
                continue
            if spare is None or len(spare) < rows or spare.shape[1:] != cache.shape[1:]:
                spare = cache.new_empty(max(rows, len(cache)), *cache.shape[1:])
            # Whole rows, unused room included, into memory at hand: ten times faster than the used part into new.
            torch.index_select(cache.flatten(1), 0, index_N, out=spare[:rows].flatten(1))
            self._caches[layer], self._spares[layer] = spare[:rows], cache
        self._rows = rows

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} positions to {length}")
        self.length = length


class FastSeq2Seq:
    """A `Decodable` over a module's weights, on the CPU, without gradients.

    Raises:
        Unavailable: int8, where PyTorch lacks it.
    """

    @torch.no_grad()
    def __init__(self, module: Seq2Seq, precision: str) -> None:
        self._module = module
        self._encoder = [_Layer(block, precision) for block in module.encoder.layers if isinstance(block, Block)]
        self._decoder = [_Layer(block, precision) for block in module.decoder.layers if isinstance(block, Block)]
        head = module.head
        assert isinstance(head, OutputHead)
        weight_VD = head.weight
        if weight_VD is None:
            assert isinstance(module.decoder_embed, TokenEmbedding)
            weight_VD = module.decoder_embed.weight
        self._head = build_product(precision, weight_VD * head.factor, head.bias)

    @torch.inference_mode()
    def start(self, source_BS: Tensor, source_mask_BS: Tensor | None = None) -> FastState:
        bias_B11S = None if source_mask_BS is None else torch.where(source_mask_BS, 0.0, _NEVER)[:, None, None]
        x_BSD = _embedded(self._module.embed, self._module.encoder, source_BS, 0)
        for layer in self._encoder:
            x_BSD = layer(x_BSD, bias_B11S)
        x_BSD = _finished(self._module.encoder, x_BSD)
        cross = []
        for layer in self._decoder:
            k_BHSK, v_BHSK = layer.memory(x_BSD)
            if source_mask_BS is not None:  # a source of nothing but padding says nothing
                v_BHSK = v_BHSK * source_mask_BS[:, None, :, None]
            cross.append((k_BHSK.transpose(2, 3).contiguous(), v_BHSK.contiguous()))
        return FastState(cross, bias_B11S, len(source_BS))

    def step(self, tokens_BT: Tensor, state: FastState, *, last_only: bool = True) -> Tensor:
        with torch.inference_mode():
            new, end = tokens_BT.shape[1], state.length + tokens_BT.shape[1]
            bias_11TS = None
            if new > 1:
                bias_11TS = torch.full((new, end), _NEVER).triu_(state.length + 1)[None, None]
            x_BTD = _embedded(self._module.decoder_embed, self._module.decoder, tokens_BT, state.length)
            for number, layer in enumerate(self._decoder):
                x_BTD = layer(x_BTD, bias_11TS, state, number)
            state.length = end
            x_BTD = _finished(self._module.decoder, x_BTD[:, -1] if last_only else x_BTD)
        with torch.no_grad():  # not in inference mode: whoever gets the logits may change them
            return self._head(x_BTD).float()


class _Layer:
    """A block's products and norms."""

    def __init__(self, block: Block, precision: str) -> None:
        product = partial(_product, precision)
        self.pre = block.mixer_residual.order == "pre"
        assert isinstance(block.mixer, SelfAttention)  # all else was refused
        self.mixer_norm, self.mixer_heads = _norm(block.mixer_residual.norm), block.mixer.config.n_heads
        self.qkv, self.out = _projection(precision, block.mixer, "query", "key", "value"), product(block.mixer.out)
        self.cross = block.cross is not None
        if block.cross is not None and block.cross_residual is not None:
            self.cross_norm, self.cross_heads = _norm(block.cross_residual.norm), block.cross.config.n_heads
            self.cross_q = _projection(precision, block.cross, "query")
            self.cross_kv, self.cross_out = (
                _projection(precision, block.cross, "key", "value"),
                product(block.cross.out),
            )
        self.ffn = block.ffn is not None
        if isinstance(block.ffn, MLP) and block.ffn_residual is not None:
            self.ffn_norm = _norm(block.ffn_residual.norm)
            self.up, self.down = product(block.ffn.up), product(block.ffn.down)
            self.relu, self.activation = block.ffn.activation is ACTIVATIONS["relu"], block.ffn.activation

    def __call__(self, x_BTD: Tensor, bias: Tensor | None, state: FastState | None = None, number: int = 0) -> Tensor:
        """The block's output.

        Args:
            x_BTD: its input.
            bias: added to the scores of self-attention, broadcastable to (B, H, T, S).
            state: what the decoding remembers; None in an encoder.
            number: the layer's in the state.
        """
        batch, new, _ = x_BTD.shape
        y_BTD = self.mixer_norm(x_BTD) if self.pre else x_BTD
        qkv_NTK = _split(self.qkv(y_BTD), self.mixer_heads)
        size = qkv_NTK.shape[2] // 3
        kv_NSK = qkv_NTK[..., size:] if state is None else state.append(number, qkv_NTK[..., size:])
        k_NKS, v_NSK = kv_NSK[..., :size].transpose(1, 2), kv_NSK[..., size:]
        z_BTD = _join(_attend(qkv_NTK[..., :size], k_NKS, v_NSK, bias), batch)
        x_BTD = self._added(x_BTD, self.out(z_BTD), self.mixer_norm)
        if self.cross and state is not None:
            y_BTD = self.cross_norm(x_BTD) if self.pre else x_BTD
            k_BHKS, v_BHSK = state.cross[number]
            # The beams of a sentence, and the tokens of each, are all queries to the same keys.
            q_NTK = _split(self.cross_q(y_BTD).view(len(k_BHKS), state.beams * new, -1), self.cross_heads)
            z_NTK = _attend(q_NTK, k_BHKS.flatten(0, 1), v_BHSK.flatten(0, 1), state.bias_B11S)
            z_BTD = _join(z_NTK, len(k_BHKS)).view(batch, new, -1)
            x_BTD = self._added(x_BTD, self.cross_out(z_BTD), self.cross_norm)
        if self.ffn:
            y_BTD = self.ffn_norm(x_BTD) if self.pre else x_BTD
            y_BTF = self.up(y_BTD, relu=True) if self.relu else self.activation(self.up(y_BTD))
            x_BTD = self._added(x_BTD, self.down(y_BTF), self.ffn_norm)
        return x_BTD

    def memory(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-attention's keys and values of the encoder's output, both (B, H, S, K)."""
        kv_NSK = _split(self.cross_kv(x_BSD), self.cross_heads)
        k_BHSK, v_BHSK = kv_NSK.unflatten(0, (len(x_BSD), -1)).chunk(2, -1)
        return k_BHSK, v_BHSK

    def _added(self, x_BTD: Tensor, y_BTD: Tensor, norm: Norm) -> Tensor:
        x_BTD = x_BTD + y_BTD
        return x_BTD if self.pre else norm(x_BTD)


def _attend(q_NTK: Tensor, k_NKS: Tensor, v_NSK: Tensor, bias: Tensor | None) -> Tensor:
    scores_NTS = torch.bmm(q_NTK, k_NKS)  # queries come scaled
    if bias is not None:
        scores_NTS.view(len(bias), -1, *scores_NTS.shape[1:]).add_(bias)
    return torch.bmm(scores_NTS.softmax(-1), v_NSK)


def _split(x_BTD: Tensor, heads: int) -> Tensor:
    """(B, T, H · K) as (N, T, K) in float32; of one position without a copy."""
    batch, length, _ = x_BTD.shape
    return x_BTD.float().view(batch, length, heads, -1).transpose(1, 2).reshape(batch * heads, length, -1)


def _join(z_NTK: Tensor, batch: int) -> Tensor:
    """The reverse of `_split`."""
    return z_NTK.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2)


def _projection(precision: str, attention: MultiHead, *parts: str) -> Product:
    """Several projections as one product, whose rows a head has together; queries are scaled here, once for all."""
    config = attention.config
    weights, biases = [], []
    for part in parts:
        linear: nn.Linear = getattr(attention, part)
        size = len(linear.weight) // config.n_heads
        factor = 1.0 if part != "query" else size**-0.5 if config.scale is None else config.scale
        bias_N = linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias
        weights.append((linear.weight * factor).unflatten(0, (config.n_heads, -1)))
        biases.append((bias_N * factor).unflatten(0, (config.n_heads, -1)))
    return build_product(precision, torch.cat(weights, 1).flatten(0, 1), torch.cat(biases, 1).flatten())


def _product(precision: str, linear: nn.Linear) -> Product:
    return build_product(precision, linear.weight, linear.bias)


def _norm(norm: nn.Module) -> Norm:
    """The norm as a function: between small products, a module's call is felt."""
    if not isinstance(norm, nn.LayerNorm):
        return norm
    shape, weight_D, bias_D, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x_BTD: torch.layer_norm(x_BTD, shape, weight_D, bias_D, eps)


def _embedded(embed: nn.Module, stack: Stack, ids_BT: Tensor, start: int) -> Tensor:
    x_BTD: Tensor = embed(ids_BT)
    if stack.position is not None:
        x_BTD = x_BTD + stack.position(ids_BT.shape[1], start)
    return x_BTD if stack.input_norm is None else stack.input_norm(x_BTD)


def _finished(stack: Stack, x_BTD: Tensor) -> Tensor:
    return x_BTD if stack.final_norm is None else stack.final_norm(x_BTD)


def _refuse_unknown(part: Config) -> None:
    if isinstance(part, ModelConfig) and part.kind != "encoder-decoder":
        raise Unavailable(f"it does not know a model of kind {part.kind}")
    kind, known = type(part).__name__.removesuffix("Config"), _KNOWN.get(type(part))
    if known is None:
        raise Unavailable(f"it does not know {kind}")
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if name not in known | {"type"} and value != field.default:
            raise Unavailable(f"it does not know {kind}.{name}")
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Config) and name != "init":
                _refuse_unknown(inner)


@torch.no_grad()
def _cosine(module: Seq2Seq, fast: FastSeq2Seq, sentences: int = 16, length: int = 12, steps: int = 4) -> float:
    """The least cosine between both ones' logits over random sources and targets, each row's mean taken off."""
    config, generator = module.config, torch.Generator().manual_seed(0)
    assert config.encoder is not None and config.decoder is not None and isinstance(config.embed, EmbedConfig)
    length, steps = min(length, config.encoder.max_len or length), min(steps, config.decoder.max_len or steps)
    source_BS = torch.randint(config.embed.vocab_size, (sentences, length), generator=generator)
    target_BT = torch.randint(config.target_vocab_size, (sentences, steps), generator=generator)
    decodables: tuple[Decodable[Any], ...] = (module, fast)
    wanted, found = (m.step(target_BT, m.start(source_BS), last_only=False).double() for m in decodables)
    wanted, found = (logits - logits.mean(-1, keepdim=True) for logits in (wanted, found))
    return float(torch.cosine_similarity(wanted, found, -1).min())

"""Packs a MODEL for the native engine: weights quantised, rearranged for the kernels, and written to be mapped."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.config import (
    AttentionConfig,
    BlockConfig,
    Config,
    EmbedConfig,
    GatedMLPConfig,
    HeadConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    LinearScaling,
    Llama3Scaling,
    MLPConfig,
    ModelConfig,
    NormConfig,
    RMSNormConfig,
    RotaryConfig,
    SinusoidalConfig,
    StackConfig,
)
from glassformer.errors import UserError
from glassformer.runtime import format as packed_format
from glassformer.runtime.cache import origin
from glassformer.runtime.engine import NativeModel
from glassformer.runtime.library import EngineUnavailable

PANEL = 16
TYPES = {"fp32": 0, "bf16": 1, "int8": 2}
GROUP = {"fp32": 1, "bf16": 2, "int8": 4}
ACTIVATIONS = {"relu": 1, "gelu": 2, "gelu-tanh": 3, "silu": 4}

FAITHFUL = 0.998
"""The least cosine between int8's logits and float32's with which "auto" takes int8."""

Weights = Mapping[str, np.ndarray]


class Packer:
    """Gathers a model's arrays and describes them as `native/abi.h` names them.

    Attributes:
        precision: "int8" (symmetric, a scale for each output row), "bf16" or "fp32"; norms, biases and positions are
            float32 in all.
    """

    def __init__(self, config: ModelConfig, weights: Weights, precision: str) -> None:
        self.config, self.weights, self.precision = config, weights, precision
        self.blobs: list[tuple[int, np.ndarray]] = []
        self.size = 0
        self._sinusoids: dict[SinusoidalConfig, dict[str, int]] = {}
        self.model = self._model()

    def write(self, file: Path, origin: str) -> None:
        header = {"size": self.size, "precision": self.precision, "origin": origin, "model": self.model}
        packed_format.write(file, header, ((at, array.tobytes()) for at, array in self.blobs), self.size)

    def _model(self) -> dict[str, Any]:
        config = self.config
        known_throughout(config)
        assert isinstance(config.embed, EmbedConfig)
        target = config.target_embed or config.embed
        d, vocab = config.d_model, config.target_vocab_size
        source_embed = self._linear("embed", config.embed.vocab_size, d, False)
        target_embed = self._linear("target_embed", vocab, d, False) if config.target_embed else source_embed
        return {
            **{name: self._stack(name, stack) for name, stack in config.stacks},
            "source_embed": source_embed,
            "target_embed": target_embed,
            "output": self._output(target_embed) if config.decoder else {},
            "source_factor": self._factor(config.embed),
            "target_factor": self._factor(target),
            "d": d,
            "width": _up(d),
            "source_vocab": config.embed.vocab_size,
            "target_vocab": vocab,
        }

    def _output(self, target_embed: dict[str, Any]) -> dict[str, Any]:
        config, d, vocab = self.config, self.config.d_model, self.config.target_vocab_size
        assert isinstance(config.head, HeadConfig)
        if not config.tie:
            return self._linear("head", vocab, d, config.head.bias)
        if not config.head.bias:
            return target_embed
        return {**target_embed, "bias": self._array(_padded(self._take("head.bias", vocab), PANEL))}

    def _factor(self, embed: EmbedConfig) -> float:
        return math.sqrt(self.config.d_model) if embed.scale else 1.0

    def _stack(self, name: str, config: StackConfig) -> dict[str, Any]:
        position = config.position
        positions = None
        if isinstance(position, SinusoidalConfig):  # the same for both stacks, as a rule: stored once
            if position not in self._sinusoids:
                self._sinusoids[position] = self._array(_padded(sinusoids(position, self.config.d_model), PANEL))
            positions = self._sinusoids[position]
        elif position is not None:
            _known(position, LearnedPositionConfig)
            table = self._take(f"{name}.position.weight", position.first + position.max_len, self.config.d_model)
            table = table[position.first :]
            if isinstance(self.config.embed, EmbedConfig) and self.config.embed.token_types:
                # Every token is of the first segment: its row goes with the positions.
                segments = self._take("embed.token_types", self.config.embed.token_types, self.config.d_model)
                table = table + segments[0]
            positions = self._array(_padded(table, PANEL))
        stack: dict[str, Any] = {
            "layers": [self._layer(f"{name}.layers.{i}", block) for i, block in enumerate(config.blocks)],
            "positions": positions,
            "input_norm": self._norm(f"{name}.input_norm", config.input_norm),
            "final_norm": self._norm(f"{name}.final_norm", config.final_norm),
            "n_layers": len(config.blocks),
            "max_len": position.max_len if position is not None else 0,
        }
        if rotary := config.blocks[0].mixer.rotary:
            frequencies, sharpness = angles(rotary, config.blocks[0].mixer.head_size(self.config.d_model))
            stack |= {"frequencies": self._array(frequencies), "sharpness": sharpness, "turned": 2 * len(frequencies)}
        return stack

    def _layer(self, name: str, block: BlockConfig) -> dict[str, Any]:
        _known(block.mixer, AttentionConfig)
        d, heads, size = self.config.d_model, block.mixer.n_heads, block.mixer.head_size(self.config.d_model)
        layer: dict[str, Any] = {
            "mixer_norm": self._norm(f"{name}.mixer_residual.norm", block.norm),
            "qkv": self._projections(f"{name}.mixer", ("query", "key", "value"), block.mixer),
            "out": self._out(f"{name}.mixer", block.mixer),
            "heads": heads,
            "kv_heads": block.mixer.n_kv_heads or heads,
            "head_size": _up(size),
            "window": block.mixer.window or 0,
            "pre": int(block.order == "pre"),
            "parallel": int(block.parallel),
        }
        if block.cross is not None:
            heads, size = block.cross.n_heads, block.cross.head_size(self.config.d_model)
            layer |= {
                "cross_norm": self._norm(f"{name}.cross_residual.norm", block.norm),
                "cross_q": self._projections(f"{name}.cross", ("query",), block.cross),
                "cross_kv": self._projections(f"{name}.cross", ("key", "value"), block.cross),
                "cross_out": self._out(f"{name}.cross", block.cross),
                "cross_heads": heads,
                "cross_head_size": _up(size),
            }
        if block.ffn is not None:
            gated = isinstance(block.ffn, GatedMLPConfig)
            _known(block.ffn, GatedMLPConfig if gated else MLPConfig)
            d_ff, bias = block.ffn.d_ff, block.ffn.bias
            parts = ("gate", "up") if gated else ("up",)
            layer |= {
                "ffn_norm": self._norm(f"{name}.ffn_residual.norm", block.norm),
                "up": self._stacked([self._both(f"{name}.ffn.{part}", d_ff, d, bias) for part in parts]),
                "down": self._linear(f"{name}.ffn.down", d, d_ff, bias),
                "activation": ACTIVATIONS[block.ffn.activation],
                "gated": int(gated),
            }
        return layer

    def _projections(self, name: str, parts: tuple[str, ...], config: AttentionConfig) -> dict[str, Any]:
        """Projections into heads, one under the other; queries are scaled here, once for all."""
        size = config.head_size(self.config.d_model)
        scale = config.scale or 1 / math.sqrt(size)
        matrices = []
        for part in parts:
            heads = config.n_heads if part == "query" else config.n_kv_heads or config.n_heads
            factor = np.float32(scale if part == "query" else 1)
            weight, bias = self._both(f"{name}.{part}", heads * size, self.config.d_model, config.bias)
            if config.rotary and part != "value":
                order = _halves(config.rotary, heads, size)
                weight, bias = weight[order], bias[order]
            matrices.append((_pad_heads(weight * factor, heads, size), _pad_heads(bias * factor, heads, size)))
        return self._stacked(matrices)

    def _out(self, name: str, config: AttentionConfig) -> dict[str, Any]:
        heads, size = config.n_heads, config.head_size(self.config.d_model)
        bias = config.bias if config.out_bias is None else config.out_bias
        weight, bias_D = self._both(f"{name}.out", self.config.d_model, heads * size, bias)
        return self._matrix(_pad_heads(weight.T, heads, size).T, bias_D)

    def _stacked(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
        """Matrices and biases one under the other, each padded by itself, as one `Linear`."""
        weights = np.concatenate([_padded(weight, PANEL, 1) for weight, _ in parts])
        return self._matrix(weights, np.concatenate([_padded(bias, PANEL) for _, bias in parts]))

    def _both(self, name: str, n: int, k: int, bias: bool) -> tuple[np.ndarray, np.ndarray]:
        return self._take(f"{name}.weight", n, k), self._take(f"{name}.bias", n) if bias else np.zeros(n, np.float32)

    def _linear(self, name: str, n: int, k: int, bias: bool) -> dict[str, Any]:
        return self._matrix(*self._both(name, n, k, bias))

    def _take(self, name: str, *shape: int) -> np.ndarray:
        """One of the MODEL's arrays; the kernels believe what the configuration says of its shape."""
        array = self.weights[name]
        if array.shape != shape:
            raise UserError(
                f"model.safetensors: {name} has shape {list(array.shape)}, but config.json says {list(shape)}"
            )
        if not np.isfinite(array).all():
            raise UserError(f"{name}: holds NaN or infinity, so the model cannot be packed; train it again")
        return array

    def _matrix(self, weight: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
        """A matrix [n, k] and its bias, as a `Linear`."""
        weight, bias = _padded(weight, PANEL, PANEL), _padded(bias, PANEL)
        n, k = weight.shape
        linear: dict[str, Any] = {"n": n, "k": k, "type": TYPES[self.precision], "bias": self._array(bias)}
        if self.precision == "int8":
            weight, scale = quantise(weight)
            linear["scale"] = self._array(scale)
            linear["row_sums"] = self._array(weight.sum(1, dtype=np.int32))
        elif self.precision == "bf16":
            weight = to_bf16(weight)
        group = GROUP[self.precision]
        panels = weight.reshape(n // PANEL, PANEL, k // group, group).transpose(0, 2, 1, 3)
        linear["weight"] = self._array(np.ascontiguousarray(panels))
        return linear

    def _norm(self, name: str, config: NormConfig | None) -> dict[str, Any]:
        if config is None:
            return {"eps": 0.0}
        rms = isinstance(config, RMSNormConfig)
        _known(config, RMSNormConfig if rms else LayerNormConfig)
        gain = self._take(f"{name}.weight", self.config.d_model)
        biased = isinstance(config, LayerNormConfig) and config.bias
        bias = self._take(f"{name}.bias", len(gain)) if biased else np.zeros_like(gain)
        return {
            "gain": self._array(_padded(gain, PANEL)),
            "bias": self._array(_padded(bias, PANEL)),
            "eps": config.eps,
            "rms": int(rms),
        }

    def _array(self, array: np.ndarray) -> dict[str, int]:
        at = self.size
        self.blobs.append((at, array))
        self.size += -(-array.nbytes // packed_format.ALIGNMENT) * packed_format.ALIGNMENT
        return {"at": at, "bytes": array.nbytes}


def sinusoids(config: SinusoidalConfig, d_model: int) -> np.ndarray:
    """The table (max_len, d_model) that `glassformer.nn.position.sinusoids` computes."""
    angles = np.arange(config.first, config.first + config.max_len, dtype=np.float64)[:, None]
    angles = angles * config.base ** (-np.arange(0, d_model, 2, dtype=np.float64) / d_model)
    pairs = np.sin(angles), np.cos(angles)
    if config.layout == "interleaved":
        return np.stack(pairs, axis=-1).reshape(config.max_len, d_model)
    return np.concatenate(pairs, axis=-1)


def angles(config: RotaryConfig, size: int) -> tuple[np.ndarray, float]:
    """The angle a position of each pair of features, float64, and what `glassformer.nn.rotary` multiplies by."""
    turned, scaling = int(config.fraction * size), config.scaling
    frequencies = config.base ** (-np.arange(0, turned, 2, dtype=np.float64) / turned)
    if isinstance(scaling, LinearScaling):
        frequencies /= scaling.factor
    elif isinstance(scaling, Llama3Scaling):
        turns = scaling.original_max_len * frequencies / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = np.clip((turns - low) / (high - low), 0, 1)
        frequencies = kept * frequencies + (1 - kept) * frequencies / scaling.factor
    elif scaling is not None:
        raise EngineUnavailable(f"it does not know the scaling {scaling.type}")
    return frequencies, 1.0


def _halves(config: RotaryConfig, heads: int, size: int) -> np.ndarray:
    """The order of rows in which the features of a pair stand half of what turns apart, whatever their own layout."""
    order = np.arange(size)
    if config.layout == "interleaved":
        turned = int(config.fraction * size)
        order[:turned] = np.concatenate([order[0:turned:2], order[1:turned:2]])
    return (np.arange(heads)[:, None] * size + order).reshape(-1)


def quantise(weight_NK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8, one scale a row: weight ≈ scale · q, |q| ≤ 127.

    Returns:
        q (N, K) int8 and scale (N,) float32.
    """
    scale_N = (np.abs(weight_NK).max(1) / 127).astype(np.float32)
    inverse_N = np.divide(1, scale_N, out=np.zeros_like(scale_N), where=scale_N > 1e-35)
    return np.clip(np.rint(weight_NK * inverse_N[:, None]), -127, 127).astype(np.int8), scale_N


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The upper halves of float32, rounded to nearest, ties to even, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def read_weights(file: Path) -> dict[str, np.ndarray]:
    """A safetensors file's float tensors as float32 (https://github.com/huggingface/safetensors, "Format").

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        data = np.memmap(file, np.uint8, "r")
        length = int(data[:8].view("<u8")[0])
        header = json.loads(bytes(data[8 : 8 + length]))
        weights = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            raw = data[8 + length + first : 8 + length + last]
            if entry["dtype"] == "BF16":
                values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                values = raw.view({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[entry["dtype"]]).astype(np.float32)
            weights[name] = values.reshape(entry["shape"])
    except FileNotFoundError:
        raise UserError(f"{file.parent}: not a model directory: it has no {file.name}") from None
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{file}: damaged or not readable ({error}); copy or train it again") from None
    return weights


def pack(directory: Path, precision: str, file: Path) -> None:
    """Packs the MODEL in `directory` into `file`.

    Args:
        precision: "int8", "bf16", "fp32", or "auto": int8 where its logits stay close (`FAITHFUL`), else bf16.

    Raises:
        UserError: the MODEL is damaged, or holds NaN.
        EngineUnavailable: it has a part that the native engine does not know.
    """
    config, weights, of = _config(directory), read_weights(directory / "model.safetensors"), origin(directory)
    try:
        if precision != "auto":
            return Packer(config, weights, precision).write(file, of)
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            exact, small = Path(scratch) / "fp32", Path(scratch) / "int8"
            Packer(config, weights, "fp32").write(exact, of)
            Packer(config, weights, "int8").write(small, of)
            if cosine(exact, small) < FAITHFUL:
                Packer(config, weights, "bf16").write(small, of)
            small.replace(file)
    except KeyError as error:
        raise UserError(f"{directory}: model.safetensors lacks {error.args[0]}; copy or train it again") from None


def cosine(exact: Path, other: Path, sentences: int = 16, length: int = 12, steps: int = 4) -> float:
    """The least cosine between two packed models' logits over random sources and targets, each row's mean taken off."""
    rng = np.random.default_rng(0)
    models = [NativeModel.open(path) for path in (exact, other)]
    one = models[0]
    length = min(length, one.source_limit or length)
    sources = rng.integers(0, one.model.source_vocab, (sentences, length)).tolist()
    if not one.model.decoder.n_layers:
        answers = [np.concatenate(model.encode(sources)).astype(np.float64) for model in models]
    else:
        room = (one.target_limit or length + steps) - (length if one.prompted else 0)
        tokens_NT = rng.integers(0, one.model.target_vocab, (sentences, min(steps, max(room, 1))))
        if one.prompted:
            sources = [ids[: length - 1] or ids for ids in sources]
        answers = [model.start(sources).step(tokens_NT, last_only=False).astype(np.float64) for model in models]
    ours, theirs = (logits - logits.mean(-1, keepdims=True) for logits in answers)
    norms = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    return float(((ours * theirs).sum(-1) / np.maximum(norms, 1e-30)).min())


def _config(directory: Path) -> ModelConfig:
    file = directory / "config.json"
    try:
        return ModelConfig.from_dict(json.loads(file.read_text(encoding="utf-8"))["model"], str(file))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file}: cannot be read ({error})") from None


KNOWN: dict[type[Config], set[str]] = {
    ModelConfig: {"d_model", "embed", "target_embed", "encoder", "decoder", "head", "tie", "init"},
    EmbedConfig: {"vocab_size", "scale", "token_types"},
    HeadConfig: {"bias"},
    StackConfig: {"position", "input_norm", "blocks", "final_norm", "dropout"},
    LearnedPositionConfig: {"max_len", "first"},
    BlockConfig: {"mixer", "cross", "ffn", "norm", "order", "parallel", "dropout"},
    AttentionConfig: {
        *("n_heads", "n_kv_heads", "d_head", "causal", "window", "bias", "out_bias", "scale", "rotary"),
    },
    MLPConfig: {"d_ff", "activation", "bias"},
    GatedMLPConfig: {"d_ff", "activation", "bias"},
    LayerNormConfig: {"eps", "bias"},
    RMSNormConfig: {"eps"},
}
"""What of each part the native engine computes; every other setting must stand at its default."""


def _known(part: Any, known: type[Config]) -> None:
    if type(part) is not known:
        raise EngineUnavailable(f"it does not know {type(part).__name__.removesuffix('Config')}")
    for name, field in known.model_fields.items():
        if name not in KNOWN[known] and getattr(part, name) != field.default:
            raise EngineUnavailable(f"it does not know {known.__name__.removesuffix('Config')}.{name}")


def known_throughout(config: ModelConfig) -> None:
    """Refuses, by name, whatever the native engine does not compute.

    Raises:
        EngineUnavailable: The configuration holds such a part or setting.
    """
    _known(config, ModelConfig)
    for embed in (config.embed, config.target_embed):
        if embed is not None:
            _known(embed, EmbedConfig)
    if config.decoder is not None:
        _known(config.head, HeadConfig)
    for name, stack in config.stacks:
        _known(stack, StackConfig)
        if len({block.mixer.rotary for block in stack.blocks}) != 1:
            raise EngineUnavailable("it does not know a stack whose blocks turn differently, or one without blocks")
        if isinstance(config.embed, EmbedConfig) and config.embed.token_types and name == "encoder":
            _known(stack.position, LearnedPositionConfig)
        for block in stack.blocks:
            _known(block, BlockConfig)
            for attention in (block.mixer, block.cross):
                if attention is not None:
                    _known(attention, AttentionConfig)
                    whole = attention.causal or not (attention.rotary or attention.window or attention.n_kv_heads)
                    if not whole:
                        raise EngineUnavailable(
                            "it knows rotary positions, windows and grouped heads in a decoder only"
                        )
            if block.ffn is not None and block.ffn.activation not in ACTIVATIONS:
                raise EngineUnavailable(f"it does not know the activation {block.ffn.activation}")


def _up(n: int) -> int:
    return -(-n // PANEL) * PANEL


def _padded(array: np.ndarray, *multiples: int) -> np.ndarray:
    """Zeros behind the last axes, up to multiples of these."""
    array = np.asarray(array, np.float32)
    axes = [(0, 0)] * (array.ndim - len(multiples))
    axes += [(0, -size % m) for size, m in zip(array.shape[-len(multiples) :], multiples, strict=True)]
    return np.pad(array, axes)


def _pad_heads(array: np.ndarray, heads: int, size: int) -> np.ndarray:
    """[heads · size, …] to [heads · size padded, …], zeros behind each head."""
    split = array.reshape(heads, size, *array.shape[1:])
    padded = np.pad(split, [(0, 0), (0, _up(size) - size), *[(0, 0)] * (array.ndim - 1)])
    return padded.reshape(heads * _up(size), *array.shape[1:])

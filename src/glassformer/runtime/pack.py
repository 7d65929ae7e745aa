"""Packs a MODEL for the native engine: weights quantised, rearranged for the kernels, and written to be mapped."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

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
)
from glassformer.errors import UserError
from glassformer.header import verified_tokenizer
from glassformer.runtime import format as packed_format
from glassformer.runtime.arrays import (
    PANEL,
    angles,
    balanced,
    halves,
    pad_heads,
    padded,
    quantise,
    read_weights,
    rounded_up,
    sinusoids,
    to_bf16,
)
from glassformer.runtime.cache import origin
from glassformer.runtime.engine import NativeModel
from glassformer.runtime.library import EngineUnavailable
from glassformer.runtime.support import ACTIVATIONS, check_known, known_throughout

TYPES = {"fp32": 0, "bf16": 1, "int8": 2}
GROUP = {"fp32": 1, "bf16": 2, "int8": 4}

FAITHFUL = 0.998
"""The least cosine between int8's logits and float32's with which "auto" takes int8."""

MOST_POSITIONS = 1 << 28
"""Numbers in a table of positions that no weights bound: 1 GiB of them."""

Weights = Mapping[str, np.ndarray]


class Packer:
    """Gathers a model's arrays and describes them as `native/abi.h` names them.

    Attributes:
        peaks: of the inputs of products, by stack, layer and part (`peaks`); those are balanced.
        precision: "int8" (symmetric, a scale for each output row), "bf16" or "fp32"; norms, biases and positions are
            float32 in all.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, precision: str, peaks: Mapping[str, np.ndarray] | None = None
    ) -> None:
        self.config, self.weights, self.precision, self.peaks = config, weights, precision, peaks or {}
        self.blobs: list[tuple[int, np.ndarray]] = []
        self.size = 0
        self._sinusoids: dict[SinusoidalConfig, dict[str, int]] = {}
        self.model = self._model()

    def write(self, file: Path, origin: str, tokenizer: str | None = None) -> None:
        header = {"size": self.size, "precision": self.precision, "origin": origin, "model": self.model}
        header["tokenizer"] = tokenizer
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
            "width": rounded_up(d),
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
        return {**target_embed, "bias": self._array(padded(self._take("head.bias", vocab), PANEL))}

    def _factor(self, embed: EmbedConfig) -> float:
        return math.sqrt(self.config.d_model) if embed.scale else 1.0

    def _stack(self, name: str, config: StackConfig) -> dict[str, Any]:
        position = config.position
        positions = None
        if isinstance(position, SinusoidalConfig):
            if position.max_len > MOST_POSITIONS // self.config.d_model:
                raise EngineUnavailable(f"{name}: a table of {position.max_len} positions is more than it holds")
            # The same for both stacks, as a rule: stored once.
            if position not in self._sinusoids:
                self._sinusoids[position] = self._array(padded(sinusoids(position, self.config.d_model), PANEL))
            positions = self._sinusoids[position]
        elif position is not None:
            check_known(position, LearnedPositionConfig)
            table = self._take(f"{name}.position.weight", position.first + position.max_len, self.config.d_model)
            table = table[position.first :]
            if isinstance(self.config.embed, EmbedConfig) and self.config.embed.token_types:
                # Every token is of the first segment: its row goes with the positions.
                segments = self._take("embed.token_types", self.config.embed.token_types, self.config.d_model)
                table = table + segments[0]
            positions = self._array(padded(table, PANEL))
        stack: dict[str, Any] = {
            "layers": [self._layer(f"{name}.layers.{i}", block) for i, block in enumerate(config.blocks)],
            "positions": positions,
            "input_norm": self._norm(f"{name}.input_norm", config.input_norm),
            "final_norm": self._norm(f"{name}.final_norm", config.final_norm),
            "n_layers": len(config.blocks),
            "max_len": position.max_len if position is not None else 0,
        }
        if rotary := config.blocks[0].attention.rotary:
            frequencies, sharpness = angles(rotary, config.blocks[0].attention.head_size(self.config.d_model))
            stack |= {"frequencies": self._array(frequencies), "sharpness": sharpness, "turned": 2 * len(frequencies)}
        return stack

    def _layer(self, name: str, block: BlockConfig) -> dict[str, Any]:
        check_known(block.mixer, AttentionConfig)
        attention = block.attention
        d, heads, size = self.config.d_model, attention.n_heads, attention.head_size(self.config.d_model)
        layer: dict[str, Any] = {
            "mixer_norm": self._norm(f"{name}.mixer_residual.norm", block.norm),
            "qkv": self._projections(f"{name}.mixer", ("query", "key", "value"), attention, f"{name}.qkv"),
            "out": self._out(f"{name}.mixer", attention, f"{name}.out"),
            "heads": heads,
            "kv_heads": attention.n_kv_heads or heads,
            "head_size": rounded_up(size),
            "window": attention.window or 0,
            "pre": int(block.order == "pre"),
            "parallel": int(block.parallel),
        }
        if block.cross is not None:
            heads, size = block.cross.n_heads, block.cross.head_size(self.config.d_model)
            layer |= {
                "cross_norm": self._norm(f"{name}.cross_residual.norm", block.norm),
                "cross_q": self._projections(f"{name}.cross", ("query",), block.cross, f"{name}.cross_q"),
                "cross_kv": self._projections(f"{name}.cross", ("key", "value"), block.cross),
                "cross_out": self._out(f"{name}.cross", block.cross, f"{name}.cross_out"),
                "cross_heads": heads,
                "cross_head_size": rounded_up(size),
            }
        if block.ffn is not None:
            gated = isinstance(block.ffn, GatedMLPConfig)
            check_known(block.ffn, GatedMLPConfig if gated else MLPConfig)
            assert block.mlp is not None
            d_ff, bias = block.mlp.d_ff, block.mlp.bias
            parts = ("gate", "up") if gated else ("up",)
            layer |= {
                "ffn_norm": self._norm(f"{name}.ffn_residual.norm", block.norm),
                "up": self._stacked([self._both(f"{name}.ffn.{part}", d_ff, d, bias) for part in parts], f"{name}.up"),
                "down": self._matrix(*self._both(f"{name}.ffn.down", d, d_ff, bias), f"{name}.down"),
                "activation": ACTIVATIONS[block.mlp.activation],
                "gated": int(gated),
            }
        return layer

    def _projections(
        self, name: str, parts: tuple[str, ...], config: AttentionConfig, place: str = ""
    ) -> dict[str, Any]:
        """Projections into heads, one under the other; queries are scaled here, once for all."""
        size = config.head_size(self.config.d_model)
        scale = _single(config.scale or 1 / math.sqrt(size), f"{name}: scale")
        matrices = []
        for part in parts:
            heads = config.n_heads if part == "query" else config.n_kv_heads or config.n_heads
            factor = np.float32(scale if part == "query" else 1)
            weight, bias = self._both(f"{name}.{part}", heads * size, self.config.d_model, config.bias)
            if config.rotary and part != "value":
                order = halves(config.rotary, heads, size)
                weight, bias = weight[order], bias[order]
            matrices.append((pad_heads(weight * factor, heads, size), pad_heads(bias * factor, heads, size)))
        return self._stacked(matrices, place)

    def _out(self, name: str, config: AttentionConfig, place: str) -> dict[str, Any]:
        heads, size = config.n_heads, config.head_size(self.config.d_model)
        bias = config.bias if config.out_bias is None else config.out_bias
        weight, bias_D = self._both(f"{name}.out", self.config.d_model, heads * size, bias)
        return self._matrix(pad_heads(weight.T, heads, size).T, bias_D, place)

    def _stacked(self, parts: list[tuple[np.ndarray, np.ndarray]], place: str) -> dict[str, Any]:
        """Matrices and biases one under the other, each padded by itself, as one `Linear`."""
        weights = np.concatenate([padded(weight, PANEL, 1) for weight, _ in parts])
        return self._matrix(weights, np.concatenate([padded(bias, PANEL) for _, bias in parts]), place)

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

    def _matrix(self, weight: np.ndarray, bias: np.ndarray, place: str = "") -> dict[str, Any]:
        """A matrix [n, k] and its bias, as a `Linear`; with balanced inputs where the peaks of those are known."""
        weight, bias = padded(weight, PANEL, PANEL), padded(bias, PANEL)
        linear: dict[str, Any] = {"type": TYPES[self.precision], "bias": self._array(bias)}
        if place in self.peaks and self.precision == "int8":
            weight, factors, columns = balanced(weight, self.peaks[place])
            linear |= {"factors": self._array(factors), "columns": self._array(columns), "extras": len(columns)}
        n, k = weight.shape
        linear |= {"n": n, "k": k}
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
        check_known(config, RMSNormConfig if rms else LayerNormConfig)
        gain = self._take(f"{name}.weight", self.config.d_model)
        biased = isinstance(config, LayerNormConfig) and config.bias
        bias = self._take(f"{name}.bias", len(gain)) if biased else np.zeros_like(gain)
        return {
            "gain": self._array(padded(gain, PANEL)),
            "bias": self._array(padded(bias, PANEL)),
            "eps": _single(config.eps, f"{name}: eps"),
            "rms": int(rms),
        }

    def _array(self, array: np.ndarray) -> dict[str, int]:
        at = self.size
        self.blobs.append((at, array))
        self.size += -(-array.nbytes // packed_format.ALIGNMENT) * packed_format.ALIGNMENT
        return {"at": at, "bytes": array.nbytes}


def _single(value: float, what: str) -> float:
    """A number that float32 holds."""
    if not abs(value) < 3e38:  # nor NaN
        raise UserError(f"{what} is {value}; it must be a finite number")
    return value


def pack(directory: Path, precision: str, file: Path) -> None:
    """Packs the MODEL in `directory` into `file`; arguments and errors are those of `pack_model`.

    Raises:
        UserError: the MODEL is damaged, or holds NaN.
    """
    weights = read_weights(directory / "model.safetensors")
    try:
        pack_model(_config(directory), weights, precision, file, origin(directory), verified_tokenizer(directory))
    except KeyError as error:
        raise UserError(f"{directory}: model.safetensors lacks {error.args[0]}; copy or train it again") from None


def pack_model(
    config: ModelConfig, weights: Weights, precision: str, file: Path, origin: str, tokenizer: str | None = None
) -> None:
    """Packs a model into `file`.

    Args:
        weights: float32, by the names of the torch module's `state_dict`.
        precision: "bf16", "fp32", "int8" where its logits stay close (`FAITHFUL`), if need be with balanced inputs,
            which are a little slower; or "auto": int8 or else bf16.
        origin: what tells this state of the model from another (`glassformer.runtime.cache`).
        tokenizer: what `glassformer.header.verified_tokenizer` says of it.

    Raises:
        UserError: an array is not as the configuration says, or holds NaN.
        EngineUnavailable: it has a part that the native engine does not know, or int8 is not faithful to it.
    """
    if precision not in ("auto", "int8"):
        return Packer(config, weights, precision).write(file, origin, tokenizer)
    with _scratch_folder(file) as scratch:
        exact, small = scratch / "fp32", scratch / "int8"
        Packer(config, weights, "fp32").write(exact, origin)
        Packer(config, weights, "int8").write(small, origin, tokenizer)
        likeness = cosine(exact, small)
        if not likeness >= FAITHFUL:  # NaN is not faithful, either
            Packer(config, weights, "int8", peaks(exact)).write(small, origin, tokenizer)
            likeness = cosine(exact, small)
        if not likeness >= FAITHFUL:
            if precision == "int8":
                raise EngineUnavailable(
                    f"int8 would change what this model says (cosine of its logits {likeness:.3f}, below {FAITHFUL}); "
                    "give --precision bf16 or fp32"
                )
            Packer(config, weights, "bf16").write(small, origin, tokenizer)
        small.replace(file)


@contextmanager
def _scratch_folder(file: Path) -> Iterator[Path]:
    """A folder beside a file, until the block ends."""
    folder = file.with_name(packed_format.scratch_name(file.name))
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def peaks(exact: Path) -> dict[str, np.ndarray]:
    """The largest magnitude of each input of each layer's products, over random sources and targets.

    Args:
        exact: a model packed in float32.
    """
    model = NativeModel.open(exact, threads=1)
    held: dict[str, np.ndarray] = {}
    for name in ("encoder", "decoder"):
        stack = getattr(model.model, name)
        for i in range(stack.n_layers):
            for part in ("qkv", "out", "cross_q", "cross_out", "up", "down"):
                linear = getattr(stack.layers[i], part)
                if linear.weight:
                    array = held[f"{name}.layers.{i}.{part}"] = np.zeros(linear.k, np.float32)
                    linear.factors, linear.extras = array.ctypes.data, -1
    _answers([model], np.random.default_rng(1))
    return held


def cosine(exact: Path, other: Path) -> float:
    """The least cosine between two packed models' logits over random sources and targets, each row's mean taken off.

    Of an encoder alone it is that of the mean hidden states.
    """
    answers = _answers([NativeModel.open(path) for path in (exact, other)], np.random.default_rng(0))
    ours, theirs = (logits - logits.mean(-1, keepdims=True) for logits in answers)
    norms = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    return float(((ours * theirs).sum(-1) / np.maximum(norms, 1e-30)).min())


def _answers(
    models: list[NativeModel], rng: np.random.Generator, sentences: int = 16, length: int = 12, steps: int = 4
) -> list[np.ndarray]:
    """What models say of the same random sources: logits, or of an encoder alone, mean hidden states; float64."""
    one = models[0]
    length = min(length, one.source_limit or length)
    sources = rng.integers(0, one.model.source_vocab, (sentences, length)).tolist()
    if not one.model.decoder.n_layers:
        return [np.stack([x_SD.mean(0, np.float64) for x_SD in model.encode(sources)]) for model in models]
    room = (one.target_limit or length + steps) - (length if one.prompted else 0)
    tokens_NT = rng.integers(0, one.model.target_vocab, (sentences, min(steps, max(room, 1))))
    if one.prompted:
        sources = [ids[: length - 1] or ids for ids in sources]
    return [model.start(sources).step(tokens_NT, last_only=False).astype(np.float64) for model in models]


def _config(directory: Path) -> ModelConfig:
    file = directory / "config.json"
    try:
        return ModelConfig.from_dict(json.loads(file.read_text(encoding="utf-8"))["model"], str(file))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file}: cannot be read ({error})") from None

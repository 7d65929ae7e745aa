"""GGUF, llama.cpp's files: weights, perhaps quantised, the configuration and the tokenizer in one.

Float tensors stay memory-mapped; quantised ones are made float32 block by block, as ggml's reference does.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; blocks: ggml-quants.c.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.config import LinearScaling, ModelConfig, RotaryConfig, ScalingConfig, YarnScaling
from glassformer.errors import UserError
from glassformer.families.llama import llama
from glassformer.header import Framing
from glassformer.interop.hf import check_vocabulary
from glassformer.models.build import build_model
from glassformer.store import Loaded, float_model
from glassformer.text.pieces import byte_level_bpe, scored_bpe
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights import Rule, ignore, import_weights

MAGIC = b"GGUF"
_LAYOUTS = {"llama": "interleaved", "qwen2": "halves"}
"""Architectures that are LLaMA's, and which rotary features make a pair in their files."""
_SCALARS = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")))
_STRING, _ARRAY = 8, 9
_UNKNOWN, _CONTROL = 2, 3
_ENDS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>")
"""Control tokens by which llama.cpp, too, takes a text for ended, beside the one that the file names."""


class Kind(NamedTuple):
    """How the numbers of a tensor are stored: so many in a block, so many bytes each, and what makes them float32."""

    name: str
    block: int
    size: int
    floats: Callable[[NDArray[Any]], NDArray[np.float32]]


def _nibbles(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The low halves of 16 bytes, then the high ones."""
    return np.concatenate([data & 15, data >> 4], 1).astype(np.float32)


def _halves(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    return data.view(np.float16).astype(np.float32)


def _q4_0(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (_nibbles(data[:, 2:]) - 8) * _halves(data[:, :2])


def _q4_1(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _nibbles(data[:, 4:]) * _halves(data[:, :2]) + _halves(data[:, 2:4])


def _q8_0(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    return data[:, 2:].view(np.int8).astype(np.float32) * _halves(data[:, :2])


def _bf16(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


KINDS = {
    0: Kind("F32", 1, 4, lambda data: data.view(np.float32)),
    1: Kind("F16", 1, 2, _halves),
    2: Kind("Q4_0", 32, 18, _q4_0),
    3: Kind("Q4_1", 32, 20, _q4_1),
    8: Kind("Q8_0", 32, 34, _q8_0),
    30: Kind("BF16", 1, 2, _bf16),
}


class Entry(NamedTuple):
    """A tensor of the file: its shape, its kind's number, and where it lies behind the header."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class Lazy(Mapping[str, Tensor]):
    """The tensors of a file, each made when it is asked for."""

    def __init__(self, file: Path, entries: Mapping[str, Entry], start: int) -> None:
        self._entries, self._start = entries, start
        self._data = np.memmap(file, np.uint8, "c")
        self._file = file

    def __getitem__(self, name: str) -> Tensor:
        shape, number, offset = self._entries[name]
        if number not in KINDS:
            known = ", ".join(kind.name for kind in KINDS.values())
            raise UserError(f"{self._file}: {name} is of quantisation {number}, which is unknown; known are {known}")
        kind, at = KINDS[number], self._start + offset
        count = prod(shape)
        size = count // kind.block * kind.size
        if count % kind.block or at + size > len(self._data):
            raise UserError(f"{self._file}: {name} does not end where the file does; it is truncated, copy it again")
        raw = self._data[at : at + size].reshape(-1, kind.size)
        return torch.from_numpy(kind.floats(raw).reshape(shape))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor.

        Raises:
            UserError: There is none of that name.
        """
        if name not in self._entries:
            raise UserError(f"{self._file}: has no {name}")
        return self._entries[name].shape

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Any:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class _Reader:
    """The header's values, one behind the other."""

    def __init__(self, file: Path) -> None:
        self.file, self.at = file, 0
        with file.open("rb") as stream:
            self._data = mmap(stream.fileno(), 0, access=ACCESS_READ)

    def number(self, code: str) -> Any:
        size = struct.calcsize(f"<{code}")
        return struct.unpack(f"<{code}", self._bytes(size))[0]

    def string(self) -> str:
        return self._bytes(self.number("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            code = _SCALARS.get(inner)
            if code is not None:
                return list(struct.unpack(f"<{count}{code}", self._bytes(count * struct.calcsize(f"<{code}"))))
            return [self.value(inner) for _ in range(count)]
        code = _SCALARS.get(kind)
        if code is None:
            raise UserError(f"{self.file}: a value of the unknown type {kind}; it is damaged, or of another version")
        return self.number(code)

    def _bytes(self, size: int) -> bytes:
        if self.at + size > len(self._data):
            raise UserError(f"{self.file}: ends within its header; it is truncated, copy it again")
        data = self._data[self.at : self.at + size]
        self.at += size
        return data


def recognises(path: Path) -> bool:
    """Whether a file begins as GGUF does, or a directory without ``config.json`` holds one such file."""
    return _find(path) is not None


def load(path: Path) -> Loaded:
    """Loads a file.

    Raises:
        UserError: It is truncated, or of an architecture, a quantisation or a tokenizer that is unknown; a weight is
            missing or left over; the vocabulary does not fit the embedding.
    """
    file = _found(path)
    told, tensors = read(file)
    config = _config(file, told, tensors)
    expected = build_model(config, "meta", initialise=False).state_dict()
    try:
        weights = import_weights(_rules(config), tensors, expected)
    except UserError as error:
        raise UserError(f"{file}: {error}".replace(f"{file}: {file}: ", f"{file}: ")) from None
    tokenizer = _tokenizer(file, told)
    if tokenizer is not None:
        check_vocabulary(file, tokenizer, config)
    return Loaded(file, float_model(config, weights), tokenizer, None, _framing(told, tokenizer))


def model_config(path: Path) -> ModelConfig:
    """The configuration of a file's model; raises as `load`."""
    file = _found(path)
    return _config(file, *read(file))


def read(file: Path) -> tuple[dict[str, Any], Lazy]:
    """The metadata of a file, and its tensors.

    Raises:
        UserError: It is truncated or of an unknown version.
    """
    reader = _Reader(file)
    magic, version = reader.number("4s"), reader.number("I")
    if magic != MAGIC or version not in (2, 3):
        raise UserError(f"{file}: GGUF version {version} is unknown; known are 2 and 3")
    n_tensors, n_values = reader.number("Q"), reader.number("Q")
    told = {}
    for _ in range(n_values):
        key = reader.string()
        told[key] = reader.value(reader.number("I"))
    entries = {}
    for _ in range(n_tensors):
        name, n_dims = reader.string(), reader.number("I")
        # Their first dimension is the one whose numbers lie side by side, our last.
        shape = tuple(reversed([reader.number("Q") for _ in range(n_dims)]))
        entries[name] = Entry(shape, reader.number("I"), reader.number("Q"))
    alignment = told.get("general.alignment", 32)
    return told, Lazy(file, entries, -(-reader.at // alignment) * alignment)


def _find(path: Path) -> Path | None:
    if path.is_dir():
        files = [] if (path / "config.json").exists() else sorted(path.glob("*.gguf"))
        return _find(files[0]) if len(files) == 1 else None
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return path if stream.read(4) == MAGIC else None


def _found(path: Path) -> Path:
    file = _find(path)
    assert file is not None
    return file


def _config(file: Path, told: Mapping[str, Any], tensors: Lazy) -> ModelConfig:
    name = told.get("general.architecture")
    if name not in _LAYOUTS:
        raise UserError(f"{file}: architecture {name!r} is unknown; known are {', '.join(_LAYOUTS)}")
    take = partial(_take, file, told)
    for key in ("expert_count", "attention.sliding_window"):
        if told.get(f"{name}.{key}"):
            raise UserError(f"{file}: {name}.{key} {told[f'{name}.{key}']} cannot be represented")
    d_model, n_heads = take(f"{name}.embedding_length"), take(f"{name}.attention.head_count")
    shared = take(f"{name}.attention.head_count_kv", n_heads)
    d_head = take(f"{name}.attention.key_length", d_model // n_heads)
    if (turned := take(f"{name}.rope.dimension_count", d_head)) != d_head:
        raise UserError(f"{file}: {name}.rope.dimension_count {turned} of {d_head} cannot be represented")
    return llama(
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=None if shared == n_heads else shared,
        d_head=None if d_head * n_heads == d_model else d_head,
        d_ff=take(f"{name}.feed_forward_length"),
        n_layers=take(f"{name}.block_count"),
        vocab_size=tensors.shape("token_embd.weight")[0],
        rotary=RotaryConfig(
            base=take(f"{name}.rope.freq_base", 10000.0),
            layout=_LAYOUTS[name],
            scaling=_scaling(file, told, name),
            max_len=take(f"{name}.context_length"),
        ),
        eps=take(f"{name}.attention.layer_norm_rms_epsilon"),
        qkv_bias="blk.0.attn_q.bias" in tensors,
        tie="output.weight" not in tensors,
    )


def _scaling(file: Path, told: Mapping[str, Any], name: str) -> ScalingConfig | None:
    kind = told.get(f"{name}.rope.scaling.type", "none")
    factor = told.get(f"{name}.rope.scaling.factor")
    if kind == "none" or not factor:
        return None
    if kind == "linear":
        return LinearScaling(factor=factor)
    if kind == "yarn":
        original = _take(file, told, f"{name}.rope.scaling.original_context_length")
        return YarnScaling(factor=factor, original_max_len=original)
    raise UserError(f"{file}: {name}.rope.scaling.type {kind!r} cannot be represented, only none, linear and yarn")


def _take(file: Path, told: Mapping[str, Any], key: str, default: Any = None) -> Any:
    value = told.get(key, default)
    if value is None:
        raise UserError(f"{file}: has no {key}; it is needed")
    return value


def _rules(config: ModelConfig) -> Sequence[Rule]:
    ours, theirs = "decoder.layers.*.", "blk.*."
    parts = {"mixer.query": "attn_q", "mixer.key": "attn_k", "mixer.value": "attn_v", "mixer.out": "attn_output"}
    parts |= {f"ffn.{name}": f"ffn_{name}" for name in ("gate", "up", "down")}
    parts |= {"mixer_residual.norm": "attn_norm", "ffn_residual.norm": "ffn_norm"}
    table = [
        Rule(f"{ours}{mine}.{kind}", f"{theirs}{its}.{kind}")
        for mine, its in parts.items()
        for kind in ("weight", "bias")
    ]
    return [
        *table,
        Rule("embed.weight", "token_embd.weight"),
        Rule("decoder.final_norm.weight", "output_norm.weight"),
        Rule("head.weight", "output.weight"),
        ignore("blk.*.attn_rot_embd", "blk.*.attn_rot_embd.weight"),
    ]


def _scored(told: Mapping[str, Any], pieces: Sequence[str], special: set[int]) -> Tokenizer:
    prefix = told.get("tokenizer.ggml.add_space_prefix", True)
    return scored_bpe(pieces, told["tokenizer.ggml.scores"], special, prefix=prefix)


def _byte_level(told: Mapping[str, Any], pieces: Sequence[str], special: set[int]) -> Tokenizer:
    split, prefix = told.get("tokenizer.ggml.pre", "gpt-2"), told.get("tokenizer.ggml.add_space_prefix", False)
    return byte_level_bpe(pieces, told["tokenizer.ggml.merges"], special, split, prefix=prefix)


_TOKENIZERS = {"llama": (_scored, True), "gpt2": (_byte_level, False)}
"""Kinds by their names in the file, and whether a text begins with ``<s>`` where it does not say."""


def _tokenizer(file: Path, told: Mapping[str, Any]) -> Tokenizer | None:
    kind = told.get("tokenizer.ggml.model", "none")
    if kind == "none":
        return None
    pieces: list[str] = _take(file, told, "tokenizer.ggml.tokens")
    types = told.get("tokenizer.ggml.token_type", [1] * len(pieces))
    special = {index for index, each in enumerate(types) if each in (_UNKNOWN, _CONTROL)}
    try:
        if kind not in _TOKENIZERS:
            raise UserError(f"tokenizer {kind!r} is unknown; known are {', '.join(_TOKENIZERS)}")
        tokenizer = _TOKENIZERS[kind][0](told, pieces, special)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    except KeyError as error:
        raise UserError(f"{file}: has no {error.args[0]}; it is needed") from None
    for name, key in (("bos_id", "bos"), ("eos_id", "eos"), ("pad_id", "padding"), ("unk_id", "unknown")):
        setattr(tokenizer, name, told.get(f"tokenizer.ggml.{key}_token_id"))
    return tokenizer


def _framing(told: Mapping[str, Any], tokenizer: Tokenizer | None) -> Framing:
    if tokenizer is None:
        return Framing()
    begins = _TOKENIZERS[told["tokenizer.ggml.model"]][1]
    before = tokenizer.bos_id if told.get("tokenizer.ggml.add_bos_token", begins) else None
    named = [told.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    special = tokenizer.backend.get_added_tokens_decoder()
    ends = [*named, *(index for index, token in special.items() if token.content in _ENDS)]
    return Framing(
        before=() if before is None else (before,),
        after=() if tokenizer.eos_id is None else (tokenizer.eos_id,),
        ends=tuple(dict.fromkeys(index for index in ends if index is not None)),
        chat_template=told.get("tokenizer.chat_template"),
    )

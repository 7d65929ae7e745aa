"""llama2.c's files (Karpathy 2023): a LLaMA in float32, as its versions 0 and 1 write it, and a tokenizer beside it.

Queries and keys are stored as Meta's own code has them: a head's rotary features in pairs side by side.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.config import ModelConfig, RotaryConfig
from glassformer.errors import UserError
from glassformer.families.llama import llama
from glassformer.header import Framing
from glassformer.store import Loaded, float_model
from glassformer.text.pieces import scored_bpe
from glassformer.text.tokenizer import Tokenizer

MAGIC = b"24ka"
_BOS, _EOS = 1, 2


class Header(NamedTuple):
    """The first numbers of a file."""

    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    max_seq_len: int
    version: int
    tied: bool

    @property
    def start(self) -> int:
        """Where the weights begin."""
        return 256 if self.version else 28

    @property
    def plausible(self) -> bool:
        """Whether these can be the numbers of a model at all."""
        numbers = self[:7]
        return (
            all(0 < n < 1 << 24 for n in numbers)
            and self.dim < 1 << 16
            and not (self.dim % self.n_heads or self.n_heads % self.n_kv_heads)
        )


def recognises(path: Path) -> bool:
    """Whether a .bin file begins as llama2.c's do, or a directory without ``config.json`` holds one that does."""
    return _find(path) is not None


def load(path: Path) -> Loaded:
    """Loads a file, memory-mapped, and the tokenizer beside it that is of the same size.

    Raises:
        UserError: The file is truncated, or of a version that is not float32; the tokenizer is of another size.
    """
    file, header = _found(path)
    config = _config(header)
    model = float_model(config, _weights(file, header, config))
    tokenizer = _tokenizer(file, header.vocab_size)
    # A text ends where the next one would begin.
    return Loaded(file, model, tokenizer, None, Framing((_BOS,), (_EOS,), None, (_BOS, _EOS)))


def model_config(path: Path) -> ModelConfig:
    """The configuration of a file's model; raises as `load`."""
    return _config(_found(path)[1])


def _config(header: Header) -> ModelConfig:
    return llama(
        d_model=header.dim,
        n_heads=header.n_heads,
        n_kv_heads=None if header.n_kv_heads == header.n_heads else header.n_kv_heads,
        d_ff=header.hidden_dim,
        n_layers=header.n_layers,
        vocab_size=header.vocab_size,
        rotary=RotaryConfig(layout="interleaved", max_len=header.max_seq_len),
        eps=1e-5,
        tie=header.tied,
    )


def _find(path: Path) -> Path | None:
    if path.is_dir():
        if (path / "config.json").exists():
            return None
        found = [file for file in sorted(path.glob("*.bin")) if _find(file)]
        return found[0] if len(found) == 1 else None
    header = _header(path) if path.suffix == ".bin" and path.is_file() else None
    return path if header and header.plausible else None


def _found(path: Path) -> tuple[Path, Header]:
    file = _find(path)
    assert file is not None
    header = _header(file)
    assert header is not None
    if header.version > 1:
        raise UserError(f"{file}: llama2.c version {header.version}, which is quantised; export it as version 0 or 1")
    return file, header


def _header(file: Path) -> Header | None:
    with file.open("rb") as stream:
        first = stream.read(64)
    if len(first) < 64:
        return None
    if first[:4] == MAGIC:
        version, *numbers, tied = struct.unpack_from("<8iB", first, 4)
        return Header._make([*numbers, version, bool(tied)])
    # A negative vocabulary says that the output has a matrix of its own.
    dim, hidden_dim, n_layers, n_heads, n_kv_heads, rows, length = struct.unpack_from("<7i", first)
    return Header(dim, hidden_dim, n_layers, n_heads, n_kv_heads, abs(rows), length, 0, rows > 0)


def _tensors(header: Header, config: ModelConfig) -> Iterator[tuple[str | None, tuple[int, ...]]]:
    """Every tensor in the order of the file, by our name and its shape; `*` is each layer in turn."""
    d, f, head = header.dim, header.hidden_dim, header.dim // header.n_heads
    shared = header.n_kv_heads * head
    layer = "decoder.layers.*."
    embed = ("embed.weight", (header.vocab_size, d))
    norms = [(f"{layer}{part}_residual.norm.weight", (d,)) for part in ("mixer", "ffn")]
    final = ("decoder.final_norm.weight", (d,))
    attention = [
        (f"{layer}mixer.{name}.weight", (rows, d))
        for name, rows in (("query", d), ("key", shared), ("value", shared), ("out", d))
    ]
    ffn = [(f"{layer}ffn.{name}.weight", (d, f) if name == "down" else (f, d)) for name in ("gate", "down", "up")]
    if header.version:
        yield from [*norms, final, embed, *attention, *ffn]
    else:
        yield from [embed, norms[0], *attention, norms[1], *ffn, final]
        yield from [(None, (header.max_seq_len, head // 2))] * 2  # cosines and sines
    if not header.tied:
        yield "head.weight", (header.vocab_size, d)


def _weights(file: Path, header: Header, config: ModelConfig) -> dict[str, Tensor]:
    places: list[tuple[str | None, tuple[int, ...]]] = []
    for name, shape in _tensors(header, config):
        layers = range(header.n_layers) if name and "*" in name else range(1)
        places += [(name and name.replace("*", str(layer)), shape) for layer in layers]
    needed = header.start + 4 * sum(prod(shape) for _, shape in places)
    if (size := file.stat().st_size) != needed:
        raise UserError(f"{file}: has {size} bytes, but its first numbers ask for {needed}; copy it again")
    weights, at = {}, header.start
    for name, shape in places:
        if name is not None:
            weights[name] = torch.from_numpy(np.memmap(file, np.float32, "c", at, shape))
        at += 4 * prod(shape)
    return weights


def _tokenizer(file: Path, vocab_size: int) -> Tokenizer | None:
    """The tokenizer beside a model: ``tok*.bin``, of which one must have as many pieces as the model.

    Raises:
        UserError: There are some, but none has.
    """
    sizes = {}
    for beside in sorted(file.parent.glob("tok*.bin")):
        pieces = _pieces(beside)
        sizes[beside.name] = len(pieces)
        if len(pieces) == vocab_size:
            texts = [piece.decode(errors="replace").replace(" ", "▁") for piece, _ in pieces]
            texts[:3] = ["<unk>", "<s>", "</s>"]
            return scored_bpe(texts, [score for _, score in pieces], range(3))
    if sizes:
        told = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise UserError(f"{file}: no tokenizer of its {vocab_size} pieces beside it ({told})")
    return None


def _pieces(file: Path) -> list[tuple[bytes, float]]:
    data, at, pieces = file.read_bytes(), 4, []
    while at + 8 <= len(data):
        score, length = struct.unpack_from("<fi", data, at)
        if not 0 <= length <= len(data) - at - 8:
            raise UserError(f"{file}: damaged, or not a tokenizer of llama2.c")
        pieces.append((data[at + 8 : at + 8 + length], score))
        at += 8 + length
    return pieces

"""rwkv.cpp's files of RWKV-4, 5.1, 5.2 and 7 in float32 or float16, and a tokenizer beside them.

Format: https://github.com/RWKV/rwkv.cpp/blob/master/docs/FILE_FORMAT.md; what its converter does to decays is undone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.config import ModelConfig
from glassformer.errors import UserError
from glassformer.families.rwkv4 import rwkv4
from glassformer.families.rwkv5 import rwkv5
from glassformer.families.rwkv7 import rwkv7
from glassformer.header import Framing
from glassformer.interop.hf import check_vocabulary, read_tokenizer
from glassformer.models.build import build_model
from glassformer.store import Loaded, float_model
from glassformer.text.pieces import byte_level_bpe
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights import Op, Rule, Tensors, both, ignore, import_weights

MAGIC = b"fmgg"
VERSIONS = (100, 101)
_HEADER = struct.Struct("<4s5i")
_TYPES = {0: ("FP32", np.float32), 1: ("FP16", np.float16)}
_EPS = 1e-5
"""Of the heads' norm in RWKV-5, as its expected logits tell; the released PyTorch code has 64e-5."""
_END = 0
"""The id that ends a text, in the tokenizers of all released models."""


class Entry(NamedTuple):
    """A tensor of the file: its shape, its type's number, and where it lies."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class File(Mapping[str, Tensor]):
    """The tensors of a file, memory-mapped, each made float32 when it is asked for.

    Raises:
        UserError: The file is truncated or damaged, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._entries = path, dict[str, Entry]()
        self._data = np.memmap(path, np.uint8, "c")
        at = _HEADER.size
        if len(self._data) < at:
            raise self._truncated()
        _, version, self.vocab_size, self.d_model, self.n_layers, _ = _HEADER.unpack(self._data[:at].tobytes())
        if version not in VERSIONS:
            raise UserError(f"{path}: rwkv.cpp version {version} is unknown; known are 100 and 101")
        while at < len(self._data):
            n_dims, length, kind = self._numbers(at, 3)
            if not (0 < n_dims < 5 and 0 < length < 256):
                raise UserError(f"{path}: damaged at byte {at}, where a parameter begins; copy it again")
            # Their first dimension is the one whose numbers lie side by side, our last.
            shape = tuple(reversed(self._numbers(at + 12, n_dims)))
            at += 12 + 4 * n_dims
            name = self._data[at : at + length].tobytes().decode("utf-8", errors="replace")
            if kind not in _TYPES:
                known = " and ".join(each for each, _ in _TYPES.values())
                raise UserError(f"{path}: {name} is of data type {kind}, which is unknown; known are {known}")
            at += length
            self._entries[name] = Entry(shape, kind, at)
            at += prod(shape) * np.dtype(_TYPES[kind][1]).itemsize
            if min(shape) < 1 or at > len(self._data):
                raise self._truncated(name)

    def _numbers(self, at: int, count: int) -> tuple[int, ...]:
        if at + 4 * count > len(self._data):
            raise self._truncated()
        return struct.unpack(f"<{count}i", self._data[at : at + 4 * count].tobytes())

    def _truncated(self, name: str = "a parameter") -> UserError:
        return UserError(f"{self.path}: ends within {name}; it is truncated, copy it again")

    def __getitem__(self, name: str) -> Tensor:
        shape, kind, at = self._entries[name]
        numbers = np.frombuffer(self._data, _TYPES[kind][1], prod(shape), at)
        return torch.from_numpy(numbers.reshape(shape)).float()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor.

        Raises:
            UserError: There is none of that name.
        """
        if name not in self._entries:
            raise UserError(f"{self.path}: has no {name}, so it is no RWKV-4, 5 or 7")
        return self._entries[name].shape

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def recognises(path: Path) -> bool:
    """Whether a file begins as rwkv.cpp's do, or a directory without ``config.json`` holds one that does."""
    return _find(path) is not None


def load(path: Path) -> Loaded:
    """Loads a file, memory-mapped, and the tokenizer beside it; 256 pieces are bytes and need none.

    Raises:
        UserError: The file is truncated, quantised, or of another version of RWKV; a weight is missing or left over;
            the tokenizer does not fit.
    """
    file = File(_found(path))
    config, rules = _read(file)
    expected = build_model(config, "meta", initialise=False).state_dict()
    try:
        weights = import_weights(rules, file, expected)
    except UserError as error:
        raise UserError(f"{file.path}: {error}") from None
    tokenizer = _bytes() if file.vocab_size == 256 else read_tokenizer(file.path.parent)
    if tokenizer is not None:
        check_vocabulary(file.path, tokenizer, config)
    framing = Framing() if file.vocab_size == 256 else Framing(ends=(_END,))
    return Loaded(file.path, float_model(config, weights), tokenizer, None, framing)


def model_config(path: Path) -> ModelConfig:
    """The configuration of a file's model; raises as `load`."""
    return _read(File(_found(path)))[0]


def _find(path: Path) -> Path | None:
    if path.is_dir():
        if (path / "config.json").exists():
            return None
        found = [file for file in sorted(path.glob("*.bin")) if _find(file)]
        return found[0] if len(found) == 1 else None
    if path.suffix != ".bin" or not path.is_file():
        return None
    with path.open("rb") as stream:
        return path if stream.read(4) == MAGIC else None


def _found(path: Path) -> Path:
    file = _find(path)
    assert file is not None
    return file


def _bytes() -> Tokenizer:
    """A tokenizer whose 256 pieces are the bytes: id 97 is ``a``."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = set(ByteLevel.alphabet())
    # GPT-2 shows printable bytes as themselves, and the others in their order from U+0100 on.
    shown = iter(sorted(char for char in alphabet if ord(char) > 255))
    return byte_level_bpe([chr(b) if chr(b) in alphabet else next(shown) for b in range(256)], [], (), "gpt-2")


class _Made(Op):
    """Ours by a function of theirs; nothing is written back."""

    def __init__(self, make: Callable[[Tensor], Tensor | Sequence[Tensor]]) -> None:
        self._make = make

    def ours(self, theirs: Tensors) -> Tensors:
        made = self._make(theirs[0])
        return [made] if isinstance(made, Tensor) else made


def _read(file: File) -> tuple[ModelConfig, Sequence[Rule]]:
    """The configuration, and the table of weights, by the names that tell the versions apart."""
    first = "blocks.0.att."
    if f"{first}time_maa_x" in file:
        raise UserError(f"{file.path}: RWKV-6 cannot be represented, only RWKV-4, 5 and 7")
    sizes = dict(d_model=file.d_model, n_layers=file.n_layers, vocab_size=file.vocab_size)
    sizes["d_ff"] = file.shape("blocks.0.ffn.key.weight")[0]
    last, table = f"blocks.{file.n_layers - 1}.ln1.weight", (file.vocab_size, file.d_model)
    if file.n_layers < 1 or last not in file or file.shape("emb.weight") != table:
        told = f"{file.n_layers} layers of {file.d_model}, {file.vocab_size} pieces"
        raise UserError(f"{file.path}: damaged: its header tells of {told}, its tensors do not; copy it again")
    if f"{first}r_k" in file:
        decay, rate, gate = (file.shape(f"{first}{name}1")[0] for name in ("w", "a", "g"))
        value = file.shape("blocks.1.att.v1")[0] if file.n_layers > 1 else 1
        config = rwkv7(**sizes, d_head=file.shape(f"{first}r_k")[1], ranks=(decay, rate, value, gate))
        return config, [*_shared(), *_rwkv7()]
    if f"{first}ln_x.weight" in file:
        n_heads = file.shape(f"{first}time_decay")[0]
        config = rwkv5(**sizes, d_head=file.d_model // n_heads, gate=f"{first}gate.weight" in file, head_eps=_EPS)
        bonus = "time_faaaa" if f"{first}time_faaaa" in file else "time_first"
        return config, [*_shared(), *_rwkv5(config.d_model, bonus)]
    config = rwkv4(**sizes, d_attention=file.shape(f"{first}key.weight")[0])
    return config, [*_shared(), *_mixes("kvr"), *_channel(), *_rwkv4()]


_OURS, _THEIRS = "decoder.layers.*.", "blocks.*."


def _shared() -> list[Rule]:
    """What all versions have."""
    matrices = {f"mixer.{name}": f"att.{name}" for name in ("receptance", "key", "value")}
    matrices |= {"mixer.out": "att.output", "ffn.up": "ffn.key", "ffn.down": "ffn.value"}
    return [
        Rule("embed.weight", "emb.weight"),
        Rule("head.weight", "head.weight"),
        *both("decoder.input_norm", "blocks.0.ln0"),
        *both("decoder.final_norm", "ln_out"),
        *both(f"{_OURS}mixer_residual.norm", f"{_THEIRS}ln1"),
        *both(f"{_OURS}ffn_residual.norm", f"{_THEIRS}ln2"),
        *(Rule(f"{_OURS}{mine}.weight", f"{_THEIRS}{its}.weight") for mine, its in matrices.items()),
    ]


def _mixes(letters: str) -> list[Rule]:
    names = {"k": "key", "v": "value", "r": "receptance", "g": "gate"}
    return [Rule(f"{_OURS}mixer.mix_{names[each]}", f"{_THEIRS}att.time_mix_{each}") for each in letters]


def _channel() -> list[Rule]:
    """The channel-mix before RWKV-7."""
    return [
        Rule(f"{_OURS}ffn.gate.weight", f"{_THEIRS}ffn.receptance.weight"),
        Rule(f"{_OURS}ffn.mix_key", f"{_THEIRS}ffn.time_mix_k"),
        Rule(f"{_OURS}ffn.mix_gate", f"{_THEIRS}ffn.time_mix_r"),
    ]


def _rwkv4() -> list[Rule]:
    """Decays are stored as ``−e^decay``."""
    tiny = torch.finfo(torch.float32).tiny
    return [
        Rule(f"{_OURS}mixer.decay", f"{_THEIRS}att.time_decay", _Made(lambda x: (-x).clamp(min=tiny).log())),
        Rule(f"{_OURS}mixer.first", f"{_THEIRS}att.time_first"),
    ]


def _rwkv5(d_model: int, first: str) -> list[Rule]:
    """Decays are stored as ``e^(−e^decay)``; RWKV-5.1 has one for each head, and ours repeat it."""

    def spread(x: Tensor) -> Tensor:
        return x.flatten().repeat_interleave(d_model // x.numel())

    def decay(x: Tensor) -> Tensor:
        rate = -x.double().log()
        return spread(rate.clamp(1e-30, 1e30).log().float())

    return [
        *_mixes("kvr"),
        *_channel(),
        *both(f"{_OURS}mixer.norm", f"{_THEIRS}att.ln_x"),
        Rule(f"{_OURS}mixer.decay", f"{_THEIRS}att.time_decay", _Made(decay)),
        Rule(f"{_OURS}mixer.first", f"{_THEIRS}att.{first}", _Made(spread)),
        *_mixes("g"),
        Rule(f"{_OURS}mixer.gate.weight", f"{_THEIRS}att.gate.weight"),
    ]


def _rwkv7() -> list[Rule]:
    """Shares of token shift are those of the token before: ``1 − μ``."""
    mixes = ("receptance", "decay", "key", "value", "rate", "gate")
    flat = _Made(lambda x: x.flatten())
    vectors = {"removal": "k_k", "renewal": "k_a", "bonus": "r_k"}
    through = {"decay": "w", "rate": "a", "carry": "v", "gate": "g"}
    return [
        Rule(
            tuple(f"{_OURS}mixer.mix_{name}" for name in mixes),
            f"{_THEIRS}att.x_rwkvag",
            _Made(lambda x: list((1 - x).flatten(1))),
        ),
        *(Rule(f"{_OURS}mixer.{mine}", f"{_THEIRS}att.{its}", flat) for mine, its in vectors.items()),
        *(Rule(f"{_OURS}mixer.{mine}.down.weight", f"{_THEIRS}att.{its}1") for mine, its in through.items()),
        *(Rule(f"{_OURS}mixer.{mine}.up.weight", f"{_THEIRS}att.{its}2") for mine, its in through.items()),
        *(
            Rule(f"{_OURS}mixer.{mine}.up.bias", f"{_THEIRS}att.{its}0", flat)
            for mine, its in through.items()
            if its != "g"
        ),
        *both(f"{_OURS}mixer.norm", f"{_THEIRS}att.ln_x"),
        Rule(f"{_OURS}ffn.mix_key", f"{_THEIRS}ffn.x_k", _Made(lambda x: 1 - x.flatten())),
        ignore(*(f"blocks.0.att.v{number}" for number in range(3))),  # the first layer has nothing to take on
    ]

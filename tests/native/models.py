"""Random models, packed, beside the torch modules that they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer.config import ModelConfig
from glassformer.models.build import build_model
from glassformer.models.seq2seq import Seq2Seq
from glassformer.runtime.engine import NativeModel
from glassformer.runtime.pack import Packer
from tests.randomised import randomise

BOS, EOS = 1, 2


def drawn(seed: int, **overrides: Any) -> ModelConfig:
    """Any variant that the parts allow, of sizes that are no multiple of anything."""
    r = np.random.default_rng(seed)

    def pick(*options: Any) -> Any:
        return options[r.integers(len(options))]

    d_model = pick(8, 12, 17, 31, 48)
    heads, d_head = pick(*[(1, None), (2, 3), (3, 5), (2, 16), (1, 33), (4, 7)])
    norm = lambda: dict(eps=pick(1e-6, 1e-2), bias=pick(True, False))  # noqa: E731

    def stack(decoder: bool) -> dict[str, Any]:
        order = pick("pre", "post")
        sinusoids = [dict(layout="interleaved"), dict(layout="halves", base=100.0, first=2)]
        positions = [None, dict(type="learned", max_len=40)]
        positions += [dict(type="sinusoidal", max_len=40, **each) for each in sinusoids] if d_model % 2 == 0 else []
        attention = lambda: dict(n_heads=heads, d_head=d_head, bias=pick(True, False))  # noqa: E731
        blocks = [
            dict(
                mixer=attention() | dict(causal=decoder),
                cross=attention() if decoder else None,
                ffn=pick(
                    None,
                    *[
                        dict(d_ff=int(r.integers(1, 40)), activation=each, bias=pick(True, False))
                        for each in ("relu", "gelu", "gelu-tanh", "silu")
                    ],
                ),
                norm=norm(),
                order=order,
            )
            for _ in range(pick(1, 2))
        ]
        return dict(position=pick(*positions), blocks=blocks, final_norm=pick(norm(), None))

    config: dict[str, Any] = dict(
        d_model=d_model,
        embed=dict(vocab_size=int(r.integers(9, 40)), scale=pick(True, False)),
        target_embed=pick(None, dict(vocab_size=int(r.integers(9, 40)), scale=pick(True, False))),
        encoder=stack(decoder=False),
        decoder=stack(decoder=True),
        head=dict(bias=pick(True, False)),
        tie=pick(True, False),
    )
    return ModelConfig.from_dict(config | overrides)


def module_of(config: ModelConfig, seed: int = 0) -> Seq2Seq:
    return randomise(build_model(config), seed).eval().requires_grad_(False)


def pack(
    module: Seq2Seq,
    config: ModelConfig,
    file: Path,
    precision: str = "fp32",
    peaks: dict[str, np.ndarray] | None = None,
) -> Path:
    Packer(config, weights_of(module), precision, peaks).write(file, "test")
    return file


def weights_of(module: Seq2Seq) -> dict[str, np.ndarray]:
    return {name: tensor.float().numpy() for name, tensor in module.state_dict().items()}


def opened(module: Seq2Seq, config: ModelConfig, folder: Path, precision: str = "fp32", **options: Any) -> NativeModel:
    options = {"threads": 1, **options}
    return NativeModel.open(pack(module, config, folder / f"{precision}.packed", precision), **options)


def sources(vocab: int, lengths: list[int], seed: int = 0) -> list[list[int]]:
    r = np.random.default_rng(seed)
    return [r.integers(0, vocab, length).tolist() for length in lengths]


def logits_of(module: Seq2Seq, sources: list[list[int]], targets_NT: np.ndarray) -> np.ndarray:
    """(N, T, V), each row computed alone and by teacher forcing."""
    rows = [
        module(torch.tensor([source]), torch.tensor([target]))[0].numpy()
        for source, target in zip(sources, targets_NT.tolist(), strict=True)
    ]
    return np.stack(rows)

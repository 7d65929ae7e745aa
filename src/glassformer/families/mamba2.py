"""Mamba-2: Mamba with state spaces in heads, one decay for each, and a norm behind the gate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.config import Activation, HeadConfig, Mamba2Config, ModelConfig, Positive, PositiveFloat
from glassformer.errors import UserError
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys
from glassformer.families.mamba import around, shared_rules, take_numbers, told_numbers
from glassformer.weights import Rule, Split

ARCHITECTURES = {"Mamba2ForCausalLM": HeadConfig(), "Mamba2Model": None}
ENDLESS = 3.0e38
"""Written for a limit that is none."""


def mamba2(
    *,
    d_model: Positive,
    n_layers: Positive,
    vocab_size: Positive = 50288,
    n_heads: Positive | None = None,
    d_head: Positive = 64,
    n_groups: Positive = 1,
    d_state: Positive = 128,
    d_conv: Positive = 4,
    bias: bool = False,
    conv_bias: bool = True,
    activation: Activation = "silu",
    norm_groups: Positive | None = None,
    dt_range: tuple[float, float] | None = None,
    dt_min: PositiveFloat = 0.001,
    dt_max: PositiveFloat = 0.1,
    eps: PositiveFloat = 1e-5,
    chunk: Positive = 64,
    tie: bool = True,
    dropout: float = 0.0,
) -> ModelConfig:
    """Spells out a decoder from the numbers of its paper.

    Args:
        vocab_size: GPT-NeoX's 50,277, rounded up to a multiple of 16.
        n_heads: So many that there are ``2 · d_model`` inner features by default.
        norm_groups: Groups that are normed by themselves behind the gate; ``n_groups`` by default.
        dt_range: Step sizes are kept within it.
    """
    mixer = Mamba2Config(
        n_heads=n_heads or max(1, 2 * d_model // d_head),
        d_head=d_head,
        n_groups=n_groups,
        d_state=d_state,
        d_conv=d_conv,
        bias=bias,
        conv_bias=conv_bias,
        activation=activation,
        norm_groups=norm_groups,
        dt_range=dt_range,
        dt_min=dt_min,
        dt_max=dt_max,
        chunk=chunk,
        eps=eps,
    )
    return around(mixer, d_model, n_layers, vocab_size, eps, tie, dropout)


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """Of a file that ``transformers`` 4 wrote, the norm behind the gate is over all groups at once, as it computes it.

    The paper and version 5 norm each group by itself; where there is one group, as in all of the authors' checkpoints,
    both are the same. A file that tells ``norm_before_gate``, which no version reads, was converted from weights that
    others trained with groups.
    """
    keys = Keys(data)
    for harmless in ("time_step_rank", "chunk_size", "norm_before_gate"):
        keys.take(harmless, default=None)
    keys.only("rms_norm", True)
    old = str(data.get("transformers_version", "")).startswith("4.") and "norm_before_gate" not in data
    limit = keys.take("time_step_limit", default=(0.0, math.inf))
    try:
        low, high = map(_number, limit)
    except (TypeError, ValueError, KeyError):
        raise UserError(f"config.json: time_step_limit {limit!r} is not two numbers, the least and the most") from None
    groups = keys.take("n_groups", default=8)
    config = mamba2(
        **take_numbers(keys),
        vocab_size=keys.take("vocab_size", default=32768),
        n_heads=keys.take("num_heads", default=128),
        d_head=keys.take("head_dim", default=64),
        n_groups=groups,
        d_state=keys.take("state_size", default=128),
        norm_groups=1 if old else None,
        dt_range=None if (low, high) == (0.0, math.inf) else (low, min(high, ENDLESS)),
        tie=keys.take("tie_word_embeddings", default=False),
    )
    expand, heads = keys.take("expand", default=2), config.decoder and config.decoder.blocks[0].mixer
    if isinstance(heads, Mamba2Config) and heads.inner != expand * config.d_model:
        raise UserError(f"config.json: num_heads · head_dim {heads.inner} is not expand · hidden_size")
    head = keys.architecture(ARCHITECTURES)
    keys.done()
    return config.model_copy(update={"head": head})


def to_hf(config: ModelConfig) -> dict[str, Any]:
    assert config.decoder is not None
    mixer = config.decoder.blocks[0].mixer if config.decoder.blocks else None
    if not isinstance(mixer, Mamba2Config):
        raise UserError("its first mixer is no mamba2")
    if mixer.inner % config.d_model:
        raise UserError(f"its n_heads · d_head {mixer.inner} is not a multiple of d_model {config.d_model}")
    return {
        **told_numbers(config, mixer, ARCHITECTURES),
        "expand": mixer.inner // config.d_model,
        "num_heads": mixer.n_heads,
        "head_dim": mixer.d_head,
        "n_groups": mixer.n_groups,
        "state_size": mixer.d_state,
        "chunk_size": mixer.chunk,
        **({} if mixer.dt_range is None else {"time_step_limit": list(mixer.dt_range)}),
    }


def _number(value: Any) -> float:
    """JSON has no infinity; version 5 writes it as ``{"__float__": "Infinity"}``."""
    return float(value["__float__"] if isinstance(value, Mapping) else value)


def rules(config: ModelConfig) -> Sequence[Rule]:
    """Theirs hold all that is made of the input in one matrix: gate, what the convolution reads, step sizes."""
    ours, theirs = "decoder.layers.*.mixer", "backbone.layers.*.mixer"
    assert config.decoder is not None
    mixer = config.decoder.blocks[0].mixer
    assert isinstance(mixer, Mamba2Config)
    parts = Split((mixer.inner, mixer.inner + 2 * mixer.n_groups * mixer.d_state, mixer.n_heads))
    return [
        *shared_rules(config),
        *(
            Rule(tuple(f"{ours}.{part}.{kind}" for part in ("gate", "into", "step")), f"{theirs}.in_proj.{kind}", parts)
            for kind in ("weight", "bias")
        ),
        Rule(f"{ours}.step_bias", f"{theirs}.dt_bias"),
        Rule(f"{ours}.norm.weight", f"{theirs}.norm.weight"),
    ]


PAPER = "Dao and Gu 2024, Transformers are SSMs (Mamba-2), arXiv:2405.21060"
_SIZES = f"{PAPER}; layers, width and vocabulary of the released checkpoints (README of state-spaces/mamba)"

FAMILY = Family(
    name="mamba2",
    paper=PAPER,
    kind="decoder",
    configure=mamba2,
    presets={
        "mamba2-tiny": Preset(
            dict(d_model=32, n_layers=2, vocab_size=64, d_head=16, d_state=8, n_groups=2), "ours, for tests"
        ),
        "mamba2-130m": Preset(dict(d_model=768, n_layers=24), _SIZES),
        "mamba2-2.7b": Preset(dict(d_model=2560, n_layers=64), _SIZES),
    },
    hf_types=("mamba2",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="backbone.",
)

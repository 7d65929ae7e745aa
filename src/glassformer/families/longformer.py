"""Longformer: an encoder for long texts, whose cost is linear in their length.

Differs from RoBERTa, from whose weights it was trained on, in a window that each layer sees around a token, and in
global tokens that see and are seen by all, by queries, keys and values of their own. Which tokens are global is told
with a text, ``model(ids, mask, global_BT=…)``; where it is not, the first one is for a classifier and for spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from glassformer.config import (
    Activation,
    AnyHeadConfig,
    AttentionConfig,
    ClassifierConfig,
    ModelConfig,
    PoolerConfig,
    Positive,
    SlidingConfig,
    SpanConfig,
)
from glassformer.errors import UserError
from glassformer.families import bert, roberta
from glassformer.families.family import Family, Preset
from glassformer.families.same import refuse_difference
from glassformer.weights import Rule, both

_POOLER = PoolerConfig()


def longformer(
    *,
    d_model: int,
    n_heads: int,
    d_ff: int,
    n_layers: Positive,
    vocab_size: int,
    window: int | tuple[int, ...] = 512,
    dilation: Positive = 1,
    global_tokens: Literal["first", "none"] | None = None,
    max_len: int = 4096,
    first_position: int = 2,
    token_types: int = 1,
    activation: Activation = "gelu",
    eps: float = 1e-5,
    dropout: float = 0.1,
    std: float = 0.02,
    head: AnyHeadConfig | None = _POOLER,
    tie: bool = True,
) -> ModelConfig:
    """Spells out an encoder from the numbers of the paper's section 5.

    Args:
        window: Tokens that each one sees, half of them on each side; one number, or one for each layer.
        dilation: Places from one of them to the next.
        global_tokens: Which are global where a pass does not say; ``None`` is the first one for a head that reads it,
            a classifier or spans, else none.
        first_position: The row of the table of positions that the first token reads.
    """
    windows = (window,) * n_layers if isinstance(window, int) else window
    if len(windows) != n_layers:
        raise UserError(
            f"window has {len(windows)} numbers, but there are {n_layers} layers; give one for each, or one"
        )
    if odd := next((each for each in windows if each < 2 or each % 2), None):
        raise UserError(f"window {odd} cannot be halved: it lies on both sides of a token; give an even number")
    reads_first = isinstance(head, ClassifierConfig | SpanConfig)
    tokens = global_tokens or ("first" if reads_first else "none")
    config = bert.bert(
        d_model=d_model,
        n_heads=n_heads,
        d_ff=d_ff,
        n_layers=n_layers,
        vocab_size=vocab_size,
        max_len=max_len,
        first_position=first_position,
        token_types=token_types,
        activation=activation,
        eps=eps,
        dropout=dropout,
        std=std,
        head=head,
        tie=tie,
    )
    mixers = [
        SlidingConfig(n_heads=n_heads, reach=each // 2, dilation=dilation, global_tokens=tokens) for each in windows
    ]
    return bert.with_mixers(config, mixers)


_base = partial(bert.from_hf, classes=("Longformer",), offset=True)


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """Our configuration of a ``LongformerConfig``."""
    own = dict(data)
    window = own.pop("attention_window", None)
    own.pop("onnx_export", None)
    config = _base({"vocab_size": 30522, **own})
    assert config.encoder is not None
    count = len(config.encoder.blocks)
    windows = [512 if window is None else window] * count if not isinstance(window, list) else window
    if len(windows) != count or any(not isinstance(each, int) or each < 2 or each % 2 for each in windows):
        raise UserError(f"config.json: attention_window {window} is not one even number, or one for each layer")
    tokens: Literal["first", "none"] = "first" if isinstance(config.head, ClassifierConfig | SpanConfig) else "none"
    heads = config.encoder.blocks[0].attention.n_heads
    mixers = [SlidingConfig(n_heads=heads, reach=each // 2, global_tokens=tokens) for each in windows]
    return bert.with_mixers(config, mixers)


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The ``LongformerConfig`` that ``from_hf`` reads as this configuration."""
    mixers = [block.mixer for block in config.encoder.blocks] if config.encoder else []
    sliding = [mixer for mixer in mixers if isinstance(mixer, SlidingConfig)]
    if not sliding or len(sliding) < len(mixers):
        raise UserError("Longformer is an encoder whose every mixer is sliding")
    plain = bert.with_mixers(config, [AttentionConfig(n_heads=each.n_heads) for each in sliding])
    data = bert.hf_config(plain, "longformer", "Longformer", _base)
    data = {**data, "attention_window": [2 * each.reach for each in sliding]}
    refuse_difference(config, from_hf(data), "Longformer")
    return data


def rules(config: ModelConfig) -> list[Rule]:
    """Hugging Face's names."""
    here, there = "encoder.layers.*.mixer", "encoder.layer.*.attention.self"
    own = [
        rule for part in ("query", "key", "value") for rule in both(f"{here}.{part}_global", f"{there}.{part}_global")
    ]
    return [*bert.prefixed("longformer.", [*bert.layer_rules(), *own]), *roberta.head_rules(config, "longformer.")]


PAPER = "Beltagy et al. 2020, arXiv:2004.05150"

FAMILY = Family(
    name="longformer",
    paper=PAPER,
    kind="encoder",
    configure=longformer,
    presets={
        "longformer-tiny": Preset(
            dict(d_model=32, n_heads=4, d_ff=64, n_layers=2, vocab_size=64, max_len=256, window=16), "ours, for tests"
        ),
        "longformer-base": Preset(
            dict(d_model=768, n_heads=12, d_ff=3072, n_layers=12, vocab_size=50265),
            f"{PAPER}, section 5 (149M); vocabulary of longformer-base-4096",
        ),
        "longformer-large": Preset(
            dict(d_model=1024, n_heads=16, d_ff=4096, n_layers=24, vocab_size=50265),
            f"{PAPER}, section 5 (435M); vocabulary of longformer-large-4096",
        ),
    },
    hf_types=("longformer",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="longformer.",
)

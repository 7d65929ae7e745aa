"""The Transformer of "Attention Is All You Need", and the variants of it that people train."""

from __future__ import annotations

from typing import Literal

from glassformer.config import (
    Activation,
    AttentionConfig,
    BlockConfig,
    EmbedConfig,
    HeadConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    MLPConfig,
    ModelConfig,
    Positive,
    SinusoidalConfig,
    StackConfig,
)
from glassformer.families.family import Family, Preset


def transformer(
    *,
    d_model: int,
    n_heads: int,
    d_ff: int,
    encoder_layers: Positive,
    decoder_layers: Positive,
    vocab_size: int,
    target_vocab_size: Positive | None = None,
    dropout: float = 0.1,
    order: Literal["pre", "post"] = "post",
    activation: Activation = "relu",
    bias: bool = True,
    output_bias: bool = False,
    position: Literal["sinusoidal", "learned"] = "sinusoidal",
    layout: Literal["interleaved", "halves"] = "interleaved",
    max_len: int = 1024,
    tie: bool = True,
) -> ModelConfig:
    """Spells out an encoder–decoder from the numbers of the paper's table 3.

    Args:
        target_vocab_size: Gives the decoder an embedding of its own; by default both sides share one.
        order: ``post`` is the paper's; ``pre`` trains without a careful warm-up, and ends each stack with a norm.
        bias: Of the projections and the feed-forward part; the output layer's is ``output_bias``.
    """
    norm = LayerNormConfig()
    places: SinusoidalConfig | LearnedPositionConfig
    if position == "learned":
        places = LearnedPositionConfig(max_len=max_len)
    else:
        places = SinusoidalConfig(max_len=max_len, layout=layout)
    ffn = MLPConfig(d_ff=d_ff, activation=activation, bias=bias)
    attention = AttentionConfig(n_heads=n_heads, bias=bias)
    causal = AttentionConfig(n_heads=n_heads, bias=bias, causal=True)
    reader = BlockConfig(mixer=attention, ffn=ffn, norm=norm, order=order, dropout=dropout)
    writer = BlockConfig(mixer=causal, cross=attention, ffn=ffn, norm=norm, order=order, dropout=dropout)
    final_norm = norm if order == "pre" else None
    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size),
        target_embed=EmbedConfig(vocab_size=target_vocab_size) if target_vocab_size else None,
        encoder=StackConfig(position=places, blocks=(reader,) * encoder_layers, final_norm=final_norm, dropout=dropout),
        decoder=StackConfig(position=places, blocks=(writer,) * decoder_layers, final_norm=final_norm, dropout=dropout),
        head=HeadConfig(bias=output_bias),
        tie=tie,
    )


PAPER = "Vaswani et al. 2017, arXiv:1706.03762"

FAMILY = Family(
    name="transformer",
    paper=PAPER,
    kind="encoder-decoder",
    configure=transformer,
    presets={
        "transformer-teaching": Preset(
            dict(d_model=4, n_heads=1, d_ff=16, encoder_layers=6, decoder_layers=6, vocab_size=32, dropout=0.0),
            "the teaching example: small enough to read every number, as deep as the original",
        ),
        "transformer-tiny": Preset(
            dict(d_model=32, n_heads=4, d_ff=64, encoder_layers=2, decoder_layers=2, vocab_size=64),
            "ours, for tests",
        ),
        "transformer-small": Preset(
            dict(d_model=256, n_heads=4, d_ff=1024, encoder_layers=4, decoder_layers=4, vocab_size=8000),
            "ours, for small corpora on a CPU",
        ),
        "transformer-base": Preset(
            dict(d_model=512, n_heads=8, d_ff=2048, encoder_layers=6, decoder_layers=6, vocab_size=37000),
            f"{PAPER}, table 3, base; vocabulary of WMT 2014 English–German, section 5.1",
        ),
        "transformer-big": Preset(
            dict(
                d_model=1024, n_heads=16, d_ff=4096, encoder_layers=6, decoder_layers=6, vocab_size=37000, dropout=0.3
            ),
            f"{PAPER}, table 3, big",
        ),
    },
)

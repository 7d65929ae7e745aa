"""LSTM encoder–decoder with attention: what the Transformer replaced, to be measured against it.

Differs from the Transformer in that LSTMs stand where self-attention does, and no feed-forward part follows.
"""

from __future__ import annotations

from typing import Literal

from glassformer.config import (
    AttentionConfig,
    BidirectionalConfig,
    BlockConfig,
    EmbedConfig,
    HeadConfig,
    LayerNormConfig,
    LSTMConfig,
    ModelConfig,
    Positive,
    StackConfig,
)
from glassformer.families.family import Family, Preset


def lstm(
    *,
    d_model: Positive,
    encoder_layers: Positive,
    decoder_layers: Positive,
    vocab_size: Positive = 8000,
    d_hidden: Positive | None = None,
    n_heads: Positive = 1,
    order: Literal["pre", "post"] = "pre",
    dropout: float = 0.1,
    tie: bool = True,
) -> ModelConfig:
    """Spells out an encoder that reads both ways, and a decoder that attends to it in every layer.

    Residuals and norms, which the first such models lacked, let several layers learn (Chen et al. 2018).

    Args:
        d_hidden: Width of the LSTMs' memory; ``d_model`` by default.
        n_heads: Heads of the attention to the source; Bahdanau et al. and Luong et al. have one.
    """
    norm, cell = LayerNormConfig(), LSTMConfig(d_hidden=d_hidden)
    final = norm if order == "pre" else None
    reads = BlockConfig(mixer=BidirectionalConfig(mixer=cell), norm=norm, order=order, dropout=dropout)
    cross = AttentionConfig(n_heads=n_heads)
    writes = BlockConfig(mixer=cell, cross=cross, norm=norm, order=order, dropout=dropout)
    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size),
        encoder=StackConfig(blocks=(reads,) * encoder_layers, final_norm=final, dropout=dropout),
        decoder=StackConfig(blocks=(writes,) * decoder_layers, final_norm=final, dropout=dropout),
        head=HeadConfig(),
        tie=tie,
    )


PAPER = "Sutskever et al. 2014 (arXiv:1409.3215); Bahdanau et al. 2015 (arXiv:1409.0473)"
_DEEP = "ours; layers, residuals, norms and heads after Chen et al. 2018 (arXiv:1804.09849), at the Transformer's width"

FAMILY = Family(
    name="lstm",
    paper=PAPER,
    kind="encoder-decoder",
    configure=lstm,
    presets={
        "lstm-tiny": Preset(
            dict(d_model=32, encoder_layers=2, decoder_layers=2, vocab_size=64, dropout=0.0), "ours, for tests"
        ),
        "lstm-seq2seq": Preset(dict(d_model=512, encoder_layers=4, decoder_layers=4, n_heads=4), _DEEP),
    },
)

"""Marian: the original Transformer as the fast C++ toolkit trains it for translation (OPUS-MT's thousand models).

Differs from the original in sinusoids laid out in halves, in swish, and in a bias of the output layer. Its decoder
starts with the padding token, which it never writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassformer.config import (
    Activation,
    AttentionConfig,
    BlockConfig,
    EmbedConfig,
    HeadConfig,
    InitConfig,
    LayerNormConfig,
    MLPConfig,
    ModelConfig,
    Positive,
    SinusoidalConfig,
    StackConfig,
)
from glassformer.families.bart import hf_sizes, output_rules, sizes, stack_rules
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys
from glassformer.families.same import refuse_difference
from glassformer.weights import Rule, Tie, ignore


def marian(
    *,
    d_model: int,
    n_heads: int,
    d_ff: int,
    layers: Positive,
    decoder_layers: Positive | None = None,
    decoder_heads: int | None = None,
    decoder_d_ff: int | None = None,
    vocab_size: int,
    target_vocab_size: Positive | None = None,
    max_len: int = 512,
    activation: Activation = "silu",
    scale: bool = True,
    dropout: float = 0.1,
    std: float = 0.02,
    head: bool = True,
    tie: bool = True,
) -> ModelConfig:
    """Spells out a Marian.

    Args:
        layers: Of the encoder, and of the decoder unless ``decoder_layers`` says otherwise; likewise for the others.
        target_vocab_size: Gives the decoder an embedding of its own; by default both sides share one.
        scale: Multiply embeddings by √d_model.
        std: Deviation of fresh weights.
        head: ``False`` leaves the output layer out.
    """
    norm, ffn = LayerNormConfig(), MLPConfig(d_ff=d_ff, activation=activation)
    attention = AttentionConfig(n_heads=decoder_heads or n_heads)
    reader = BlockConfig(mixer=AttentionConfig(n_heads=n_heads), ffn=ffn, norm=norm, order="post", dropout=dropout)
    writer = BlockConfig(
        mixer=attention.model_copy(update={"causal": True}),
        cross=attention,
        ffn=MLPConfig(d_ff=decoder_d_ff or d_ff, activation=activation),
        norm=norm,
        order="post",
        dropout=dropout,
    )
    around: dict[str, Any] = dict(position=SinusoidalConfig(max_len=max_len, layout="halves"), dropout=dropout)
    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size, scale=scale),
        target_embed=EmbedConfig(vocab_size=target_vocab_size, scale=scale) if target_vocab_size else None,
        encoder=StackConfig(blocks=(reader,) * layers, **around),
        decoder=StackConfig(blocks=(writer,) * (decoder_layers or layers), **around),
        head=HeadConfig(bias=True) if head else None,
        tie=tie,
        init=InitConfig(type="normal", std=std),
    )


_ARCHITECTURES = {"MarianMTModel": True, "MarianModel": False}
"""Whether there is an output layer."""


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """Our configuration of a ``MarianConfig``."""
    keys = Keys(data)
    for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits"):
        keys.only(key, False)
    keys.only("static_position_embeddings", True)
    for name in ("id2label", "label2id", "num_labels", "classif_dropout", "classifier_dropout"):
        keys.take(name, default=None)
    vocab_size = keys.take("vocab_size", default=58101)
    target_vocab_size = keys.take("decoder_vocab_size", default=vocab_size)
    shared = keys.take("share_encoder_decoder_embeddings", default=True)
    if shared:
        keys.only("decoder_vocab_size", vocab_size)
    config = marian(
        max_len=keys.take("max_position_embeddings", default=1024),
        vocab_size=vocab_size,
        target_vocab_size=None if shared else target_vocab_size,
        scale=keys.take("scale_embedding", default=False),
        head=keys.architecture(_ARCHITECTURES),
        tie=keys.take("tie_word_embeddings", default=True),
        **sizes(keys),
    )
    keys.done()
    return config


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The ``MarianConfig`` that ``from_hf`` reads as this configuration."""
    vocab_size = config.embed.vocab_size if isinstance(config.embed, EmbedConfig) else 0
    data = {
        "architectures": ["MarianModel" if config.head is None else "MarianMTModel"],
        "model_type": "marian",
        "vocab_size": vocab_size,
        "decoder_vocab_size": config.target_vocab_size,
        "share_encoder_decoder_embeddings": config.target_embed is None,
        **hf_sizes(config, "Marian"),
    }
    refuse_difference(config, from_hf(data), "Marian")
    return data


def rules(config: ModelConfig) -> list[Rule]:
    """Hugging Face's names; the sinusoids that some files hold are computed anew."""
    stacks = ("encoder", "decoder")
    embeds = [f"model.{stack}.embed_tokens.weight" for stack in stacks]
    if config.target_embed is None:
        table = [Rule("embed.weight", "model.shared.weight"), *(Rule("embed.weight", name, Tie()) for name in embeds)]
    else:
        table = [Rule("embed.weight", embeds[0]), Rule("target_embed.weight", embeds[1])]
    if config.head is not None:
        table += output_rules(config, "embed" if config.target_embed is None else "target_embed")
    return [*table, *stack_rules(), ignore(*(f"model.{stack}.embed_positions.weight" for stack in stacks))]


PAPER = "Junczys-Dowmunt et al. 2018, arXiv:1804.00344"

FAMILY = Family(
    name="marian",
    paper=PAPER,
    kind="encoder-decoder",
    configure=marian,
    presets={
        "marian-tiny": Preset(
            dict(d_model=32, n_heads=4, d_ff=64, layers=2, vocab_size=64, max_len=64), "ours, for tests"
        ),
        "marian-base": Preset(
            dict(d_model=512, n_heads=8, d_ff=2048, layers=6, vocab_size=58101),
            f"{PAPER}; Tiedemann and Thottingal 2020, OPUS-MT, transformer-align; vocabulary of opus-mt-en-de",
        ),
    },
    hf_types=("marian",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="model.",
)

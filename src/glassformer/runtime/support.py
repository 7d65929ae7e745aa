"""What the native engine can run of what a configuration can say."""

from __future__ import annotations

from typing import Any

from glassformer.config import (
    AttentionConfig,
    BlockConfig,
    Config,
    EmbedConfig,
    GatedMLPConfig,
    HeadConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    MLPConfig,
    ModelConfig,
    RMSNormConfig,
    StackConfig,
)
from glassformer.runtime.library import EngineUnavailable

ACTIVATIONS = {"relu": 1, "gelu": 2, "gelu-tanh": 3, "silu": 4}
"""The numbers of native/abi.h."""

KNOWN: dict[type[Config], set[str]] = {
    ModelConfig: {"d_model", "embed", "target_embed", "encoder", "decoder", "head", "tie", "init"},
    EmbedConfig: {"vocab_size", "scale", "token_types"},
    HeadConfig: {"bias"},
    StackConfig: {"position", "input_norm", "blocks", "final_norm", "dropout"},
    LearnedPositionConfig: {"max_len", "first"},
    BlockConfig: {"mixer", "cross", "ffn", "norm", "order", "parallel", "dropout"},
    AttentionConfig: {
        *("n_heads", "n_kv_heads", "d_head", "causal", "window", "bias", "out_bias", "scale", "rotary"),
    },
    MLPConfig: {"d_ff", "activation", "bias"},
    GatedMLPConfig: {"d_ff", "activation", "bias"},
    LayerNormConfig: {"eps", "bias"},
    RMSNormConfig: {"eps"},
}
"""What of each part the native engine computes; every other setting must stand at its default."""


def check_known(part: Any, known: type[Config]) -> None:
    if type(part) is not known:
        raise EngineUnavailable(f"it does not know {type(part).__name__.removesuffix('Config')}")
    for name, field in known.model_fields.items():
        if name not in KNOWN[known] and getattr(part, name) != field.default:
            raise EngineUnavailable(f"it does not know {known.__name__.removesuffix('Config')}.{name}")


def known_throughout(config: ModelConfig) -> None:
    """Refuses, by name, whatever the native engine does not compute.

    Raises:
        EngineUnavailable: The configuration holds such a part or setting.
    """
    check_known(config, ModelConfig)
    for embed in (config.embed, config.target_embed):
        if embed is not None:
            check_known(embed, EmbedConfig)
    if config.decoder is not None:
        check_known(config.head, HeadConfig)
    for name, stack in config.stacks:
        check_known(stack, StackConfig)
        if len({block.mixer.rotary for block in stack.blocks}) != 1:
            raise EngineUnavailable("it does not know a stack whose blocks turn differently, or one without blocks")
        if isinstance(config.embed, EmbedConfig) and config.embed.token_types and name == "encoder":
            check_known(stack.position, LearnedPositionConfig)
        for block in stack.blocks:
            check_known(block, BlockConfig)
            check_known(block.mixer, AttentionConfig)
            for attention in (block.attention, block.cross):
                if attention is not None:
                    check_known(attention, AttentionConfig)
                    whole = attention.causal or not (attention.rotary or attention.window or attention.n_kv_heads)
                    if not whole:
                        raise EngineUnavailable(
                            "it knows rotary positions, windows and grouped heads in a decoder only"
                        )
            if block.ffn is not None:
                check_known(block.ffn, type(block.ffn) if isinstance(block.ffn, GatedMLPConfig) else MLPConfig)
            if block.mlp is not None and block.mlp.activation not in ACTIVATIONS:
                raise EngineUnavailable(f"it does not know the activation {block.mlp.activation}")

"""ViT: an encoder that reads an image as a row of patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassformer.config import (
    Activation,
    AnyHeadConfig,
    AttentionConfig,
    BlockConfig,
    ClassifierConfig,
    InitConfig,
    LayerNormConfig,
    MLPConfig,
    ModelConfig,
    PatchEmbedConfig,
    PoolerConfig,
    Positive,
    StackConfig,
)
from glassformer.errors import UserError
from glassformer.families.bert import prefixed
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys, hf_activation, hf_labels
from glassformer.families.same import refuse_difference
from glassformer.weights import Rule, Squeeze, both

_IMAGENET = 1000


def vit(
    *,
    d_model: int,
    n_heads: int,
    d_ff: int,
    n_layers: Positive,
    image_size: Positive | tuple[Positive, Positive] = 224,
    patch_size: Positive | tuple[Positive, Positive] = 16,
    channels: Positive = 3,
    class_token: bool = True,
    mean: tuple[float, ...] | None = None,
    deviation: tuple[float, ...] | None = None,
    activation: Activation = "gelu",
    bias: bool = True,
    eps: float = 1e-6,
    dropout: float = 0.0,
    std: float = 0.02,
    labels: Positive | tuple[str, ...] = _IMAGENET,
    head: AnyHeadConfig | None | str = "classifier",
) -> ModelConfig:
    """Spells out an image classifier from the numbers of the paper's table 1.

    Args:
        image_size: Height and width that positions are stored for, or the side of a square; likewise ``patch_size``.
        class_token: Read the class from a token of its own; ``False`` reads it from the mean of all patches.
        mean: Of the pixels of each channel in 0 … 1, with their ``deviation``, for reading image files.
        bias: Of queries, keys and values.
        labels: Their names, or how many there are.
        head: ``"classifier"`` is that of ``labels``; or any head, or none for hidden states.
    """
    norm = LayerNormConfig(eps=eps)
    block = BlockConfig(
        mixer=AttentionConfig(n_heads=n_heads, bias=bias, out_bias=True),
        ffn=MLPConfig(d_ff=d_ff, activation=activation),
        norm=norm,
        order="pre",
        dropout=dropout,
    )
    names = tuple(f"LABEL_{index}" for index in range(labels)) if isinstance(labels, int) else labels
    if head == "classifier":
        head = ClassifierConfig(labels=names, pool="first" if class_token else "mean")
    return ModelConfig.model_validate(
        dict(
            d_model=d_model,
            embed=PatchEmbedConfig(
                image_size=_pair(image_size),
                patch_size=_pair(patch_size),
                channels=channels,
                class_token=class_token,
                mean=mean,
                deviation=deviation,
            ),
            encoder=StackConfig(blocks=(block,) * n_layers, final_norm=norm, dropout=dropout),
            head=head,
            init=InitConfig(type="normal", std=std),
        )
    )


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


_HEADS = {"ViTForImageClassification": "classifier", "ViTModel": "pooler"}


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """Our configuration of a ``ViTConfig``."""
    keys = Keys(data)
    keys.only("is_encoder_decoder", False)
    keys.take("attention_probs_dropout_prob", default=0.0)
    d_model, kind, labels = keys.take("hidden_size", default=768), keys.architecture(_HEADS), keys.labels()
    keys.take("problem_type", "pooler_act", "pooler_output_size", default=None)
    head: Any = "classifier"
    if kind == "pooler":
        keys.only("pooler_act", "tanh")
        keys.only("pooler_output_size", d_model)
        head = PoolerConfig() if keys.take("add_pooling_layer", default=True) else None
    else:
        keys.only("problem_type", "single_label_classification")
    config = vit(
        d_model=d_model,
        n_heads=keys.take("num_attention_heads", default=12),
        d_ff=keys.take("intermediate_size", default=3072),
        n_layers=keys.take("num_hidden_layers", default=12),
        image_size=keys.take("image_size", default=224),
        patch_size=keys.take("patch_size", default=16),
        channels=keys.take("num_channels", default=3),
        mean=keys.take("image_mean", default=None),
        deviation=keys.take("image_std", default=None),
        activation=keys.activation("hidden_act"),
        bias=keys.take("qkv_bias", default=True),
        eps=keys.take("layer_norm_eps", default=1e-12),
        dropout=keys.take("hidden_dropout_prob", default=0.0),
        std=keys.take("initializer_range", default=0.02),
        labels=labels,
        head=head,
    )
    keys.done()
    return config


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The ``ViTConfig`` that ``from_hf`` reads as this configuration."""
    stack, embed, head = config.encoder, config.embed, config.head
    if stack is None or not stack.blocks or not isinstance(embed, PatchEmbedConfig):
        raise UserError("ViT is an encoder of patches")
    if not isinstance(head, ClassifierConfig | PoolerConfig | None):
        raise UserError(f"ViT has no architecture for the head {head.type!r}")
    block = stack.blocks[0]
    data = {
        "architectures": ["ViTForImageClassification" if isinstance(head, ClassifierConfig) else "ViTModel"],
        "model_type": "vit",
        "hidden_size": config.d_model,
        "num_attention_heads": block.attention.n_heads,
        "num_hidden_layers": len(stack.blocks),
        "intermediate_size": block.mlp.d_ff if block.mlp else 0,
        "hidden_act": hf_activation(block.mlp.activation) if block.mlp else "gelu",
        "image_size": _side(embed.image_size),
        "patch_size": _side(embed.patch_size),
        "num_channels": embed.channels,
        **({"image_mean": list(embed.mean)} if embed.mean else {}),
        **({"image_std": list(embed.deviation)} if embed.deviation else {}),
        "qkv_bias": block.attention.bias,
        "layer_norm_eps": block.norm.eps,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": config.init.std,
        **(hf_labels(head.labels) if isinstance(head, ClassifierConfig) else {}),
        **({"add_pooling_layer": False} if head is None else {}),
    }
    refuse_difference(config, from_hf(data), "ViT")
    return data


def _side(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def rules(config: ModelConfig) -> list[Rule]:
    """Hugging Face's names."""
    layer = "encoder.layer.*"
    table = [
        Rule("embed.class_token", "embeddings.cls_token", Squeeze(2)),
        Rule("embed.position", "embeddings.position_embeddings", Squeeze()),
        *both("embed.patch", "embeddings.patch_embeddings.projection"),
        *both("encoder.layers.*.mixer_residual.norm", f"{layer}.layernorm_before"),
        *both("encoder.layers.*.mixer.query", f"{layer}.attention.attention.query"),
        *both("encoder.layers.*.mixer.key", f"{layer}.attention.attention.key"),
        *both("encoder.layers.*.mixer.value", f"{layer}.attention.attention.value"),
        *both("encoder.layers.*.mixer.out", f"{layer}.attention.output.dense"),
        *both("encoder.layers.*.ffn_residual.norm", f"{layer}.layernorm_after"),
        *both("encoder.layers.*.ffn.up", f"{layer}.intermediate.dense"),
        *both("encoder.layers.*.ffn.down", f"{layer}.output.dense"),
        *both("encoder.final_norm", "layernorm"),
        *(both("head.dense", "pooler.dense") if isinstance(config.head, PoolerConfig) else []),
    ]
    output = both("head.output", "classifier") if isinstance(config.head, ClassifierConfig) else []
    return [*prefixed("vit.", table), *output]


PAPER = "Dosovitskiy et al. 2021, arXiv:2010.11929"

FAMILY = Family(
    name="vit",
    paper=PAPER,
    kind="encoder",
    configure=vit,
    presets={
        "vit-tiny": Preset(
            dict(
                d_model=64,
                n_heads=4,
                d_ff=128,
                n_layers=2,
                image_size=28,
                patch_size=7,
                channels=1,
                labels=10,
                eps=1e-6,
            ),
            "ours, for tests and for digits of 28 × 28",
        ),
        "vit-b16": Preset(
            dict(d_model=768, n_heads=12, d_ff=3072, n_layers=12),
            f"{PAPER}, table 1, ViT-Base, patches of 16 × 16 (86M); 1,000 classes of ImageNet",
        ),
        "vit-l16": Preset(
            dict(d_model=1024, n_heads=16, d_ff=4096, n_layers=24),
            f"{PAPER}, table 1, ViT-Large, patches of 16 × 16 (307M); 1,000 classes of ImageNet",
        ),
    },
    hf_types=("vit",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="vit.",
)

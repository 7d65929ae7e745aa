"""BigBird: an encoder for long texts, whose blocks see their neighbours, the first, the last and a few random ones.

Differs from BERT in that attention, in an activation that approximates GELU, and in a classifier with a layer of its
own. Texts of up to ``5 + 2 · random`` blocks (704 tokens in the base model) are read whole, as by BERT.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from glassformer.config import (
    Activation,
    AnyHeadConfig,
    AttentionConfig,
    BlocksConfig,
    ClassifierConfig,
    MaskedLMHeadConfig,
    ModelConfig,
    PoolerConfig,
    Positive,
    TokenClassifierConfig,
)
from glassformer.errors import UserError
from glassformer.families import bert
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys
from glassformer.families.same import refuse_difference
from glassformer.weights import Rule, both, ignore

_POOLER = PoolerConfig()


def bigbird(
    *,
    d_model: int,
    n_heads: int,
    d_ff: int,
    n_layers: Positive,
    vocab_size: int = 50358,
    block: Positive = 64,
    random: int = 3,
    drawn: Literal["always", "training"] = "training",
    max_len: int = 4096,
    token_types: int = 2,
    activation: Activation = "gelu-tanh",
    eps: float = 1e-12,
    dropout: float = 0.1,
    std: float = 0.02,
    scale: bool = False,
    bias: bool = True,
    head: AnyHeadConfig | None = _POOLER,
    tie: bool = True,
) -> ModelConfig:
    """Spells out an encoder from the numbers of the paper's appendix E.

    Args:
        block: Tokens of a block.
        random: Random blocks that each one sees, others in every layer.
        drawn: ``always`` as in the paper; by default only in training, as `transformers` evaluates the same weights.
        scale: Multiply embeddings by √d_model.
        bias: Of queries, keys and values.
    """
    config = bert.bert(
        d_model=d_model,
        n_heads=n_heads,
        d_ff=d_ff,
        n_layers=n_layers,
        vocab_size=vocab_size,
        max_len=max_len,
        token_types=token_types,
        activation=activation,
        eps=eps,
        dropout=dropout,
        std=std,
        head=head,
        tie=tie,
    )
    shared = dict(n_heads=n_heads, block=block, random=random, drawn=drawn, plan_len=max_len, bias=bias, out_bias=True)
    mixers = [BlocksConfig.from_dict({**shared, "seed": seed}) for seed in range(n_layers)]
    return _scaled(bert.with_mixers(config, mixers), scale)


def _scaled(config: ModelConfig, scale: bool) -> ModelConfig:
    return config.model_copy(update={"embed": config.embed.model_copy(update={"scale": scale})})


def _bent(config: ModelConfig, hidden: Any) -> ModelConfig:
    """The same with this activation in a classifier's layer."""
    if not isinstance(config.head, ClassifierConfig):
        return config
    return config.model_copy(update={"head": config.head.model_copy(update={"hidden": hidden})})


_OWN = ("attention_type", "use_bias", "rescale_embeddings", "block_size", "num_random_blocks")
_base = partial(bert.from_hf, classes=("BigBird",))


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """Our configuration of a ``BigBirdConfig``."""
    if "BigBirdForQuestionAnswering" in (data.get("architectures") or ()):
        raise UserError("config.json: BigBirdForQuestionAnswering has a feed-forward head that cannot be represented")
    defaults = dict(vocab_size=50358, max_position_embeddings=4096, hidden_act="gelu_new")
    config = _base({**defaults, **{key: value for key, value in data.items() if key not in _OWN}})
    keys = Keys(data)
    kind, bias = keys.take("attention_type", default="block_sparse"), keys.take("use_bias", default=True)
    if kind not in ("block_sparse", "original_full"):
        raise UserError(f"config.json: attention_type {kind!r} cannot be represented, only block_sparse, original_full")
    assert config.encoder is not None
    count, heads = len(config.encoder.blocks), config.encoder.blocks[0].attention.n_heads
    shared = dict(n_heads=heads, bias=bias, out_bias=True)
    more = dict(
        block=keys.take("block_size", default=64),
        random=keys.take("num_random_blocks", default=3),
        plan_len=keys.take("max_position_embeddings", default=4096),
        drawn="training",
    )
    mixers = [
        AttentionConfig.from_dict(shared)
        if kind == "original_full"
        else BlocksConfig.from_dict({**shared, **more, "seed": seed}, "config.json")
        for seed in range(count)
    ]
    mlp = config.encoder.blocks[0].mlp
    config = _bent(bert.with_mixers(config, mixers), mlp.activation if mlp else None)
    return _scaled(config, keys.take("rescale_embeddings", default=False))


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The ``BigBirdConfig`` that ``from_hf`` reads as this configuration."""
    mixers = [block.mixer for block in config.encoder.blocks] if config.encoder else []
    first = mixers[0] if mixers else None
    if not isinstance(first, BlocksConfig | AttentionConfig):
        raise UserError("BigBird is an encoder whose every mixer is blocks, or attention")
    plain = _bent(
        _scaled(bert.with_mixers(config, [AttentionConfig(n_heads=first.n_heads)] * len(mixers)), False), "tanh"
    )
    data = bert.hf_config(plain, "big_bird", "BigBird", _base)
    if isinstance(first, BlocksConfig):
        data |= {"block_size": first.block, "num_random_blocks": first.random}
    data |= {
        "attention_type": "block_sparse" if isinstance(first, BlocksConfig) else "original_full",
        "use_bias": first.bias,
        "rescale_embeddings": getattr(config.embed, "scale", False),
    }
    refuse_difference(config, from_hf(data), "BigBird")
    return data


def rules(config: ModelConfig) -> list[Rule]:
    """Hugging Face's names."""
    table = [rule for rule in bert.layer_rules() if _has(config, rule)]
    return [*bert.prefixed("bert.", table), *_head_rules(config)]


def _has(config: ModelConfig, rule: Rule) -> bool:
    """Whether a rule is about a tensor that a model with these biases has."""
    biased = all(getattr(block.mixer, "bias", True) for block in config.encoder.blocks) if config.encoder else True
    parts = ("query", "key", "value")
    return biased or not any(str(rule.ours).endswith(f"mixer.{part}.bias") for part in parts)


def _head_rules(config: ModelConfig) -> list[Rule]:
    unread = ignore("bert.pooler.weight", "bert.pooler.bias")
    match config.head:
        case PoolerConfig():
            return both("head.dense", "bert.pooler")
        case MaskedLMHeadConfig():
            return [
                *both("head.dense", "cls.predictions.transform.dense"),
                *both("head.norm", "cls.predictions.transform.LayerNorm"),
                *bert.output_rules(config, "cls.predictions.bias", "cls.predictions.decoder"),
                unread,
                ignore("cls.seq_relationship.weight", "cls.seq_relationship.bias"),
            ]
        case ClassifierConfig():
            return [*both("head.dense", "classifier.dense"), *both("head.output", "classifier.out_proj"), unread]
        case TokenClassifierConfig():
            return [*both("head.output", "classifier"), unread]
    return [unread]


PAPER = "Zaheer et al. 2020, arXiv:2007.14062"

FAMILY = Family(
    name="bigbird",
    paper=PAPER,
    kind="encoder",
    configure=bigbird,
    presets={
        "bigbird-tiny": Preset(
            dict(d_model=32, n_heads=4, d_ff=64, n_layers=2, vocab_size=64, max_len=256, block=4, random=1),
            "ours, for tests",
        ),
        "bigbird-base": Preset(
            dict(d_model=768, n_heads=12, d_ff=3072, n_layers=12),
            f"{PAPER}, appendix E.1, table 8; vocabulary of bigbird-roberta-base",
        ),
        "bigbird-large": Preset(
            dict(d_model=1024, n_heads=16, d_ff=4096, n_layers=24),
            f"{PAPER}, appendix E; sizes and vocabulary of bigbird-roberta-large",
        ),
    },
    hf_types=("big_bird",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="bert.",
)

"""BERT: an encoder that fills in masked words, and is fine-tuned to label texts, words and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.config import (
    Activation,
    AnyHeadConfig,
    AttentionConfig,
    BlockConfig,
    ClassifierConfig,
    EmbedConfig,
    InitConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    MaskedLMHeadConfig,
    MixerConfig,
    MLPConfig,
    ModelConfig,
    PoolerConfig,
    Positive,
    SpanConfig,
    StackConfig,
    TokenClassifierConfig,
)
from glassformer.errors import UserError
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys, hf_activation, hf_labels
from glassformer.families.same import refuse_difference
from glassformer.weights import Rule, Tie, both, ignore

_POOLER = PoolerConfig()


def bert(
    *,
    d_model: int,
    n_heads: int,
    d_ff: int,
    n_layers: Positive,
    vocab_size: int,
    max_len: int = 512,
    first_position: int = 0,
    token_types: int = 2,
    activation: Activation = "gelu",
    eps: float = 1e-12,
    dropout: float = 0.1,
    std: float = 0.02,
    head: AnyHeadConfig | None = _POOLER,
    tie: bool = True,
) -> ModelConfig:
    """Spells out an encoder from the numbers of the paper's section 3.

    Args:
        first_position: The row of the table of positions that the first token reads.
        token_types: Segments that a second embedding tells apart; 0 leaves it out.
        std: Of fresh weights.
        head: Such as ``{"type": "masked-lm"}``; by default the hidden states are given, with the pooler beside them.
    """
    norm = LayerNormConfig(eps=eps)
    block = BlockConfig(
        mixer=AttentionConfig(n_heads=n_heads),
        ffn=MLPConfig(d_ff=d_ff, activation=activation),
        norm=norm,
        dropout=dropout,
    )
    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size, scale=False, token_types=token_types),
        encoder=StackConfig(
            position=LearnedPositionConfig(max_len=max_len, first=first_position),
            input_norm=norm,
            blocks=(block,) * n_layers,
            dropout=dropout,
        ),
        head=head,
        tie=tie,
        init=InitConfig(type="normal", std=std),
    )


def with_mixers(config: ModelConfig, mixers: Sequence[MixerConfig]) -> ModelConfig:
    """The same encoder with other mixers, one for each block."""
    assert config.encoder is not None
    pairs = zip(config.encoder.blocks, mixers, strict=True)
    blocks = tuple(block.model_copy(update={"mixer": mixer}) for block, mixer in pairs)
    encoder = config.encoder.model_copy(update={"blocks": blocks})
    return ModelConfig.model_validate({**dict(config), "encoder": encoder})


HEADS = {
    "Model": "pooler",
    "ForMaskedLM": "masked-lm",
    "ForPreTraining": "masked-lm",
    "ForSequenceClassification": "classifier",
    "ForTokenClassification": "token-classifier",
    "ForQuestionAnswering": "span",
}
"""How the names of their architectures end → our heads. Of a model in pre-training, the next sentence is left out."""


def from_hf(data: Mapping[str, Any], classes: tuple[str, ...] = ("Bert",), offset: bool = False) -> ModelConfig:
    """Our configuration of a ``BertConfig``.

    Args:
        classes: What the names of architectures begin with.
        offset: Positions are counted on from the id of padding, and the masked-LM head's activation is GELU (RoBERTa).
    """
    keys = Keys(data)
    keys.only("position_embedding_type", "absolute")
    for key in ("is_decoder", "add_cross_attention", "is_encoder_decoder"):
        keys.only(key, False)
    keys.take("attention_probs_dropout_prob", default=0.0)
    first = int(keys.take("pad_token_id", default=1)) + 1 if offset else 0
    eps, dropout = keys.take("layer_norm_eps", default=1e-12), keys.take("hidden_dropout_prob", default=0.1)
    activation = keys.activation("hidden_act")
    head = hf_head(
        keys,
        keys.architecture({name + end: kind for end, kind in HEADS.items() for name in classes}),
        activation="gelu" if offset else activation,
        eps=eps,
        dropout=keys.take("classifier_dropout", default=dropout),
    )
    tied = keys.take("tie_word_embeddings", default=True)
    config = bert(
        d_model=keys.take("hidden_size", default=768),
        n_heads=keys.take("num_attention_heads", default=12),
        d_ff=keys.take("intermediate_size", default=3072),
        n_layers=keys.take("num_hidden_layers", default=12),
        vocab_size=keys.take("vocab_size", default=50265 if offset else 30522),
        max_len=keys.take("max_position_embeddings", default=512) - first,
        first_position=first,
        token_types=keys.take("type_vocab_size", default=2),
        activation=activation,
        eps=eps,
        dropout=dropout,
        std=keys.take("initializer_range", default=0.02),
        head=head,
        tie=tied or not isinstance(head, MaskedLMHeadConfig),
    )
    keys.done()
    return config


def hf_head(keys: Keys, kind: str, *, activation: Activation, eps: float, dropout: float) -> AnyHeadConfig | None:
    """The head that an architecture has.

    Args:
        keys: Where labels are taken from.
        kind: Its ``type``.
        activation: Of a masked LM; a classifier's is tanh.
        eps: Of a masked LM's norm.
        dropout: Of a classifier.
    """
    labels = keys.labels()
    match kind:
        case "masked-lm":
            return MaskedLMHeadConfig(activation=activation, norm=LayerNormConfig(eps=eps))
        case "classifier":
            keys.only("problem_type", "single_label_classification")
            return ClassifierConfig(labels=labels, hidden="tanh", dropout=dropout)
        case "token-classifier":
            return TokenClassifierConfig(labels=labels, dropout=dropout)
        case "span":
            return SpanConfig()
    # Our own key, which transformers keep and do not read: a model that was never given a pooler.
    return PoolerConfig() if keys.take("add_pooling_layer", default=True) else None


def hf_architecture(head: AnyHeadConfig | None) -> dict[str, Any]:
    """The keys that say which head a model has, to be completed with the name of the family's class."""
    kind = "pooler" if head is None else head.type
    if kind not in HEADS.values():
        raise UserError(f"Hugging Face has no architecture for the head {kind!r}")
    labels = hf_labels(head.labels) if isinstance(head, ClassifierConfig | TokenClassifierConfig) else {}
    pooling = {"add_pooling_layer": False} if head is None else {}
    return {"architectures": [next(name for name, each in HEADS.items() if each == kind)], **labels, **pooling}


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The ``BertConfig`` that ``from_hf`` reads as this configuration."""
    return hf_config(config, "bert", "Bert", from_hf)


def hf_config(config: ModelConfig, model_type: str, name: str, from_hf: Any) -> dict[str, Any]:
    """The keys that BERT and RoBERTa share."""
    stack, embed = config.encoder, config.embed
    if stack is None or not stack.blocks or not isinstance(embed, EmbedConfig):
        raise UserError(f"{name} is an encoder of tokens")
    if not embed.token_types:
        raise UserError(f"{name} adds the embedding of a segment to every token; give token_types 1 or more")
    block, position = stack.blocks[0], stack.position
    first = position.first if isinstance(position, LearnedPositionConfig) else 0
    head = config.head
    named = hf_architecture(head)
    data = {
        **named,
        "architectures": [name + end for end in named["architectures"]],
        "model_type": model_type,
        "hidden_size": config.d_model,
        "num_attention_heads": block.attention.n_heads,
        "num_hidden_layers": len(stack.blocks),
        "intermediate_size": block.mlp.d_ff if block.mlp else 0,
        "hidden_act": hf_activation(block.mlp.activation) if block.mlp else "gelu",
        "vocab_size": embed.vocab_size,
        "type_vocab_size": embed.token_types,
        "max_position_embeddings": (position.max_len if position else 0) + first,
        **({"pad_token_id": first - 1} if first else {}),
        "layer_norm_eps": block.norm.eps,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": getattr(head, "dropout", None),
        "initializer_range": config.init.std,
        "tie_word_embeddings": config.tie,
    }
    refuse_difference(config, from_hf(data), name)
    return data


def layer_rules() -> list[Rule]:
    """The tables and layers that BERT and RoBERTa share, without the prefix."""
    layer = "encoder.layer.*"
    return [
        Rule("embed.weight", "embeddings.word_embeddings.weight"),
        Rule("embed.token_types", "embeddings.token_type_embeddings.weight"),
        Rule("encoder.position.weight", "embeddings.position_embeddings.weight"),
        *both("encoder.input_norm", "embeddings.LayerNorm"),
        *both("encoder.layers.*.mixer.query", f"{layer}.attention.self.query"),
        *both("encoder.layers.*.mixer.key", f"{layer}.attention.self.key"),
        *both("encoder.layers.*.mixer.value", f"{layer}.attention.self.value"),
        *both("encoder.layers.*.mixer.out", f"{layer}.attention.output.dense"),
        *both("encoder.layers.*.mixer_residual.norm", f"{layer}.attention.output.LayerNorm"),
        *both("encoder.layers.*.ffn.up", f"{layer}.intermediate.dense"),
        *both("encoder.layers.*.ffn.down", f"{layer}.output.dense"),
        *both("encoder.layers.*.ffn_residual.norm", f"{layer}.output.LayerNorm"),
        ignore("embeddings.position_ids", "embeddings.token_type_ids"),
    ]


def output_rules(config: ModelConfig, bias: str, decoder: str) -> list[Rule]:
    """A masked LM's matrix and bias, which they may store twice: tied, the decoder's are copies."""
    if config.tie:
        copies = [Rule("embed.weight", f"{decoder}.weight", Tie()), Rule("head.output.bias", f"{decoder}.bias", Tie())]
        return [Rule("head.output.bias", bias), *copies]
    return [*both("head.output", decoder), ignore(bias)]


def prefixed(prefix: str, table: list[Rule]) -> list[Rule]:
    """The same rules, of a model inside another one."""

    def named(theirs: str | tuple[str, ...]) -> str | tuple[str, ...]:
        return prefix + theirs if isinstance(theirs, str) else tuple(prefix + name for name in theirs)

    return [Rule(rule.ours, named(rule.theirs), rule.op) for rule in table]


def rules(config: ModelConfig) -> list[Rule]:
    """Hugging Face's names."""
    return [*prefixed("bert.", layer_rules()), *_head_rules(config)]


def _head_rules(config: ModelConfig) -> list[Rule]:
    match config.head:
        case MaskedLMHeadConfig():
            return [
                *both("head.dense", "cls.predictions.transform.dense"),
                *both("head.norm", "cls.predictions.transform.LayerNorm"),
                *output_rules(config, "cls.predictions.bias", "cls.predictions.decoder"),
                ignore("bert.pooler.dense.weight", "bert.pooler.dense.bias"),
                ignore("cls.seq_relationship.weight", "cls.seq_relationship.bias"),
            ]
        case ClassifierConfig():
            return [*both("head.dense", "bert.pooler.dense"), *both("head.output", "classifier")]
    return head_rules(config, "bert.")


def head_rules(config: ModelConfig, prefix: str) -> list[Rule]:
    """The heads that bear the same names in BERT and its kin; those that read every token read no pooler."""
    pooler = f"{prefix}pooler.dense"
    unread = ignore(f"{pooler}.weight", f"{pooler}.bias")
    match config.head:
        case PoolerConfig():
            return both("head.dense", pooler)
        case TokenClassifierConfig():
            return [*both("head.output", "classifier"), unread]
        case SpanConfig():
            return [*both("head.output", "qa_outputs"), unread]
    return []


PAPER = "Devlin et al. 2019, arXiv:1810.04805"

FAMILY = Family(
    name="bert",
    paper=PAPER,
    kind="encoder",
    configure=bert,
    presets={
        "bert-tiny": Preset(
            dict(d_model=128, n_heads=2, d_ff=512, n_layers=2, vocab_size=30522),
            "Turc et al. 2019, arXiv:1908.08962, BERT-Tiny (4.4M)",
        ),
        "bert-base": Preset(
            dict(d_model=768, n_heads=12, d_ff=3072, n_layers=12, vocab_size=30522),
            f"{PAPER}, section 3, BERT-Base (110M); vocabulary of bert-base-uncased",
        ),
        "bert-large": Preset(
            dict(d_model=1024, n_heads=16, d_ff=4096, n_layers=24, vocab_size=30522),
            f"{PAPER}, section 3, BERT-Large (340M); vocabulary of bert-large-uncased",
        ),
    },
    hf_types=("bert",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="bert.",
)

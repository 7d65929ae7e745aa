"""DistilBERT: BERT with half its layers, taught by the whole one.

Differs from BERT in having no segments and no pooler, and in a classifier whose layer ends with ReLU.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from glassformer.config import (
    ClassifierConfig,
    EmbedConfig,
    MaskedLMHeadConfig,
    ModelConfig,
    SpanConfig,
    TokenClassifierConfig,
)
from glassformer.errors import UserError
from glassformer.families import bert
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys, hf_activation, hf_labels
from glassformer.families.same import refuse_difference
from glassformer.weights import Rule, both, ignore

distilbert = partial(bert.bert, token_types=0, head=None)

_HEADS = {
    "DistilBertModel": None,
    "DistilBertForMaskedLM": "masked-lm",
    "DistilBertForSequenceClassification": "classifier",
    "DistilBertForTokenClassification": "token-classifier",
    "DistilBertForQuestionAnswering": "span",
}


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """Our configuration of a ``DistilBertConfig``."""
    keys = Keys(data)
    keys.only("is_encoder_decoder", False)
    # Their sinusoids are stored as a table, like learned positions.
    for name in ("attention_dropout", "qa_dropout", "sinusoidal_pos_embds", "tie_weights_"):
        keys.take(name, default=None)
    labels, kind = keys.labels(), keys.architecture(_HEADS)
    dropout, activation = keys.take("dropout", default=0.1), keys.activation("activation")
    label_dropout = keys.take("seq_classif_dropout", default=0.2)
    head: Any = None
    if kind == "masked-lm":
        head = MaskedLMHeadConfig(activation=activation)
    elif kind == "classifier":
        keys.only("problem_type", "single_label_classification")
        head = ClassifierConfig(labels=labels, hidden="relu", dropout=label_dropout)
    elif kind == "token-classifier":
        head = TokenClassifierConfig(labels=labels, dropout=dropout)
    elif kind == "span":
        head = SpanConfig()
    tied = keys.take("tie_word_embeddings", default=True)
    config = distilbert(
        d_model=keys.take("dim", "hidden_size", default=768),
        n_heads=keys.take("n_heads", "num_attention_heads", default=12),
        d_ff=keys.take("hidden_dim", default=3072),
        n_layers=keys.take("n_layers", "num_hidden_layers", default=6),
        vocab_size=keys.take("vocab_size", default=30522),
        max_len=keys.take("max_position_embeddings", default=512),
        activation=activation,
        dropout=dropout,
        std=keys.take("initializer_range", default=0.02),
        head=head,
        tie=tied or kind != "masked-lm",
    )
    keys.done()
    return config


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The ``DistilBertConfig`` that ``from_hf`` reads as this configuration."""
    stack, embed, head = config.encoder, config.embed, config.head
    if stack is None or not stack.blocks or not isinstance(embed, EmbedConfig):
        raise UserError("DistilBERT is an encoder of tokens")
    block, kind = stack.blocks[0], None if head is None else head.type
    if kind not in _HEADS.values():
        raise UserError(f"DistilBERT has no architecture for the head {kind!r}")
    data = {
        "architectures": [name for name, each in _HEADS.items() if each == kind],
        "model_type": "distilbert",
        "dim": config.d_model,
        "n_heads": block.attention.n_heads,
        "n_layers": len(stack.blocks),
        "hidden_dim": block.mlp.d_ff if block.mlp else 0,
        "activation": hf_activation(block.mlp.activation) if block.mlp else "gelu",
        "vocab_size": embed.vocab_size,
        "max_position_embeddings": stack.max_len or 0,
        "sinusoidal_pos_embds": False,
        "dropout": stack.dropout,
        "attention_dropout": 0.0,
        "seq_classif_dropout": getattr(head, "dropout", 0.0),
        "initializer_range": config.init.std,
        "tie_word_embeddings": config.tie,
        **(hf_labels(head.labels) if isinstance(head, ClassifierConfig | TokenClassifierConfig) else {}),
    }
    refuse_difference(config, from_hf(data), "DistilBERT")
    return data


def rules(config: ModelConfig) -> list[Rule]:
    """Hugging Face's names."""
    layer = "transformer.layer.*"
    table = [
        Rule("embed.weight", "embeddings.word_embeddings.weight"),
        Rule("encoder.position.weight", "embeddings.position_embeddings.weight"),
        *both("encoder.input_norm", "embeddings.LayerNorm"),
        *both("encoder.layers.*.mixer.query", f"{layer}.attention.q_lin"),
        *both("encoder.layers.*.mixer.key", f"{layer}.attention.k_lin"),
        *both("encoder.layers.*.mixer.value", f"{layer}.attention.v_lin"),
        *both("encoder.layers.*.mixer.out", f"{layer}.attention.out_lin"),
        *both("encoder.layers.*.mixer_residual.norm", f"{layer}.sa_layer_norm"),
        *both("encoder.layers.*.ffn.up", f"{layer}.ffn.lin1"),
        *both("encoder.layers.*.ffn.down", f"{layer}.ffn.lin2"),
        *both("encoder.layers.*.ffn_residual.norm", f"{layer}.output_layer_norm"),
        ignore("embeddings.position_ids"),
    ]
    return [*bert.prefixed("distilbert.", table), *_head_rules(config)]


def _head_rules(config: ModelConfig) -> list[Rule]:
    match config.head:
        case MaskedLMHeadConfig():
            output = both("head.output", "vocab_projector")
            if config.tie:
                output = bert.output_rules(config, "vocab_projector.bias", "vocab_projector")
            return [*both("head.dense", "vocab_transform"), *both("head.norm", "vocab_layer_norm"), *output]
        case ClassifierConfig():
            return [*both("head.dense", "pre_classifier"), *both("head.output", "classifier")]
    return bert.head_rules(config, "distilbert.")


PAPER = "Sanh et al. 2019, arXiv:1910.01108"

FAMILY = Family(
    name="distilbert",
    paper=PAPER,
    kind="encoder",
    configure=distilbert,
    presets={
        "distilbert-tiny": Preset(
            dict(d_model=32, n_heads=4, d_ff=64, n_layers=2, vocab_size=64, max_len=64), "ours, for tests"
        ),
        "distilbert-base": Preset(
            dict(d_model=768, n_heads=12, d_ff=3072, n_layers=6, vocab_size=30522),
            f"{PAPER}, table 3 (66M); vocabulary of distilbert-base-uncased",
        ),
    },
    hf_types=("distilbert",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="distilbert.",
)

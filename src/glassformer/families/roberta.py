"""RoBERTa: BERT trained longer, without the next sentence; and its kin in other languages.

Differs from BERT in positions that are counted on from the id of padding, in one segment, in a masked-LM head whose
activation is always GELU, and in a classifier with a layer of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from glassformer.config import ClassifierConfig, MaskedLMHeadConfig, ModelConfig
from glassformer.families import bert
from glassformer.families.family import Family, Preset
from glassformer.weights import Rule, both, ignore

# Of xlm-roberta and camembert the weights bear the same names.
from_hf = partial(bert.from_hf, classes=("Roberta", "XLMRoberta", "Camembert"), offset=True)


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The ``RobertaConfig`` that ``from_hf`` reads as this configuration."""
    return bert.hf_config(config, "roberta", "Roberta", from_hf)


def rules(config: ModelConfig) -> list[Rule]:
    """Hugging Face's names."""
    return [*bert.prefixed("roberta.", bert.layer_rules()), *head_rules(config, "roberta.")]


def head_rules(config: ModelConfig, prefix: str) -> list[Rule]:
    """The heads that bear the same names in RoBERTa and its kin."""
    pooler = f"{prefix}pooler.dense"
    unread = ignore(f"{pooler}.weight", f"{pooler}.bias")
    match config.head:
        case MaskedLMHeadConfig():
            return [
                *both("head.dense", "lm_head.dense"),
                *both("head.norm", "lm_head.layer_norm"),
                *bert.output_rules(config, "lm_head.bias", "lm_head.decoder"),
                unread,
            ]
        case ClassifierConfig():
            return [*both("head.dense", "classifier.dense"), *both("head.output", "classifier.out_proj"), unread]
    return bert.head_rules(config, prefix)


PAPER = "Liu et al. 2019, arXiv:1907.11692"
_SHARED: Mapping[str, Any] = dict(first_position=2, token_types=1, eps=1e-5)

FAMILY = Family(
    name="roberta",
    paper=PAPER,
    kind="encoder",
    configure=bert.bert,
    presets={
        "roberta-tiny": Preset(
            dict(d_model=32, n_heads=4, d_ff=64, n_layers=2, vocab_size=64, max_len=64, **_SHARED), "ours, for tests"
        ),
        "roberta-base": Preset(
            dict(d_model=768, n_heads=12, d_ff=3072, n_layers=12, vocab_size=50265, **_SHARED),
            f"{PAPER}, section 3.1 (125M); vocabulary of roberta-base",
        ),
        "roberta-large": Preset(
            dict(d_model=1024, n_heads=16, d_ff=4096, n_layers=24, vocab_size=50265, **_SHARED),
            f"{PAPER}, section 5 (355M); vocabulary of roberta-large",
        ),
        "xlm-roberta-base": Preset(
            dict(d_model=768, n_heads=12, d_ff=3072, n_layers=12, vocab_size=250002, **_SHARED),
            "Conneau et al. 2020, arXiv:1911.02116, table 6 (270M)",
        ),
    },
    hf_types=("roberta", "xlm-roberta", "camembert"),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="roberta.",
)

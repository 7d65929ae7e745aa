"""What is made of the last hidden states."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import (
    ClassifierConfig,
    HeadConfig,
    MaskedLMHeadConfig,
    ModelConfig,
    PoolConfig,
    PoolerConfig,
    SpanConfig,
    TokenClassifierConfig,
)
from glassformer.nn.dropout import Dropout
from glassformer.nn.embed import OutputHead
from glassformer.nn.ffn import ACTIVATIONS
from glassformer.nn.norm import build_norm
from glassformer.nn.tap import Tap


def pool(x_BTD: Tensor, mask_BT: Tensor | None, kind: str) -> Tensor:
    """One vector a row, shape (B, D): that of the first or the last real token, or the mean of all real ones."""
    if mask_BT is None:
        return x_BTD.mean(1) if kind == "mean" else x_BTD[:, 0 if kind == "first" else -1]
    if kind == "mean":
        count_B1 = mask_BT.sum(1, keepdim=True).clamp(min=1)
        return (x_BTD * mask_BT[..., None]).sum(1) / count_B1
    place_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    # argmax finds the first of equal values, so that padding on the left is passed over.
    place_B = (mask_BT.long() if kind == "first" else mask_BT * (place_T + 1)).argmax(1)
    return x_BTD[torch.arange(x_BTD.shape[0], device=x_BTD.device), place_B]


class MaskedLMHead(nn.Module):
    """``norm(activation(x W + b))``, then one logit for each id (Devlin et al. 2019, section 3.1)."""

    def __init__(self, config: MaskedLMHeadConfig, d_model: int, vocab_size: int, tied: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = build_norm(config.norm, d_model)
        self.output = OutputHead(HeadConfig(bias=config.bias), d_model, vocab_size, tied)

    def forward(self, x_D: Tensor, embedding: nn.Module, mask_BT: Tensor | None = None) -> Tensor:
        return self.output(self.norm(self.activation(self.dense(x_D))), embedding)


class Classifier(nn.Module):
    """One logit for each label of the whole sequence."""

    def __init__(self, config: ClassifierConfig, d_model: int) -> None:
        super().__init__()
        self.pool, self.hidden = config.pool, config.hidden
        self.dense = nn.Linear(d_model, d_model) if config.hidden else None
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(d_model, len(config.labels), bias=config.bias)
        self.pooled, self.logits = Tap("B D"), Tap("B L")

    def forward(self, x_BTD: Tensor, embedding: nn.Module, mask_BT: Tensor | None = None) -> Tensor:
        x_BD = pool(x_BTD, mask_BT, self.pool)
        if self.dense is not None and self.hidden is not None:
            x_BD = ACTIVATIONS[self.hidden](self.dense(x_BD))
        return self.logits(self.output(self.dropout(self.pooled(x_BD))))


class TokenHead(nn.Module):
    """A few logits at each position: one a label, or one for the start and one for the end of a span."""

    def __init__(self, d_model: int, n_labels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(d_model, n_labels)
        self.logits = Tap("B T L")

    def forward(self, x_BTD: Tensor, embedding: nn.Module, mask_BT: Tensor | None = None) -> Tensor:
        return self.logits(self.output(self.dropout(x_BTD)))


class Pool(nn.Module):
    """One vector a sentence, perhaps of length 1."""

    def __init__(self, config: PoolConfig) -> None:
        super().__init__()
        self.config = config
        self.vector = Tap("B D")

    def forward(self, x_BTD: Tensor, embedding: nn.Module, mask_BT: Tensor | None = None) -> Tensor:
        x_BD = pool(x_BTD, mask_BT, self.config.pool)
        return self.vector(F.normalize(x_BD, dim=-1) if self.config.normalise else x_BD)


class Pooler(nn.Module):
    """Passes hidden states on; ``pooled`` sees a layer and tanh over the first real token's."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)
        self.pooled = Tap("B D")

    def forward(self, x_BTD: Tensor, embedding: nn.Module, mask_BT: Tensor | None = None) -> Tensor:
        self.pooled(self.dense(pool(x_BTD, mask_BT, "first")).tanh())
        return x_BTD


def build_head(config: ModelConfig) -> nn.Module | None:
    """The head that the configuration is of; each is called with hidden states, the embedding and the mask."""
    head, d_model = config.head, config.d_model
    match head:
        case None:
            return None
        case HeadConfig():
            return OutputHead(head, d_model, config.target_vocab_size, config.tie)
        case MaskedLMHeadConfig():
            return MaskedLMHead(head, d_model, config.target_vocab_size, config.tie)
        case ClassifierConfig():
            return Classifier(head, d_model)
        case TokenClassifierConfig():
            return TokenHead(d_model, len(head.labels), head.dropout)
        case SpanConfig():
            return TokenHead(d_model, 2)
        case PoolConfig():
            return Pool(head)
        case PoolerConfig():
            return Pooler(d_model)

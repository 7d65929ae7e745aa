"""Cross-entropy, of positions and of labels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from glassformer.data.collate import IGNORE, Batch, Labelled
from glassformer.models.model import Model
from glassformer.trace.recorder import record

ROWS = 256
"""Positions whose logits are worked on at a time: few enough to stay in a CPU's cache."""


class SmoothedCrossEntropy(torch.autograd.Function):
    """Label-smoothed cross-entropy, summed (Szegedy et al. 2016, section 7), with padding no part of the smoothing.

    ``(1 − ε) · −log p(y) + ε/(V − 1) · Σ_{v ≠ pad} −log p(v)``, or over all V classes where none is
    padding. The gradient ``p − (1 − ε) onehot(y) − ε/(V − 1) [v ≠ pad]`` is formed with the loss, while the logits are
    at hand, so that no second tensor of their size is kept.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, labels_N: Tensor, smoothing: float, pad_id: int | None
    ) -> tuple[Tensor, Tensor]:
        spread = smoothing / (logits_NV.shape[1] - (pad_id is not None))
        gradient_NV = torch.empty_like(logits_NV)
        loss = logits_NV.new_zeros((), dtype=torch.float32)
        nll = logits_NV.new_zeros((), dtype=torch.float32)
        for start in range(0, len(logits_NV), ROWS):
            chunk = slice(start, start + ROWS)
            logits = logits_NV[chunk].float()
            label = labels_N[chunk, None]
            log_z = logits.logsumexp(-1, keepdim=True)
            target_nll = (log_z - logits.gather(1, label)).sum()
            nll += target_nll
            loss += (1.0 - smoothing) * target_nll
            if smoothing:
                everything = log_z.sum() * logits.shape[1] - logits.sum()
                if pad_id is not None:
                    everything -= (log_z[:, 0] - logits[:, pad_id]).sum()
                loss += spread * everything
            probability = (logits - log_z).exp_()
            probability -= spread
            if pad_id is not None:
                probability[:, pad_id] += spread
            probability.scatter_add_(1, label, torch.full_like(log_z, smoothing - 1.0))
            gradient_NV[chunk] = probability
        ctx.save_for_backward(gradient_NV)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient_NV,) = ctx.saved_tensors
        return gradient_NV * loss_gradient, None, None, None


def token_loss(model: Any, batch: Batch | Labelled, *, smoothing: float, pad_id: int | None) -> tuple[Tensor, Tensor]:
    """Every real position predicts its label.

    Logits are computed for positions with a label only, so neither padding nor what is not asked for costs anything
    here or can enter the loss.

    Returns:
        The smoothed loss that is minimised, and the plain negative log-likelihood; summed over real labels, in nats.
    """
    hidden_BTD = model.hidden(*batch.inputs)
    hidden_ND, labels_N = hidden_BTD.flatten(0, 1), batch.labels.flatten()
    if batch.n_labels < len(labels_N):
        real = labels_N != IGNORE
        hidden_ND, labels_N = hidden_ND[real], labels_N[real]
    loss, nll = SmoothedCrossEntropy.apply(model.logits(hidden_ND), labels_N, smoothing, pad_id)
    return loss, nll


def label_loss(model: Model, batch: Labelled, *, smoothing: float) -> tuple[Tensor, Tensor]:
    """Every row predicts its one label; returns as `token_loss`."""
    loss, nll = SmoothedCrossEntropy.apply(model(*batch.inputs), batch.labels, smoothing, None)
    return loss, nll


@torch.no_grad()
def first_not_finite(
    model: Model, batches: Sequence[Batch | Labelled], autocast: AbstractContextManager[object]
) -> str | None:
    """The first parameter, or else the first named internal of a forward pass, that is NaN or infinite."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return name
    for batch in batches:
        with autocast, record(model) as trace:
            model(*batch.inputs)
        for name, value in trace.items():
            if value.isnan().any() or value.isposinf().any():  # a masked score is −∞ by design
                return name
    return None

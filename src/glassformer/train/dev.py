"""Scores on the dev set while training."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager

import torch

from glassformer.errors import UserError
from glassformer.models.model import Model
from glassformer.train.distributed import World
from glassformer.train.objectives import Objective

log = logging.getLogger(__name__)


class DevSet:
    """A dev set, shared out over the processes of a run.

    The loss leaves examples out that are longer than in training, with a warning.

    Raises:
        UserError: When no example is short enough.
    """

    def __init__(self, objective: Objective, world: World) -> None:
        self._objective, self._world = objective, world
        planned = objective.plan(objective.dev, seed=0, epoch=0)
        self._batches, total = planned.batches, len(objective.dev)
        if planned.dropped:
            log.warning(
                "data.dev: the loss leaves out %d of %d examples longer than %d tokens a side",
                planned.dropped,
                total,
                objective.max_len,
            )
        if not self._batches:
            config = objective.config
            raise UserError(
                f"data.dev: no example fits data.max_len {objective.max_len} "
                f"and train.batch_tokens {config.train.batch_tokens}"
            )

    @torch.no_grad()
    def loss(self, model: Model, autocast: AbstractContextManager[object]) -> float:
        """Mean negative log-likelihood of a label, in nats, without label smoothing."""
        device = next(model.parameters()).device
        total = torch.zeros(2, dtype=torch.float64)
        for index in range(self._world.rank, len(self._batches), self._world.size):
            batch = self._objective.batch(self._objective.dev, self._batches[index]).to(device)
            with autocast:
                _, nll = self._objective.loss(model, batch, smoothing=0.0)
            total += torch.tensor([float(nll), batch.n_labels])
        self._world.sum_(total)
        return float(total[0] / total[1])

    @torch.no_grad()
    def scores(self, model: Model, loss: float, autocast: AbstractContextManager[object]) -> dict[str, float]:
        """The objective's own figures, such as ``{"bleu zh-en": …}`` for each direction."""
        return self._objective.scores(model, loss, self._world, autocast)

"""What a run learns from and minimises, one module a kind of data; the loop knows only `Objective`."""

from __future__ import annotations

from glassformer.store import Loaded
from glassformer.train.config import (
    ClassificationObjective,
    ExtractiveQAObjective,
    Seq2SeqObjective,
    TokenClassificationObjective,
    TrainConfig,
)
from glassformer.train.objectives.loss import ROWS, SmoothedCrossEntropy, first_not_finite, token_loss
from glassformer.train.objectives.objective import Objective

__all__ = ["ROWS", "Objective", "SmoothedCrossEntropy", "build_objective", "first_not_finite", "token_loss"]


def build_objective(config: TrainConfig, resumed: Loaded | None) -> Objective:
    """The objective of a run, with its data read and its model built.

    Args:
        resumed: The model of a checkpoint to go on from.

    Raises:
        UserError: On a mistake in the data, or a model that the objective does not fit.
    """
    from glassformer.train.objectives.documents import DocumentObjective
    from glassformer.train.objectives.images import ImageObjective
    from glassformer.train.objectives.labels import LabelObjective, TagObjective
    from glassformer.train.objectives.pairs import PairObjective
    from glassformer.train.objectives.spans import SpanObjective

    match config.objective:
        case Seq2SeqObjective():
            return PairObjective(config, resumed)
        case ClassificationObjective() if config.reads_images:
            return ImageObjective(config, resumed)
        case ClassificationObjective():
            return LabelObjective(config, resumed)
        case TokenClassificationObjective():
            return TagObjective(config, resumed)
        case ExtractiveQAObjective():
            return SpanObjective(config, resumed)
        case _:
            return DocumentObjective(config, resumed)

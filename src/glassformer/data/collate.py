"""Token ids to padded tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.config import ModelConfig, SlidingConfig

IGNORE = -100
"""The label that the loss leaves out."""


@dataclass(frozen=True)
class Batch:
    """One step's tensors for teacher forcing: from `target_BT[:, :t + 1]`, predict `labels_BT[:, t]`.

    Attributes:
        source_BS: source ids, int64, padded on the right.
        source_mask_BS: True at a real token; None when nothing is padded, so that attention can go unmasked.
        target_BT: `<s>` and the target, int64, padded on the right.
        labels_BT: the target and `</s>`, int64, then `IGNORE`.
        n_labels: labels that count, over the batch.
    """

    source_BS: Tensor
    source_mask_BS: Tensor | None
    target_BT: Tensor
    labels_BT: Tensor
    n_labels: int

    @property
    def inputs(self) -> tuple[Tensor | None, ...]:
        """What a model is called with."""
        return self.source_BS, self.target_BT, self.source_mask_BS

    @property
    def labels(self) -> Tensor:
        """`labels_BT`, by the name that every kind of batch has."""
        return self.labels_BT

    def to(self, device: torch.device) -> "Batch":
        """This batch on another device."""
        mask = None if self.source_mask_BS is None else self.source_mask_BS.to(device)
        return Batch(
            self.source_BS.to(device), mask, self.target_BT.to(device), self.labels_BT.to(device), self.n_labels
        )


@dataclass(frozen=True)
class Labelled:
    """One step's tensors for a model of one stack.

    Attributes:
        inputs: what the model is called with: ids (B, T) in int64 and their mask, or pixels (B, C, H, W).
        labels: int64; (B, T), one for each position or `IGNORE`, or (B,), one for each row.
        n_labels: labels that count, over the batch.
    """

    inputs: tuple[Tensor | None, ...]
    labels: Tensor
    n_labels: int

    def to(self, device: torch.device) -> "Labelled":
        """This batch on another device."""
        inputs = tuple(None if each is None else each.to(device) for each in self.inputs)
        return Labelled(inputs, self.labels.to(device), self.n_labels)


def pad(rows: Sequence[Sequence[int]], value: int) -> tuple[Tensor, Tensor | None]:
    """Pad rows on the right to the longest.

    Args:
        rows: B rows of ids.
        value: what stands in the padding.

    Returns:
        The ids (B, longest) in int64, and a boolean mask of that shape, True at what came from a row, or None when
        nothing is padded.
    """
    lengths = [len(row) for row in rows]
    width = max(lengths, default=0)
    padded = [[*row, *[value] * (width - len(row))] for row in rows]
    ids_BS = torch.tensor(padded, dtype=torch.long).view(len(rows), width)
    if all(length == width for length in lengths):
        return ids_BS, None
    return ids_BS, torch.arange(width) < torch.tensor(lengths)[:, None]


def collate(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], *, pad_id: int, bos_id: int, eos_id: int
) -> Batch:
    """Make a batch, with the target shifted right by one.

    Args:
        sources: B rows of ids, special tokens included.
        targets: B rows of ids, without `<s>` and `</s>`.
        pad_id: the id in the padding of source and target.
        bos_id: the id of `<s>`, which the decoder is fed first.
        eos_id: the id of `</s>`, which it must predict last.

    Raises:
        ValueError: the numbers of sources and targets differ.
    """
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources but {len(targets)} targets")
    source_BS, source_mask_BS = pad(sources, pad_id)
    target_BT, _ = pad([[bos_id, *row] for row in targets], pad_id)
    labels_BT, _ = pad([[*row, eos_id] for row in targets], IGNORE)
    return Batch(source_BS, source_mask_BS, target_BT, labels_BT, sum(len(row) + 1 for row in targets))


def with_questions(
    config: ModelConfig, segments: tuple[Tensor, ...], ids_BT: Tensor, asked: Sequence[int]
) -> tuple[Tensor | None, ...]:
    """What a model is told of rows besides ids and mask: segments, and where it has global tokens, which ones ask.

    A question sees the whole passage, and is seen by it (Beltagy et al. 2020, section 6).

    Args:
        config: The model's.
        segments: Those of the ids, or nothing.
        ids_BT: Questions and passages in one row.
        asked: How many ids there are in each row up to the question's last.
    """
    blocks = config.encoder.blocks if config.encoder else ()
    if not any(isinstance(block.mixer, SlidingConfig) for block in blocks):
        return segments
    global_BT = torch.arange(ids_BT.shape[1]) < torch.tensor(asked)[:, None]
    return (*(segments or (None,)), global_BT)

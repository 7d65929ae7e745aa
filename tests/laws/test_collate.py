"""Laws of padding and of teacher forcing's shift by one."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.collate import IGNORE, collate, pad

PAD, BOS, EOS = 0, 1, 2

# Ids from 0, so that a real token may equal the padding's: masks must come from lengths.
rows = st.lists(st.lists(st.integers(0, 9), max_size=7), max_size=6)


@given(rows, st.sampled_from([PAD, IGNORE]))
def test_padding_stands_right_of_each_row_and_nowhere_else(rows: list[list[int]], value: int) -> None:
    ids, mask = pad(rows, value)
    width = max(map(len, rows), default=0)
    assert ids.dtype == torch.int64 and ids.shape == (len(rows), width)
    for row, got in zip(rows, ids.tolist(), strict=True):
        assert got[: len(row)] == row
        assert got[len(row) :] == [value] * (width - len(row))
    if mask is None:
        assert all(len(row) == width for row in rows)
    else:
        assert mask.dtype == torch.bool and mask.shape == ids.shape
        assert any(len(row) < width for row in rows), "a mask where nothing is padded costs the fast path"
        assert mask.tolist() == [[position < len(row) for position in range(width)] for row in rows]


@given(st.data())
def test_teacher_forcing_shifts_the_target_by_one(data: st.DataObject) -> None:
    targets = data.draw(rows)
    sources = data.draw(st.lists(st.lists(st.integers(0, 9)), min_size=len(targets), max_size=len(targets)))
    batch = collate(sources, targets, pad_id=PAD, bos_id=BOS, eos_id=EOS)
    assert batch.target_BT.shape == batch.labels_BT.shape
    counted = 0
    for row, fed, labels in zip(targets, batch.target_BT.tolist(), batch.labels_BT.tolist(), strict=True):
        real = len(row) + 1
        counted += real
        assert fed[:real] == [BOS, *row] and labels[:real] == [*row, EOS]
        assert fed[1:real] == labels[: real - 1], "what is fed at t + 1 is what was to be predicted at t"
        assert set(fed[real:]) <= {PAD} and set(labels[real:]) <= {IGNORE}
    assert batch.n_labels == counted == int((batch.labels_BT != IGNORE).sum())
    source, mask = pad(sources, PAD)
    assert torch.equal(batch.source_BS, source)
    assert (batch.source_mask_BS is None) == (mask is None)
    assert mask is None or torch.equal(batch.source_mask_BS, mask)


def test_a_rank_without_rows_gets_an_empty_batch() -> None:
    batch = collate([], [], pad_id=PAD, bos_id=BOS, eos_id=EOS)
    assert batch.n_labels == 0 and batch.labels_BT.numel() == 0 and batch.source_mask_BS is None


def test_sources_and_targets_must_pair_up() -> None:
    with pytest.raises(ValueError, match="2 sources but 1 targets"):
        collate([[5], [6]], [[7]], pad_id=PAD, bos_id=BOS, eos_id=EOS)


def test_the_worked_example_of_shifting_right(shared: Path) -> None:
    example = json.loads((shared / "goldens/worked_examples.json").read_text("utf-8"))["shift_right"]
    fed, labels = example["decoder_input"].split(), example["labels"].split()
    words = sorted({*example["source"].split(), *fed, *labels})
    ids = {word: number for number, word in enumerate(["<pad>", *words])}
    target = [ids[word] for word in labels if word != "<eos>"]
    batch = collate(
        [[ids[word] for word in example["source"].split()]] * 2,
        [target, target[:2]],
        pad_id=ids["<pad>"],
        bos_id=ids["<bos>"],
        eos_id=ids["<eos>"],
    )
    back = {number: word for word, number in ids.items()}
    assert [back[number] for number in batch.target_BT[0].tolist()] == fed
    assert [back[number] for number in batch.labels_BT[0].tolist()] == labels
    assert batch.labels_BT[1].tolist() == [*target[:2], ids["<eos>"], *[IGNORE] * (len(labels) - 3)]

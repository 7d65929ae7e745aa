"""Rules of weights: what goes in comes out again, and nothing is missing or left over in silence."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.errors import UserError
from glassformer.weights import (
    Concat,
    Op,
    Permute,
    Rule,
    Split,
    Squeeze,
    Tie,
    Transpose,
    export_weights,
    ignore,
    import_weights,
)

RULES = [
    Rule("embed.weight", "wte"),
    Rule("layers.*.up.weight", "h.*.fc", Transpose()),
    Rule(
        tuple(f"layers.*.{part}.weight" for part in "qkv"),
        "h.*.attn",
        (Permute((2, 3, 2), (1, 0, 2)), Split((1, 1, 1))),
    ),
    Rule("layers.*.gate.weight", ("h.*.gate.a", "h.*.gate.b"), Concat((2, 1))),
    Rule("token", "cls", Squeeze(2)),
    Rule("embed.weight", "lm_head", Tie()),
    ignore("h.*.mask", "step"),
]


def ours(layers: int = 2) -> dict[str, torch.Tensor]:
    made = {"embed.weight": torch.randn(5, 4), "token": torch.randn(4)}
    for i in range(layers):
        made |= {f"layers.{i}.{part}.weight": torch.randn(4, 4) for part in "qkv"}
        made |= {f"layers.{i}.up.weight": torch.randn(6, 4), f"layers.{i}.gate.weight": torch.randn(9, 4)}
    return made


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("layers", [1, 2, 11])
def test_what_is_exported_is_imported_bit_for_bit(layers: int) -> None:
    weights = ours(layers)
    theirs = export_weights(RULES, weights)
    assert set(theirs) == {"wte", "cls"} | {
        f"h.{i}.{name}" for i in range(layers) for name in ("fc", "attn", "gate.a", "gate.b")
    }
    assert all(tensor.is_contiguous() for tensor in theirs.values())
    assert same(import_weights(RULES, theirs, weights), weights)
    assert same(export_weights(RULES, import_weights(RULES, theirs, weights)), theirs)


def test_each_operation_is_what_it_says() -> None:
    weights = ours()
    theirs = export_weights(RULES, weights)
    assert torch.equal(theirs["h.1.fc"], weights["layers.1.up.weight"].T)
    assert theirs["cls"].shape == (1, 1, 4)
    assert torch.equal(theirs["h.0.gate.a"], weights["layers.0.gate.weight"][:6])
    # Two heads of two rows each, whose query, key and value stand together.
    for head in range(2):
        for number, part in enumerate("qkv"):
            rows = theirs["h.0.attn"][head * 6 + number * 2 : head * 6 + number * 2 + 2]
            assert torch.equal(rows, weights[f"layers.0.{part}.weight"][head * 2 : head * 2 + 2])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_permutation_is_undone(shape: list[int], data: st.DataObject) -> None:
    op = Permute(tuple(shape), tuple(data.draw(st.permutations(range(len(shape))))))
    tensor = torch.randn(math.prod(shape), 3)
    (there,) = op.ours([tensor])
    assert torch.equal(op.theirs([there])[0], tensor) and torch.equal(op.ours(op.theirs([tensor]))[0], tensor)
    assert sorted(there[:, 0].tolist()) == sorted(tensor[:, 0].tolist())


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 3), st.integers(0, 1))
def test_split_and_concat_are_inverse(sizes: list[int], unit: int, dim: int) -> None:
    whole = torch.randn(*(unit * sum(sizes) if axis == dim else 2 for axis in range(2)))
    split, concat = Split(tuple(sizes), dim), Concat(tuple(sizes), dim)
    parts = split.ours([whole])
    assert [part.shape[dim] for part in parts] == [unit * size for size in sizes]
    assert torch.equal(split.theirs(parts)[0], whole) and torch.equal(concat.ours(parts)[0], whole)
    assert all(torch.equal(a, b) for a, b in zip(concat.theirs([whole]), parts, strict=True))


def test_ties_and_what_is_ignored_may_be_there_or_not() -> None:
    weights = ours()
    theirs = export_weights(RULES, weights)
    more = {**theirs, "lm_head": theirs["wte"].clone(), "h.0.mask": torch.ones(2), "step": torch.ones(1)}
    assert same(import_weights(RULES, more, weights), weights)
    with pytest.raises(UserError, match="lm_head differs from what the configuration ties it to"):
        import_weights(RULES, {**theirs, "lm_head": theirs["wte"] + 1}, weights)


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in export_weights(RULES, ours()).items() if key != name}


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (without("h.1.attn"), "1 missing (h.1.attn); 0 left over"),
        (without("h.0.gate.b"), "1 missing (h.0.gate.b); 0 left over"),
        ({**without(""), "h.2.fc": torch.ones(1)}, "0 missing; 1 left over (h.2.fc)"),
        (
            {**without("wte"), "wtf": torch.ones(1), "h.x.mask": torch.ones(1)},
            "1 missing (wte); 2 left over (wtf, h.x.m",
        ),
        (
            {**without("wte"), "wte": torch.ones(5, 3)},
            "embed.weight has shape [5, 3], but the configuration says [5, 4]",
        ),
        ({**without("h.0.attn"), "h.0.attn": torch.ones(13, 4)}, "13 rows cannot be seen as 2 × 3 × 2 of them"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(theirs: dict[str, torch.Tensor], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)) as caught:
        import_weights(RULES, theirs, ours())
    assert "\n" not in str(caught.value)


def test_what_the_table_does_not_know_is_named() -> None:
    weights = {**ours(), "extra": torch.ones(1)}
    with pytest.raises(UserError, match="no place for extra"):
        export_weights(RULES, weights)
    with pytest.raises(UserError, match="no rule makes extra"):
        import_weights(RULES, export_weights(RULES, ours()), weights)
    with pytest.raises(UserError, match="cannot be split 1 : 1"):
        Split((1, 1)).ours([torch.ones(3)])


def test_each_tensor_is_read_once_and_not_copied() -> None:
    class Lazy(dict):  # type: ignore[type-arg]
        def __getitem__(self, name: str) -> torch.Tensor:
            reads.append(name)
            return super().__getitem__(name)

    reads: list[str] = []
    theirs = Lazy(export_weights(RULES, ours()))
    made = import_weights(RULES, theirs, ours())
    assert sorted(reads) == sorted(theirs)
    assert made["layers.0.up.weight"].data_ptr() == dict.__getitem__(theirs, "h.0.fc").data_ptr()
    assert Op().ours(()) == ()

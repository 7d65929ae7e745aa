"""How fast does this machine multiply matrices? The limit that the other figures are a share of.

``large`` is the machine's own limit, 4096 × 4096 × 4096. ``small`` and ``base`` do every product with a weight of one
training step of that size (``benchmarks.shapes.products``), each in the layout that suits it, with nothing between
them: what a training step cannot beat at these shapes. ``packed`` lays the right-hand matrix out beforehand for
oneDNN, which no training can, since its weights change with every step; it bounds what any library could reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import Call, Options, Question, System
from benchmarks.shapes import SHAPES, Product, products


def of(setting: str) -> list[Product]:
    """The products of a setting."""
    return [Product(4096, 4096, 4096)] if setting == "large" else products(SHAPES[setting])


def multiply(setting: str, *, dtype: torch.dtype, packed: bool) -> Call:
    """All products of a setting, one after the other."""
    pairs = []
    for product in of(setting):
        left_MK = torch.randn(product.m, product.k).to(dtype)
        right_NK = torch.randn(product.n, product.k).to(dtype)
        right = _pack(right_NK, product.m) if packed else right_NK
        pairs.append((left_MK, right, product.count))
    linear = _packed_linear if packed else functional.linear

    @torch.inference_mode()
    def call() -> None:
        for left, right, count in pairs:
            for _ in range(count):
                linear(left, right)

    return call


# Private in torch: PyTorch's own compiler calls them, and no public function reaches oneDNN's packed layout.
def _pack(weight_NK: Tensor, rows: int) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_NK, rows)
    return packed


def _packed_linear(left_MK: Tensor, packed: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left_MK, packed, None, "none", [], "")
    return product


def _systems(setting: str, options: Options) -> list[System]:
    return [
        System(
            f"{name}{' packed' if packed else ''}",
            partial(multiply, dtype=dtype, packed=packed),
            threads=options.threads,
            packages=("torch",),
        )
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
        for packed in (False, True)
    ]


def _rates(setting: str, options: Options) -> Mapping[str, float]:
    return {"GFLOP": sum(product.flops for product in of(setting)) / 1e9}


QUESTION = Question(("large", *SHAPES), ("large", "small", "base"), _systems, _rates)

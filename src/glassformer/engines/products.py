"""Matrix products with weights laid out once for the CPU: float32, bfloat16 and int8 through oneDNN.

The calls behind them are PyTorch's own, but private: what is missing or answers wrongly on a small product is left out,
and PyTorch's public product takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.engines.engine import Unavailable

_SMALL = 1 << 19
"""Multiplications up to which float32 is faster unpacked (measured: what oneDNN's call costs is ten microseconds)."""

_TINY = 1e-30
"""Less than any activation: divides a row of zeros."""

Product = Callable[..., Tensor]
"""``product(x, relu=False)``: x Wᵀ + b over the last axis, perhaps with ReLU behind it, in the product's own dtype."""


def build_product(precision: str, weight_NK: Tensor, bias_N: Tensor | None) -> Product:
    """The product with a weight and a bias in a precision.

    Raises:
        Unavailable: int8, where PyTorch lacks it.
    """
    weight_NK = weight_NK.detach().float()
    bias_N = weight_NK.new_zeros(len(weight_NK)) if bias_N is None else bias_N.detach().float()
    if precision == "int8":
        return Int8Product(weight_NK, bias_N)
    return FloatProduct(weight_NK, bias_N, torch.bfloat16 if precision == "bf16" else torch.float32)


class FloatProduct:
    """A product in float32 or bfloat16, whose weight is laid out as oneDNN wants it instead of anew at every call."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor, dtype: torch.dtype) -> None:
        self.dtype = dtype
        weight_NK, self._bias_N = weight_NK.to(dtype), bias_N.to(dtype)
        self._small = _SMALL // weight_NK.numel() if dtype == torch.float32 else 0  # rows
        packed = _packs(dtype)
        self._packed = _pack(weight_NK) if packed else None
        self._weight_NK = weight_NK if self._small or not packed else None

    def __call__(self, x_K: Tensor, relu: bool = False) -> Tensor:
        x_K = x_K.to(self.dtype)
        if self._packed is None or x_K.numel() <= self._small * x_K.shape[-1]:
            assert self._weight_NK is not None
            y_N = F.linear(x_K, self._weight_NK, self._bias_N)
            return y_N.relu_() if relu else y_N
        return _multiply(x_K, self._packed, self._bias_N, relu)


def _pack(weight_NK: Tensor) -> Tensor:
    pack: Callable[..., Tensor] = torch.ops.mkldnn._reorder_linear_weight
    return pack(weight_NK.contiguous(), 32)


def _multiply(x_K: Tensor, packed: Tensor, bias_N: Tensor, relu: bool) -> Tensor:
    multiply: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
    return multiply(x_K, packed, bias_N, "relu" if relu else "none", [], "")


@cache
def _packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN's packed product is there and right."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        x_MK, weight_NK, bias_N = _example(dtype)
        try:
            found_MN = _multiply(x_MK, _pack(weight_NK), bias_N, relu=True)
        except (RuntimeError, AttributeError, TypeError):
            return False
        wanted_MN = F.linear(x_MK.float(), weight_NK.float(), bias_N.float()).relu()
        return torch.allclose(found_MN.float(), wanted_MN, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-2)


class Int8Product:
    """A product of 8-bit integers, with one scale for each row of the weight and one for each row of activations."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor) -> None:
        if not _multiplies_int8():
            raise Unavailable("this PyTorch has no exact int8 product on this processor")
        self._bias_N = bias_N
        self._packed = _pack_int8(weight_NK)

    def __call__(self, x_K: Tensor, relu: bool = False) -> Tensor:
        largest_1 = x_K.abs().amax(-1, keepdim=True).clamp_(min=_TINY)
        # From 1 to 255, with zero at 128: conversion cuts off, and half a step more makes of that the nearest.
        x_K = (x_K * (127 / largest_1)).add_(128.5).to(torch.uint8)
        y_N = torch.addcmul(self._bias_N, _multiply_int8(x_K, *self._packed), largest_1, value=1 / 127)
        return y_N.relu_() if relu else y_N


_PackedInt8 = tuple[Tensor, Tensor, Tensor]
"""A weight as oneDNN wants it, its rows' scales, and their zeros."""


def _pack_int8(weight_NK: Tensor) -> _PackedInt8:
    scale_N = weight_NK.abs().amax(1).clamp_(min=_TINY) / 127
    rounded_NK = (weight_NK / scale_N[:, None]).round_().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(rounded_NK, [32, weight_NK.shape[1]])
    return packed, scale_N, torch.zeros_like(scale_N, dtype=torch.int32)


def _multiply_int8(x_K: Tensor, packed: Tensor, scale_N: Tensor, zero_N: Tensor) -> Tensor:
    multiply: Callable[..., Tensor] = torch.ops.onednn.qlinear_pointwise
    return multiply(x_K, 1.0, 128, packed, scale_N, zero_N, None, 1.0, 0, torch.float32, "none", [], "")


@cache
def _multiplies_int8() -> bool:
    """Whether the product is there, and is exact.

    Without VNNI, pairs of products may be added up in 16 bits, which the largest values overflow.
    """
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        weight_NK = torch.full((32, 64), 127.0)
        weight_NK[::2, ::3] = -127
        x_MK = torch.full((3, 64), 255, dtype=torch.uint8)
        x_MK[1, ::2] = 1
        wanted_MN = (x_MK.float() - 128) @ weight_NK.T
        try:
            return torch.equal(_multiply_int8(x_MK, *_pack_int8(weight_NK)), wanted_MN)
        except (RuntimeError, AttributeError, TypeError):
            return False


def _example(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x_MK, weight_NK, bias_N = (torch.rand(*shape, generator=generator) * 2 - 1 for shape in ((5, 64), (48, 64), (48,)))
    return x_MK.to(dtype), weight_NK.to(dtype), bias_N.to(dtype)

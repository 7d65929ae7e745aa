"""The native engine's steps behind the `Decodable` protocol, so that whatever decodes a module decodes it, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from glassformer.runtime.engine import DecodeState, NativeModel


class NativeState:
    """A `DecodeState` over the native engine's."""

    def __init__(self, state: DecodeState) -> None:
        self.native = state
        self.logits_BV = None if state.logits_NV is None else torch.from_numpy(state.logits_NV)

    @property
    def length(self) -> int:
        return self.native.length

    def select(self, index_N: Tensor) -> None:
        self.native.select(index_N.tolist())

    def truncate(self, length: int) -> None:
        self.native.truncate(length)


class NativeDecodable:
    """A `Decodable` over a `NativeModel`, on the CPU."""

    def __init__(self, native: NativeModel) -> None:
        self._native = native

    def start(self, source_BS: Tensor, source_mask_BS: Tensor | None = None) -> NativeState:
        mask_BS = torch.ones_like(source_BS, dtype=torch.bool) if source_mask_BS is None else source_mask_BS
        rows = zip(source_BS, mask_BS, strict=True)
        return NativeState(self._native.start([ids_S[mask_S].tolist() for ids_S, mask_S in rows]))

    def step(self, tokens_BT: Tensor, state: NativeState, *, last_only: bool = True) -> Tensor:
        return torch.from_numpy(state.native.step(tokens_BT.numpy(), last_only=last_only))

"""What each named internal is computed from, found out by running the model once and following every number.

No part has to say it: while a tiny input passes, each operation's result inherits what its operands come from, and a
tap makes its tensor a source of its own. So a mixer that is written tomorrow has its parents without a line here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from glassformer.config import PatchEmbedConfig
from glassformer.nn.tap import Tap, _recorder

# What these make takes only its shape from their operand.
_SHAPE_ONLY = {
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided"),
}


class Provenance(TorchDispatchMode):
    """Keeps for every tensor the names of the nearest taps and weights that its numbers come from."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.parents: dict[str, tuple[str, ...]] = {}
        self.axes: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._names = {id(module): name for name, module in model.named_modules() if isinstance(module, Tap)}
        self._weights = {name: tensor for name, tensor in weights(model)}
        self._from: dict[int, dict[str, None]] = {id(tensor): {name: None} for name, tensor in self._weights.items()}
        self._alive: list[Tensor] = []
        """Every tensor seen, so that no identity is used twice."""

    def see(self, tap: Tap, value: Tensor) -> Tensor:
        name = self._names.get(id(tap))
        if name is not None:
            found = [each for each in self._of([value]) if each != name]
            # Tensors first, then weights, a matrix before its bias.
            found.sort(key=lambda each: (each in self._weights, each.endswith("bias")))
            self.parents[name] = tuple(dict.fromkeys([*self.parents.get(name, ()), *found]))
            self.axes[name], self.shapes[name] = tap.axes, tuple(value.shape)
            self._keep(value, {name: None})
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in _SHAPE_ONLY:
            return result
        operands = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        found = self._of(operands)
        for each in tree_iter(result):
            if not isinstance(each, Tensor):
                continue
            if operands and each is operands[0] and name.endswith("_"):
                self._written(each, found)
            elif not any(each is operand for operand in operands):
                self._keep(each, dict(found))
        return result

    def forget(self) -> None:
        """Lets go of every tensor; what was found stays."""
        self._alive, self._from, self._weights = [], {}, {}

    def _of(self, tensors: Iterable[Tensor]) -> dict[str, None]:
        return {name: None for tensor in tensors for name in self._from.get(id(tensor), ())}

    def _keep(self, tensor: Tensor, names: dict[str, None]) -> None:
        self._from[id(tensor)] = names
        self._alive.append(tensor)

    def _written(self, tensor: Tensor, names: dict[str, None]) -> None:
        """An operation in place: whatever shares the memory has the new numbers, too."""
        self._keep(tensor, dict(names))
        place = tensor.untyped_storage()._cdata
        for other in self._alive:
            if other is not tensor and other.untyped_storage()._cdata == place:
                self._from[id(other)] |= names


@torch.no_grad()
def provenance(model: Any) -> Provenance:
    """Runs a model once over two tokens, or one patch, and tells of each tap its parents, axes and shape.

    Args:
        model: An ``Encoder``, a ``Decoder`` or a ``Seq2Seq``, on any device, in eval mode.

    Returns:
        ``parents`` names taps and weights (parameters and fixed tables, as ``state_dict`` would), in the order in which
        they come in; those of integers, masks and tables that are computed on the way are not told.
    """
    seen = Provenance(model)
    inputs = tiny_inputs(model)
    token = _recorder.set(seen)
    try:
        with seen:
            model(*inputs)
    finally:
        _recorder.reset(token)
        seen.forget()
    return seen


def tiny_inputs(model: Any) -> list[Tensor]:
    """The smallest input that every part of a model has something to do with."""
    config, device = model.config, next(model.parameters()).device
    if isinstance(config.embed, PatchEmbedConfig):
        return [torch.zeros(1, config.embed.channels, *config.embed.patch_size, device=device)]
    ids = torch.zeros(1, 2, dtype=torch.long, device=device)
    return [ids, ids] if config.kind == "encoder-decoder" else [ids]


def weights(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Parameters and fixed tables by name, a shared one by its first."""
    yield from model.named_parameters()
    yield from model.named_buffers()

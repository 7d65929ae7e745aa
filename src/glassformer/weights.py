"""Weights under other projects' names: one table of rules, read both ways.

A ``Rule`` says which tensor of ours is made of which tensors of theirs, and by what invertible operation. Import reads
the table from theirs to ours, export from ours to theirs. In names, ``*`` stands for a number, the same on both sides::

    Rule("encoder.layers.*.ffn.up.weight", "h.*.mlp.c_fc.weight", Transpose())
    Rule(("d.*.query.weight", "d.*.key.weight", "d.*.value.weight"), "h.*.qkv.weight", Split((1, 1, 1)))
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from glassformer.errors import UserError

if TYPE_CHECKING:  # the tables of the families are data, and a config that names one is read without PyTorch
    from torch import Tensor

Tensors = Sequence["Tensor"]


class Op:
    """An invertible operation on tensors."""

    def ours(self, theirs: Tensors) -> Tensors:
        """From theirs to ours, for import."""
        return theirs

    def theirs(self, ours: Tensors) -> Tensors:
        """From ours to theirs, for export."""
        return ours


@dataclass(frozen=True)
class Copy(Op):
    """The same tensor."""


@dataclass(frozen=True)
class Transpose(Op):
    """A matrix whose rows are theirs' columns, such as GPT-2's ``Conv1D``."""

    def ours(self, theirs: Tensors) -> Tensors:
        return [tensor.T for tensor in theirs]

    def theirs(self, ours: Tensors) -> Tensors:
        return [tensor.T for tensor in ours]


@dataclass(frozen=True)
class Split(Op):
    """One tensor of theirs holds several of ours, one behind the other.

    Attributes:
        sizes: How long each is; ``(1, 1, 1)`` or any other proportion of the whole.
        dim: Along which dimension.
    """

    sizes: tuple[int, ...]
    dim: int = 0

    def ours(self, theirs: Tensors) -> Tensors:
        (whole,) = theirs
        unit, rest = divmod(whole.shape[self.dim], sum(self.sizes))
        if rest:
            raise UserError(f"a tensor of shape {list(whole.shape)} cannot be split {' : '.join(map(str, self.sizes))}")
        return whole.split([unit * size for size in self.sizes], self.dim)

    def theirs(self, ours: Tensors) -> Tensors:
        import torch

        return [torch.cat(list(ours), self.dim)]


@dataclass(frozen=True)
class Concat(Op):
    """Several tensors of theirs make one of ours, one behind the other; sizes and dim as in ``Split``."""

    sizes: tuple[int, ...]
    dim: int = 0

    def ours(self, theirs: Tensors) -> Tensors:
        return Split(self.sizes, self.dim).theirs(theirs)

    def theirs(self, ours: Tensors) -> Tensors:
        return Split(self.sizes, self.dim).ours(ours)


@dataclass(frozen=True)
class Permute(Op):
    """Rows in another order: theirs, seen as ``shape``, has its axes put in ``order``.

    GPT-NeoX keeps query, key and value of each head together: ``Permute((n_heads, 3, d_head), (1, 0, 2))``. A rotary
    layout of pairs becomes one of halves by ``Permute((n_heads, d_head // 2, 2), (0, 2, 1))``.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]

    def ours(self, theirs: Tensors) -> Tensors:
        return [_permuted(tensor, self.shape, self.order) for tensor in theirs]

    def theirs(self, ours: Tensors) -> Tensors:
        shape = tuple(self.shape[axis] for axis in self.order)
        inverse = tuple(self.order.index(axis) for axis in range(len(self.order)))
        return [_permuted(tensor, shape, inverse) for tensor in ours]


def _permuted(tensor: Tensor, shape: tuple[int, ...], order: tuple[int, ...]) -> Tensor:
    if tensor.shape[0] != prod(shape):
        raise UserError(f"a tensor of {tensor.shape[0]} rows cannot be seen as {' × '.join(map(str, shape))} of them")
    rest = range(len(shape), len(shape) + tensor.dim() - 1)
    return tensor.unflatten(0, shape).permute(*order, *rest).flatten(0, len(shape) - 1)


@dataclass(frozen=True)
class Squeeze(Op):
    """Theirs has so many leading dimensions of size 1 more than ours."""

    dims: int = 1

    def ours(self, theirs: Tensors) -> Tensors:
        return [tensor.flatten(0, self.dims) for tensor in theirs]

    def theirs(self, ours: Tensors) -> Tensors:
        return [tensor[(None,) * self.dims] for tensor in ours]


@dataclass(frozen=True)
class Tie(Op):
    """Theirs may hold a second copy of a tensor that another rule imports; export leaves it out."""


@dataclass(frozen=True)
class Ignore(Op):
    """Theirs may hold what we compute or do not need, such as masks and position ids; export leaves it out."""


@dataclass(frozen=True)
class Rule:
    """One line of a table.

    Attributes:
        ours: Names of ours, ``*`` for a number.
        theirs: Names of theirs; each ``*`` stands for the number at the same place in ours.
        op: From theirs to ours; several are done one after the other.
    """

    ours: str | tuple[str, ...]
    theirs: str | tuple[str, ...]
    op: Op | tuple[Op, ...] = Copy()

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.op if isinstance(self.op, tuple) else (self.op,)

    @property
    def absent(self) -> bool:
        """Whether theirs need not be there."""
        return any(isinstance(op, Tie | Ignore) for op in self.ops)

    def pairs(self, names: Iterable[str]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """What the rule stands for in a model whose tensors have these names: (ours, theirs) of every number."""
        ours, theirs = _names(self.ours), _names(self.theirs)
        found = (match.groups() for name in names if (match := _pattern(ours[0]).fullmatch(name)))
        return [(tuple(_filled(n, at) for n in ours), tuple(_filled(n, at) for n in theirs)) for at in found]


def ignore(*theirs: str) -> Rule:
    """A rule for tensors of theirs that are left out."""
    return Rule((), theirs, Ignore())


def both(ours: str, theirs: str, op: Op | tuple[Op, ...] = Copy()) -> list[Rule]:
    """The rules of a weight and its bias."""
    return [Rule(f"{ours}.{kind}", f"{theirs}.{kind}", op) for kind in ("weight", "bias")]


def import_weights(
    rules: Sequence[Rule], theirs: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Makes our weights of theirs.

    Args:
        rules: The family's table.
        theirs: Name → tensor; each is read once, so that a lazy mapping holds one at a time.
        expected: Our model's ``state_dict``, also one on the meta device.

    Returns:
        Our weights, views of theirs where the operation allows it.

    Raises:
        UserError: A tensor is missing, left over, of another shape, or untied where the configuration ties it.
    """
    import torch

    made: dict[str, Tensor] = {}
    missing: list[str] = []
    used: set[str] = set()
    for rule in rules:
        if rule.absent:
            continue
        for ours, sources in rule.pairs(expected):
            used.update(sources)
            absent = [name for name in sources if name not in theirs]
            missing += absent
            if absent:
                continue
            tensors: Tensors = [theirs[name] for name in sources]
            for op in rule.ops:
                tensors = op.ours(tensors)
            made.update(zip(ours, tensors, strict=True))
    copies = [pair for rule in rules if Tie() in rule.ops for pair in rule.pairs(expected)]
    optional = [_pattern(name) for rule in rules if Ignore() in rule.ops for name in _names(rule.theirs)]
    used.update(name for _, names in copies for name in names)
    extra = [name for name in theirs if name not in used and not any(p.fullmatch(name) for p in optional)]
    if missing or extra:
        raise UserError(f"the weights do not fit: {_told('missing', missing)}; {_told('left over', extra)}")
    if untold := expected.keys() - made.keys():
        raise UserError(f"no rule makes {_listed(sorted(untold))}: the format cannot hold this model")
    for name, tensor in made.items():
        if name not in expected or tensor.shape != expected[name].shape:
            wanted = list(expected[name].shape) if name in expected else "none"
            raise UserError(f"{name} has shape {list(tensor.shape)}, but the configuration says {wanted}")
    for (original, *_), (copy, *_) in copies:
        if copy in theirs and not torch.equal(theirs[copy], made[original]):
            raise UserError(f"{copy} differs from what the configuration ties it to; set tie_word_embeddings to false")
    return made


def export_weights(rules: Sequence[Rule], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Makes their weights of ours, by the same table; contiguous, so that they can be written.

    Raises:
        UserError: The table has no rule for one of our tensors.
    """
    made: dict[str, Tensor] = {}
    used: set[str] = set()
    for rule in rules:
        if rule.absent:
            continue
        for sources, names in rule.pairs(ours):
            tensors: Tensors = [ours[name] for name in sources]
            for op in reversed(rule.ops):
                tensors = op.theirs(tensors)
            used.update(sources)
            made.update(zip(names, (tensor.contiguous() for tensor in tensors), strict=True))
    if extra := ours.keys() - used:
        raise UserError(f"the format has no place for {_listed(sorted(extra))}")
    return made


def _names(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\*", r"(\d+)"))


def _filled(name: str, numbers: Sequence[str]) -> str:
    remaining = iter(numbers)
    return re.sub(r"\*", lambda _: next(remaining), name)


def _told(what: str, names: Sequence[str]) -> str:
    return f"{len(names)} {what}" + (f" ({_listed(names)})" if names else "")


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

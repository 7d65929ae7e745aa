"""A model in numbers: its tree of parts, and what it costs in memory and arithmetic. Works on the meta device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Any

from torch import nn

from glassformer.models.encoder import Encoder
from glassformer.models.heads import Classifier, Pooler
from glassformer.nn.attention import CrossAttention
from glassformer.nn.block import Residual
from glassformer.nn.dropout import Dropout
from glassformer.nn.embed import OutputHead
from glassformer.nn.mixer import Part
from glassformer.nn.tap import Tap

FP32 = 4
"""Bytes of one number."""


@dataclass(frozen=True)
class Node:
    """One part of a model, or a run of equal neighbouring layers.

    Attributes:
        name: Its name in the parent, such as ``mixer``, or ``0-5`` for a run of layers.
        kind: Name of its class.
        shape: Shapes of its own tensors, and what else tells it from others of its kind.
        parameters: Trained numbers inside one copy; a shared tensor counts where it first appears.
        repeat: How many equal copies the node stands for.
    """

    name: str
    kind: str
    shape: str
    parameters: int
    children: tuple[Node, ...] = ()
    repeat: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        children = {"children": [child.to_dict() for child in self.children]} if self.children else {}
        own = {"name": self.name, "kind": self.kind, "shape": self.shape}
        return {**own, "parameters": self.parameters, "repeat": self.repeat, **children}


def tree(model: nn.Module, name: str = "model") -> Node:
    """The tree of a model's parts. Taps and dropout are left out: they hold no numbers."""
    return _node(name, model, seen=set())


def _node(name: str, module: nn.Module, seen: set[int]) -> Node:
    own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
    seen.update(map(id, own))
    children = tuple(_folded(_visible(module, seen)))
    inside = sum(child.parameters * child.repeat for child in children)
    count = sum(p.numel() for p in own) + inside
    return Node(name, type(module).__name__, _shape(module), count, children)


def _visible(module: nn.Module, seen: set[int]) -> Iterator[Node]:
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            yield from (_node(f"{name}.{index}", layer, seen) for index, layer in enumerate(child))
        elif not isinstance(child, Tap | Dropout):
            yield _node(name, child, seen)


def _folded(nodes: Iterator[Node]) -> Iterator[Node]:
    """Joins equal layers: ``layers.0`` … ``layers.5`` become one ``layers.0-5`` with ``repeat`` 6.

    Layers that take turns, such as GPT-3's, become one node that holds a turn's layers.
    """
    for is_layer, run in groupby(nodes, lambda node: "." in node.name):
        rest = list(run)
        while rest:
            period, count = _turns([replace(node, name="") for node in rest]) if is_layer else (1, 1)
            turn, last = rest[:period], rest[period * count - 1].name.rpartition(".")[2]
            first = turn[0] if count == 1 else replace(turn[0], name=f"{turn[0].name}-{last}", repeat=count)
            if period > 1:
                size = sum(node.parameters for node in turn)
                first = Node(first.name, f"{period} in turn", "", size, tuple(turn), count)
            yield first
            rest = rest[period * count :]


def _turns(nodes: list[Node]) -> tuple[int, int]:
    """How many nodes at the beginning make a turn, and how often it comes: what stands for most nodes, in few."""

    def times(period: int) -> int:
        equal = takewhile(lambda at: nodes[at] == nodes[at % period], range(len(nodes)))
        return max(1, sum(1 for _ in equal) // period)

    periods = [period for period in range(1, len(nodes) // 2 + 1) if times(period) > 1]
    period = max(periods, key=lambda each: (each * times(each), -each), default=1)
    return period, times(period)


def _shape(module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return f"{module.in_features} → {module.out_features}" + (" + bias" if module.bias is not None else "")
    if isinstance(module, Part) and (said := module.shape()):
        return said
    if isinstance(module, Residual):
        return f"{module.order}-norm"
    if isinstance(module, OutputHead) and module.weight is None:
        return "tied to the embedding" + (" + bias" if module.bias is not None else "")
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return ", ".join(" × ".join(map(str, tensor.shape)) + _fixed(tensor) for name, tensor in tensors if name != "bias")


def _fixed(tensor: Any) -> str:
    return "" if isinstance(tensor, nn.Parameter) else " fixed"


@dataclass(frozen=True)
class Cost:
    """What a model costs.

    Attributes:
        parameters: Trained numbers, shared ones counted once.
        weights: Bytes of the parameters in float32.
        gradients: Bytes of their gradients in float32.
        moments: Bytes of Adam's two moments in float32.
        cache_per_target: Bytes that decoding keeps for each token of one row's target (or prompt), in float32; a layer
            with a window stops growing at its width.
        cache_per_source: Bytes that decoding keeps for each source token of one row, in float32.
        state: Bytes that decoding keeps for one row whatever was read, in float32; the last tokens, which can be taken
            back, come on top.
        flops_per_source: Forward FLOPs for each token (or patch) that an encoder reads, once a sentence.
        flops_per_target: Forward FLOPs for each token that a decoder reads.
        context: The sequence length that attention's part of the FLOPs is stated for.
    """

    parameters: int
    weights: int
    gradients: int
    moments: int
    cache_per_target: int
    cache_per_source: int
    state: int
    flops_per_source: int
    flops_per_target: int
    context: int

    @property
    def training(self) -> int:
        """Bytes that training holds besides activations."""
        return self.weights + self.gradients + self.moments


def cost(model: nn.Module, context: int = 128) -> Cost:
    """Counts memory and arithmetic.

    A token times an m × n matrix is 2mn FLOPs; attention over ``context`` keys adds 4 · context · d_inner a query.
    Norms, activations and softmax are left out, as is usual, and a backward pass costs twice a forward pass
    (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). What is done once a sentence, such as classifying it, is left
    out, too. Each mixer says itself what it adds to its matrices.

    Args:
        model: On any device, also meta.
        context: Number of keys that a query attends to; a causal layer is counted as if it saw them all, one with a
            window as if it saw that many.
    """
    flops = {"source": 0, "target": 0}
    cache, state = {"source": 0, "target": 0}, 0
    once = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, Classifier | Pooler))
    for name, module in model.named_modules():
        if name.startswith(once):
            continue
        reads = isinstance(model, Encoder) or name.startswith("encoder.")
        side = "source" if reads else "target"
        if isinstance(module, Part):
            flops[side] += module.flops(context)
            if side == "target":
                kept = module.kept()
                cache["source" if isinstance(module, CrossAttention) else "target"] += kept.per_token * FP32
                state += kept.constant * FP32
        elif isinstance(module, nn.Conv2d):
            flops[side] += 2 * module.weight.numel()
        elif isinstance(module, nn.Linear):
            parent = model.get_submodule(name.rpartition(".")[0])
            if isinstance(parent, CrossAttention) and module in (parent.key, parent.value):
                side = "source"  # projected once a sentence, from the encoder's output
            flops[side] += 2 * module.in_features * module.out_features
        elif isinstance(module, OutputHead):
            flops[side] += 2 * _head_size(model, module)
    count = sum(p.numel() for p in model.parameters())
    return Cost(
        parameters=count,
        weights=FP32 * count,
        gradients=FP32 * count,
        moments=2 * FP32 * count,
        cache_per_target=cache["target"],
        cache_per_source=cache["source"],
        state=state,
        flops_per_source=flops["source"],
        flops_per_target=flops["target"],
        context=context,
    )


def _head_size(model: Any, head: OutputHead) -> int:
    weight = head.weight if head.weight is not None else model.decoder_embed.weight
    return int(weight.numel())

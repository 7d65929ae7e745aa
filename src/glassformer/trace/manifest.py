"""A model as a graph: its parts in the order in which data passes them, what flows between, and every named tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from glassformer.models.stack import Stack
from glassformer.nn.block import Block, Residual
from glassformer.nn.tap import Tap
from glassformer.trace.provenance import provenance, weights

KINDS = {
    "TokenEmbedding": "embedding",
    "PatchEmbedding": "patches",
    "PositionTable": "position",
    "T5Buckets": "position",
    "Alibi": "position",
    "SelfAttention": "self-attention",
    "CrossAttention": "cross-attention",
    "Sparse": "sparse-attention",
    "Retention": "retention",
    "Mamba": "state-space",
    "Mamba2": "state-space",
    "RWKV4": "rwkv",
    "RWKV5": "rwkv",
    "RWKV7": "rwkv",
    "LSTM": "lstm",
    "Recurrence": "state-space",
    "Residual": "add",
    "LayerNorm": "norm",
    "RMSNorm": "norm",
}
"""What a part is to a reader, by its class or by one that it descends from."""

LENGTHS = {"encoder": "S", "decoder": "T"}
"""How the length of each stack's sequence is called where both are spoken of."""


@dataclass(frozen=True)
class Part:
    """One box of the map.

    Attributes:
        id: Module path; of what is no module of its own, such as the sum of embedding and position, a name like one.
        kind: As in `KINDS`; besides, feed-forward, tokens, head and softmax.
        stack: encoder, decoder, or None behind them.
        layer: Number of the block, from 0.
        taps: Names of the tensors that are recorded here.
        weights: Learnt or fixed tensors that these are computed from, name → shape.
        parameters: Trained numbers here; a shared one counts where it comes first.
        causal: Of a mixer: whether it sees no later token.
        heads: Of a mixer: how many heads it has.
    """

    id: str
    kind: str
    stack: str | None = None
    layer: int | None = None
    taps: tuple[str, ...] = ()
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: int = 0
    causal: bool | None = None
    heads: int | None = None


@dataclass(frozen=True)
class Edge:
    """What flows from part to part: its shape, and whether as data, past a sub-layer, or as the encoder's memory."""

    source: str
    target: str
    shape: str
    kind: str


@dataclass(frozen=True)
class Named:
    """One tensor that a run records: its axes, the names of what it is computed from, and its part."""

    axes: str
    parents: tuple[str, ...]
    part: str


@dataclass(frozen=True)
class Manifest:
    """Everything that can be known of a model's inside before it reads anything."""

    parts: list[Part]
    edges: list[Edge]
    tensors: dict[str, Named]


def manifest(model: Any) -> Manifest:
    """The graph of a model.

    Args:
        model: An ``Encoder``, a ``Decoder`` or a ``Seq2Seq``; it runs once over two tokens.
    """
    found = provenance(model)
    parts = list(_parts(model))
    homes = _homes(model, parts, found.parents)
    tensors = {
        name: Named(_axes(found.axes[name], len(found.shapes[name])), parents, homes[name])
        for name, parents in found.parents.items()
    }
    shapes = {name: tuple(tensor.shape) for name, tensor in weights(model)}
    counted: set[int] = set()
    filled = [_filled(model, part, tensors, shapes, counted) for part in parts]
    edges = list(_edges(filled, tensors, found.shapes))
    return Manifest(filled, edges, tensors)


def kind_of(module: nn.Module) -> str:
    """What a part is to a reader; a mixer around others is what they are."""
    for parent in type(module).__mro__:
        if parent.__name__ in KINDS:
            return KINDS[parent.__name__]
    inner = [kind_of(child) for child in module.children() if any(isinstance(tap, Tap) for tap in child.children())]
    return inner[0] if inner else "feed-forward"


def residual_stream(stack: Stack, name: str) -> dict[str, str]:
    """Of a stack the tensors that its residual stream passes: of each place, such as ``decoder.layers.0``, the tap."""
    stream = {f"{name}.input": f"{name}.input"}
    for index, block in enumerate(stack.layers):
        path = f"{name}.layers.{index}"
        last = [each for each in ("mixer_residual", "cross_residual", "ffn_residual") if getattr(block, each, None)][-1]
        order = getattr(block, last).order
        stream[path] = f"{path}.{last}.{'sum' if order == 'pre' else 'normed'}"
    return stream


def _axes(axes: str, dims: int) -> str:
    """Axes with the leading ones spelled out: ``… V`` of three dimensions is ``B T V``."""
    return axes.replace("…", "B T" if dims == 3 else "B")


def _parts(model: Any) -> Iterator[Part]:
    """The parts, still without tensors, in the order in which data passes them."""
    both = model.config.kind == "encoder-decoder"
    for side in ("encoder", "decoder"):
        stack = getattr(model, side, None)
        if stack is None:
            continue
        own = model.decoder_embed is not model.embed
        embed = "embed" if side == "encoder" or not both else "target_embed" if own else "decoder.embed"
        kind = kind_of(model.embed)
        if kind == "embedding":
            yield Part("target" if both and side == "decoder" else "source", "tokens", side)
        yield Part(embed, kind, side)
        for name in ("position", "bias"):
            if getattr(stack, name) is not None:
                yield Part(f"{side}.{name}", "position", side)
        if stack.input_norm is not None:
            yield Part(f"{side}.input_norm", "norm", side)
        elif stack.position is not None:
            yield Part(f"{side}.input", "add", side)
        for layer, block in enumerate(stack.layers):
            for part in _block_parts(block, f"{side}.layers.{layer}"):
                yield Part(part[0], part[1], side, layer, causal=part[2], heads=part[3])
        if stack.final_norm is not None:
            yield Part(f"{side}.final_norm", "norm", side)
    if model.head is not None:
        yield Part("head", "head")
        if _says_pieces(model):
            yield Part("softmax", "softmax")


def _block_parts(block: Block, path: str) -> Iterator[tuple[str, str, bool | None, int | None]]:
    """Of a block the parts: id, kind, causal, heads. A pre-norm stands before its sub-layer, a post-norm behind it."""
    for name in ("mixer", "cross", "ffn"):
        sublayer, residual = getattr(block, name), getattr(block, f"{name}_residual")
        if sublayer is None or residual is None:
            continue
        config = getattr(sublayer, "config", None)
        kind = "feed-forward" if name == "ffn" else kind_of(sublayer)
        causal = None if name == "ffn" else getattr(config, "causal", None)
        norm = (f"{path}.{name}_residual.norm", "norm", None, None)
        if residual.order == "pre":
            yield norm
        yield f"{path}.{name}", kind, causal, getattr(config, "n_heads", None)
        yield f"{path}.{name}_residual", "add", None, None
        if residual.order == "post":
            yield norm


def _says_pieces(model: Any) -> bool:
    return model.config.head.type in ("lm", "masked-lm")


def _homes(model: Any, parts: Sequence[Part], parents: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The part that each tap is recorded in."""
    known = {part.id for part in parts}
    modules = dict(model.named_modules())
    homes: dict[str, str] = {}
    for name in parents:
        path, _, tap = name.rpartition(".")
        if isinstance(modules[path], Stack):
            homes[name] = _home_in_stack(path, tap, parts, known, homes, parents[name])
        elif isinstance(modules[path], Residual) and tap == "normed":
            homes[name] = f"{path}.norm"
        else:
            while path not in known:
                path = path.rpartition(".")[0]
                assert path, f"{name} stands in no part"
            homes[name] = path
    return homes


def _home_in_stack(
    path: str, tap: str, parts: Sequence[Part], known: set[str], homes: Mapping[str, str], parents: Sequence[str]
) -> str:
    embed = next(part.id for part in parts if part.stack == path and part.kind in ("embedding", "patches"))
    named = {
        "embedded": embed,
        "positions": f"{path}.position",
        "input": f"{path}.input_norm" if f"{path}.input_norm" in known else f"{path}.input",
        "output": f"{path}.final_norm",
    }
    home = named.get(tap, "")
    # A tap that only passes on what another one saw stands where that one does.
    return home if home in known else homes[parents[0]]


def _filled(
    model: Any, part: Part, tensors: Mapping[str, Named], shapes: Mapping[str, tuple[int, ...]], counted: set[int]
) -> Part:
    taps = tuple(name for name, tensor in tensors.items() if tensor.part == part.id)
    used = {p: shapes[p] for name in taps for p in tensors[name].parents if p in shapes}
    try:
        module = model.get_submodule("embed" if part.id == "decoder.embed" else part.id)
    except AttributeError:
        return Part(**{**vars(part), "taps": taps, "weights": used})
    if part.kind == "add":
        return Part(**{**vars(part), "taps": taps, "weights": used})
    own = {f"{part.id}.{name}": tuple(tensor.shape) for name, tensor in weights(module)}
    used |= {name: shape for name, shape in own.items() if name in shapes}
    fresh = [p for p in module.parameters() if id(p) not in counted]
    counted.update(map(id, fresh))
    return Part(**{**vars(part), "taps": taps, "weights": used, "parameters": sum(p.numel() for p in fresh)})


def _edges(
    parts: Sequence[Part], tensors: Mapping[str, Named], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[Edge]:
    by_id = {part.id: part for part in parts}
    biases = {name: part.id for part in parts if part.kind == "position" for name in part.weights}
    found: dict[tuple[str, str], Edge] = {}

    def add(source: str, target: str, shape: str, kind: str) -> None:
        if source != target:
            found.setdefault((source, target), Edge(source, target, shape, kind))

    for part in parts:
        if part.kind == "tokens":
            embed = next(p for p in parts if p.stack == part.stack and p.kind == "embedding")
            add(part.id, embed.id, LENGTHS[part.stack or "decoder"], "data")
    for tensor in tensors.values():
        target = by_id[tensor.part]
        for parent in tensor.parents:
            if parent in biases:
                add(biases[parent], target.id, "H × T × S", "data")
            if parent not in tensors:
                continue
            source = by_id[tensors[parent].part]
            memory = source.stack == "encoder" and target.stack == "decoder"
            past = target.kind == "add" and target.layer is not None and source.kind in _STREAM
            kind = "memory" if memory else "residual" if past else "data"
            add(source.id, target.id, _shape(tensors[parent], shapes[parent], source), kind)
    if "softmax" in by_id:
        logits = by_id["head"].taps[-1]
        add("head", "softmax", _shape(tensors[logits], shapes[logits], by_id["head"]), "data")
    yield from found.values()


_STREAM = {"add", "norm", "embedding", "patches", "position"}


def _shape(tensor: Named, shape: Sequence[int], part: Part) -> str:
    """A shape for a reader: lengths as letters, the rest as numbers, without the batch."""
    axes = tensor.axes.split()
    length = LENGTHS[part.stack or "decoder"]
    named = {"T": length, "S": "S", "P": "P"}
    return " × ".join(named.get(axis, str(size)) for axis, size in zip(axes, shape, strict=True) if axis != "B")

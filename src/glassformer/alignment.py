"""Which words of a text and its translation say the same, read from a model's cross-attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from glassformer.errors import UserError
from glassformer.generate.align import Link, word_links
from glassformer.header import Framing
from glassformer.text.words import pieces_to_words

if TYPE_CHECKING:
    from glassformer.engines.engine import Engine
    from glassformer.models.seq2seq import Seq2Seq
    from glassformer.text.tokenizer import Tokenizer


class Alignment(NamedTuple):
    """The words of a pair of texts, and the links between them by their numbers."""

    source_words: list[str]
    target_words: list[str]
    links: list[Link]


def align_texts(
    model: Engine | Seq2Seq,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    tags: Sequence[Sequence[int]] | None = None,
    reverse_tags: Sequence[Sequence[int]] | None = None,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    method: str = "itermax",
    framing: Framing | None = None,
) -> list[Alignment]:
    """Aligns the words of each source and target; the target may be anybody's translation.

    A model of both directions is asked both ways, and the geometric mean of its answers is taken: what one direction
    mistakes the other seldom does. What is too long for the model's positions is left out, and its words have no link.

    Args:
        model: an engine, or a torch module.
        tokenizer: of source and target.
        pairs: source and target texts; all are read in one batch.
        tags: for each pair the ids that stand before the source, such as the language token; None is none.
        reverse_tags: for each pair the ids that ask for the other direction; None asks one way only.
        layers, heads: as in `cross_attention`.
        method: as in `word_links`.
        framing: what the model reads around a source and before a target; None is what the tokenizer says.

    Raises:
        UserError: a layer, heads or a method that does not exist.
    """
    tags = [[]] * len(pairs) if tags is None else tags
    if not pairs:
        return []
    engine = _engine(model)
    framing, sides = framing or Framing.of(tokenizer, "encoder-decoder"), (tokenizer, tokenizer.target)
    words = [[pieces_to_words(side, text) for side, text in zip(sides, pair, strict=True)] for pair in pairs]
    rows = []
    for (source, target), *prefixes in zip(pairs, tags, reverse_tags or tags, strict=True):
        room = _room(engine, max(map(len, prefixes)) + max(1, len(framing.before) + len(framing.after)))
        rows.append((tokenizer.encode(source)[:room], tokenizer.target.encode(target)[:room]))
    options: dict[str, Any] = {"layers": layers, "heads": heads}
    matrices = _between_pieces(engine, framing, rows, tags, **options)
    if reverse_tags is not None:
        backward = _between_pieces(engine, framing, [(t, s) for s, t in rows], reverse_tags, **options)
        matrices = [np.sqrt(a_TS * b_ST.T) for a_TS, b_ST in zip(matrices, backward, strict=True)]
    alignments = []
    for matrix_TS, (source_words, target_words) in zip(matrices, words, strict=True):
        n_target, n_source = matrix_TS.shape
        source_spans = [_below(span, n_source) for _, span in source_words]
        target_spans = [_below(span, n_target) for _, span in target_words]
        links = word_links(matrix_TS, source_spans, target_spans, method)
        alignments.append(Alignment([w.text for w, _ in source_words], [w.text for w, _ in target_words], links))
    return alignments


def cross_attention(
    model: Engine | Seq2Seq,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> list[NDArray[np.float64]]:
    """What each position of the decoder gives to each source token under teacher forcing, a mean over heads.

    Args:
        sources: token ids.
        targets: ids as the decoder reads them, `<s> …`.
        layers: decoder layers, from 0; None is the last two, which agree best with a dictionary.
        heads: heads of each of these layers, from 0; None is all of them.

    Returns:
        For each pair weights of shape (T, S); each row adds up to 1. Row t is from the step that reads target token t
        and predicts the next one.

    Raises:
        UserError: there is no such layer or head.
    """
    engine = _engine(model)
    n_heads = engine.cross_heads
    layers = list(n_heads)[-2:] if layers is None else layers
    for layer in layers:
        if layer not in n_heads:
            able = ", ".join(map(str, n_heads))
            raise UserError(f"--alignment-layers {layer}: the decoder layers with cross-attention are {able}")
        for head in heads or ():
            if not 0 <= head < n_heads[layer]:
                raise UserError(f"--alignment-heads {head}: layer {layer} has heads 0 to {n_heads[layer] - 1}")
    for flag, chosen in (("layers", layers), ("heads", heads)):
        if chosen is not None and not chosen:
            raise UserError(f"--alignment-{flag}: expected at least one number")
    wanted = [(layer, head) for layer in layers for head in (range(n_heads[layer]) if heads is None else heads)]
    # Layers count alike, however many heads each has.
    shares = np.array([1 / sum(each == layer for each, _ in wanted) for layer, _ in wanted]) / len(set(layers))
    return [np.tensordot(shares, x_HTS, 1) for x_HTS in engine.cross_attention(sources, targets, wanted)]


def _between_pieces(
    engine: Engine,
    framing: Framing,
    rows: Sequence[tuple[list[int], list[int]]],
    tags: Sequence[Sequence[int]],
    **options: Any,
) -> list[NDArray[np.float64]]:
    """What each target piece (T) gives to each source piece (S), in shares of what all source pieces get."""
    assert framing.start is not None
    before, after = framing.before, framing.after
    sources = [[*before, *tag, *source, *after] for tag, (source, _) in zip(tags, rows, strict=True)]
    # A piece's row is that of the step before, which looks for what to write; reading it, the model has moved on.
    targets = [[framing.start, *target[:-1]] for _, target in rows]
    matrices = []
    attention = cross_attention(engine, sources, targets, **options)
    for weights_TS, tag, (source, target) in zip(attention, tags, rows, strict=True):
        first = len(before) + len(tag)
        matrix_TS = weights_TS[: len(target), first : first + len(source)]
        total_T1 = matrix_TS.sum(1, keepdims=True)
        matrices.append(np.divide(matrix_TS, total_T1, out=np.zeros_like(matrix_TS), where=total_T1 > 0))
    return matrices


def _engine(model: Engine | Seq2Seq) -> Engine:
    if hasattr(model, "cross_attention"):
        return cast("Engine", model)
    from glassformer.engines.model import ModelEngine

    module = cast("Seq2Seq", model)
    return ModelEngine(module, next(module.parameters()).device)


def _room(engine: Engine, taken: int) -> int | None:
    """How many pieces fit the model on both sides beside `taken` tokens; None when there is no limit."""
    limits = [limit for limit in (engine.source_limit, engine.target_limit) if limit is not None]
    return max(min(limits) - taken, 0) if limits else None


def _below(span: range, size: int) -> range:
    return range(min(span.start, size), min(span.stop, size))

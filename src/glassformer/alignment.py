"""Which words of a text and its translation say the same, read from a model's cross-attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.data.collate import pad
from glassformer.errors import UserError
from glassformer.generate.align import Link, word_links
from glassformer.header import Framing
from glassformer.text.words import pieces_to_words
from glassformer.trace.recorder import record

if TYPE_CHECKING:
    from glassformer.models.seq2seq import Seq2Seq
    from glassformer.text.tokenizer import Tokenizer


class Alignment(NamedTuple):
    """The words of a pair of texts, and the links between them by their numbers."""

    source_words: list[str]
    target_words: list[str]
    links: list[Link]


def align_texts(
    model: Seq2Seq,
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
        model: in eval mode.
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
    framing, sides = framing or Framing.of(tokenizer, "encoder-decoder"), (tokenizer, tokenizer.target)
    words = [[pieces_to_words(side, text) for side, text in zip(sides, pair, strict=True)] for pair in pairs]
    rows = []
    for (source, target), *prefixes in zip(pairs, tags, reverse_tags or tags, strict=True):
        room = _room(model, max(map(len, prefixes)) + max(1, len(framing.before) + len(framing.after)))
        rows.append((tokenizer.encode(source)[:room], tokenizer.target.encode(target)[:room]))
    options: dict[str, Any] = {"layers": layers, "heads": heads}
    matrices = _between_pieces(model, framing, rows, tags, **options)
    if reverse_tags is not None:
        backward = _between_pieces(model, framing, [(t, s) for s, t in rows], reverse_tags, **options)
        matrices = [np.sqrt(a_TS * b_ST.T) for a_TS, b_ST in zip(matrices, backward, strict=True)]
    alignments = []
    for matrix_TS, (source_words, target_words) in zip(matrices, words, strict=True):
        n_target, n_source = matrix_TS.shape
        source_spans = [_below(span, n_source) for _, span in source_words]
        target_spans = [_below(span, n_target) for _, span in target_words]
        links = word_links(matrix_TS, source_spans, target_spans, method)
        alignments.append(Alignment([w.text for w, _ in source_words], [w.text for w, _ in target_words], links))
    return alignments


@torch.no_grad()
def cross_attention(
    model: Seq2Seq,
    source_BS: Tensor,
    target_BT: Tensor,
    source_mask_BS: Tensor | None = None,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Tensor:
    """What each position of the decoder gives to each source token under teacher forcing, a mean over heads.

    Args:
        source_BS: token ids.
        target_BT: ids as the decoder reads them, `<s> …`.
        source_mask_BS: True where a source token is real; None when all are.
        layers: decoder layers, from 0; None is the last two, which agree best with a dictionary.
        heads: heads of each of these layers, from 0; None is all of them.

    Returns:
        Weights, shape (B, T, S), float32; each row adds up to 1, with 0 at padding. Row t is from the step that reads
        target token t and predicts the next one.

    Raises:
        UserError: there is no such layer or head.
    """
    n_heads = {i: b.cross.n_heads for i, b in enumerate(model.decoder.config.blocks) if b.cross is not None}
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
    with record(model) as trace:
        model.hidden(source_BS, target_BT, source_mask_BS)
    patterns = [trace[f"decoder.layers.{layer}.cross.pattern"].float() for layer in layers]
    return torch.stack([(p if heads is None else p[:, list(heads)]).mean(1) for p in patterns]).mean(0)


def _between_pieces(
    model: Seq2Seq,
    framing: Framing,
    rows: Sequence[tuple[list[int], list[int]]],
    tags: Sequence[Sequence[int]],
    **options: Any,
) -> list[NDArray[np.float64]]:
    """What each target piece (T) gives to each source piece (S), in shares of what all source pieces get."""
    assert framing.start is not None
    before, after, device = framing.before, framing.after, next(model.parameters()).device
    # Any id may stand in padding: it is masked, or lies behind the last row that is looked at.
    framed = [[*before, *tag, *source, *after] for tag, (source, _) in zip(tags, rows, strict=True)]
    source_BS, mask_BS = pad(framed, 0)
    # A piece's row is that of the step before, which looks for what to write; reading it, the model has moved on.
    target_BT, _ = pad([[framing.start, *target[:-1]] for _, target in rows], 0)
    mask_BS = None if mask_BS is None else mask_BS.to(device)
    attention_BTS = cross_attention(model, source_BS.to(device), target_BT.to(device), mask_BS, **options)
    matrices = []
    for weights_TS, tag, (source, target) in zip(attention_BTS.cpu().double().numpy(), tags, rows, strict=True):
        first = len(before) + len(tag)
        matrix_TS = weights_TS[: len(target), first : first + len(source)]
        total_T1 = matrix_TS.sum(1, keepdims=True)
        matrices.append(np.divide(matrix_TS, total_T1, out=np.zeros_like(matrix_TS), where=total_T1 > 0))
    return matrices


def _room(model: Seq2Seq, taken: int) -> int | None:
    """How many pieces fit the model on both sides beside `taken` tokens; None when there is no limit."""
    limits = [stack.max_len for _, stack in model.config.stacks if stack.max_len is not None]
    return max(min(limits) - taken, 0) if limits else None


def _below(span: range, size: int) -> range:
    return range(min(span.start, size), min(span.stop, size))

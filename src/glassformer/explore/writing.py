"""What a model says: a target that it writes or that it is given, and what its numbers say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from glassformer.explore.decoding import CANDIDATES, Tree, steps
from glassformer.explore.models import Opened
from glassformer.explore.problem import Problem, TooLong
from glassformer.explore.reading import RunRequest, Source
from glassformer.explore.tokens import finite
from glassformer.generate.align import word_links
from glassformer.generate.beam import search
from glassformer.generate.config import Request, SearchConfig
from glassformer.generate.constraints import Constraints
from glassformer.generate.hypothesis import Hypothesis, normalised_score
from glassformer.header import unwritable_ids
from glassformer.sentences import checked

MAX_NEW_TOKENS = 32
"""Of a model that goes on from a prompt, unless a request says otherwise."""
_NEVER = -1
"""The id of an end that a model never writes."""


@dataclass
class Written:
    """A target.

    Attributes:
        target: Ids that the decoder reads.
        labels: Ids that it is to say at each of these places.
        text: Of what was written.
        first: The place of the first label that was written here, behind a prompt.
        tree: How it was found; None where it was given.
        truncated: Whether a limit cut it.
    """

    target: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    text: str = ""
    first: int = 0
    tree: Tree | None = None
    truncated: bool = False

    def told(self, opened: Opened, source: Source, trace: Mapping[str, Tensor], alpha: float) -> dict[str, Any]:
        """What is told of it, given the numbers of the recorded pass: part of a `Run`."""
        kind, config = opened.config.kind, opened.config
        output: dict[str, Any] = {"text": self.text, "score": None, "truncated": self.truncated or source.cut}
        answer: dict[str, Any] = {"target": [], "labels": [], "label_logprobs": [], "decoding": None, "alignment": []}
        if kind == "encoder":
            output |= _guesses(opened, source, trace)
        if kind == "encoder" or config.head is None or config.head.type != "lm":
            if opened.labels:
                output["labels"] = _labels(opened, trace)
            return {**answer, "output": output}
        tokens = opened.target_tokens
        assert tokens is not None
        logprobs_TV = trace["head.logits"][0].float().log_softmax(-1).double()
        index_T = torch.tensor(self.labels, dtype=torch.long)
        logprobs = logprobs_TV[: len(self.labels)].gather(1, index_T[:, None])[:, 0].tolist()
        answer["target"] = tokens.written(self.target)
        answer["labels"] = tokens.written(self.labels)
        answer["label_logprobs"] = [finite(each) for each in logprobs]
        output["score"] = normalised_score(logprobs[self.first :], alpha) if logprobs[self.first :] else None
        if kind == "encoder-decoder":
            answer["alignment"] = _links(opened, source, self.labels, trace)
        if self.tree is not None:
            n_source = len(source.ids) if kind == "encoder-decoder" else 0
            n_prompt = 1 if kind == "encoder-decoder" else len(source.ids)
            answer["decoding"] = {
                "beam_size": self.tree.beam_size,
                "length_penalty": alpha,
                "nodes": self.tree.nodes,
                "steps": steps(self.tree, opened.model, logprobs_TV[self.first :], n_source, n_prompt),
                "hypotheses": self.tree.hypotheses(),
            }
        return {**answer, "output": output}


def write(opened: Opened, request: RunRequest, source: Source, beam_size: int, alpha: float, most: int) -> Written:
    """Writes a target, or reads the one that is given; a model that only reads writes nothing.

    Raises:
        Problem: An option is out of its range, or does not go with another.
        TooLong: The target has more than ``most`` tokens.
    """
    config = opened.config
    if config.kind == "encoder":
        for name in ("target", "prefix"):
            if getattr(request, name):
                raise Problem(f"{name}: {opened.name} only reads; leave it out")
        return Written()
    if config.head is None or config.head.type != "lm":  # a classifier on a decoder reads and says a label
        target = [opened.framing.start or 0] if config.kind == "encoder-decoder" else source.ids
        return Written(target)
    if request.target is not None and request.prefix:
        raise Problem("both target and prefix: a given target is read as it is; leave one out")
    if request.target is not None:
        return _given(opened, checked(request.target, 1), source, most)
    return _searched(opened, request, source, beam_size, alpha, most)


def _given(opened: Opened, text: str, source: Source, most: int) -> Written:
    framing, tokens = opened.framing, opened.target_tokens
    assert tokens is not None
    ids = [*framing.forced, *tokens.tokenizer.encode(text)]
    if opened.config.kind == "encoder-decoder":
        begin: list[int] = [opened.sentences.request((), ()).bos_id or 0]
    else:
        begin = source.ids
    limit = min(most, opened.config.decoder.max_len or most)
    if len(begin) + len(ids) > limit:
        raise TooLong(f"the target has {len(begin) + len(ids)} tokens, and at most {limit} are shown; shorten it")
    ends = list(framing.ends[:1])
    return Written([*begin, *ids], [*begin[1:], *ids, *ends], text, len(begin) - 1)


def _searched(opened: Opened, request: RunRequest, source: Source, beam_size: int, alpha: float, most: int) -> Written:
    tokens, framing = opened.target_tokens, opened.framing
    assert tokens is not None
    prefix = tuple(request.prefix or ())
    vocab = opened.config.target_vocab_size
    if bad := [index for index in prefix if not 0 <= index < vocab]:
        raise Problem(f"prefix: id {bad[0]} is outside the vocabulary of {vocab} pieces")
    if request.max_new_tokens is not None and request.max_new_tokens < 1:
        raise Problem(f"max_new_tokens {request.max_new_tokens}: must be 1 or more")
    new = request.max_new_tokens
    if opened.config.kind == "encoder-decoder":
        constraints = Constraints((*framing.forced, *prefix))
        asked = opened.sentences.request((), (constraints,))
        begin = [asked.bos_id or 0]
        longest = min(most, asked.max_length or most)
    else:
        constraints, begin = Constraints(prefix), source.ids
        end = framing.ends[0] if framing.ends else _NEVER
        banned = sorted(set(unwritable_ids(opened.tokenizer, vocab)) - set(framing.ends))
        asked = Request(None, end, banned, None, (), (constraints,))
        limit = min(most, opened.config.decoder.max_len or most)
        longest = limit - len(begin) + 1
        new = MAX_NEW_TOKENS if new is None else new
    if len(constraints.prefix) >= longest:
        raise TooLong(f"the prefix leaves no room under {longest} tokens; shorten it")
    asked = Request(asked.bos_id, asked.eos_id, asked.banned_ids, longest, (), (constraints,))
    config = SearchConfig(beam_size, 1, alpha, new)
    tree = Tree(tokens, beam_size, alpha, asked.eos_id)
    best: Hypothesis = search(opened.decodable, source.inputs, source.mask_BS, config, asked, tree)[0][0]
    tree.finish(best)
    ids = list(best.ids)
    if best.finished:
        target, labels = [*begin, *ids], [*begin[1:], *ids, asked.eos_id]
    else:  # the last token that was written is not read any more
        target, labels = [*begin, *ids[:-1]], [*begin[1:], *ids]
    text = tokens.tokenizer.decode(ids)
    return Written(target, labels, text, len(begin) - 1, tree, truncated=not best.finished)


def _links(opened: Opened, source: Source, labels: Sequence[int], trace: Mapping[str, Tensor]) -> list[tuple[int, int]]:
    """Which source token and which label say the same, from the last two layers of cross-attention."""
    patterns = [trace[name][0].mean(0) for name in trace if name.endswith(".cross.pattern")][-2:]
    if not patterns:
        return []
    weights_TS = torch.stack(patterns).mean(0)
    tokens = opened.target_tokens
    assert tokens is not None
    rows = [place for place, index in enumerate(labels) if index not in tokens.special_ids]
    columns = [place for place, token in enumerate(source.tokens) if not token["special"]]
    if not rows or not columns:
        return []
    matrix = weights_TS[rows][:, columns].double().numpy()
    ranges = [[range(place, place + 1) for place in range(len(each))] for each in (columns, rows)]
    return [(columns[s], rows[t]) for s, t in word_links(matrix, ranges[0], ranges[1], "itermax")]


def _labels(opened: Opened, trace: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    logits_L = trace["head.logits"][0].float()
    probabilities = (logits_L.sigmoid() if len(opened.labels) == 1 else logits_L.softmax(-1)).tolist()
    told = [{"label": a, "probability": b} for a, b in zip(opened.labels, probabilities, strict=True)]
    return sorted(told, key=lambda each: -each["probability"])


def _guesses(opened: Opened, source: Source, trace: Mapping[str, Tensor]) -> dict[str, Any]:
    """A masked model's best pieces for each mask."""
    tokens, head = opened.target_tokens, opened.config.head
    if head is None or head.type != "masked-lm" or tokens is None or tokens.mask is None:
        return {}
    name = next(each for each in trace if each.startswith("head.") and each.endswith("logits"))
    logprobs_TV = trace[name][0].float().log_softmax(-1).double()
    index = tokens.mask[1]
    places = [place for place, token in enumerate(source.tokens) if token["id"] == index]
    masks: list[dict[str, Any]] = [
        {"position": at, "candidates": tokens.candidates(logprobs_TV[at], CANDIDATES)} for at in places
    ]
    best = [each["candidates"][0]["token"]["id"] for each in masks]
    ids = list(source.ids)
    for place, guess in zip(places, best, strict=True):
        ids[place] = guess
    kept = [index for index in ids if index not in tokens.special_ids]
    return {"masks": masks, "text": opened.tokenizer.decode(kept)}

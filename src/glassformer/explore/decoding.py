"""How a target came about: the tree of a beam search, kept while the search itself runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.explore.tokens import Tokens, finite
from glassformer.generate.beam import Step
from glassformer.generate.hypothesis import Hypothesis, length_penalty
from glassformer.models.describe import cost
from glassformer.nn.attention import CrossAttention

CANDIDATES = 10
"""Tokens told of each distribution."""


class Tree:
    """Watches the search of one sentence and keeps what it offered, kept and dropped.

    Args:
        tokens: Of what is written.
        beam_size: Hypotheses kept; so many of a step's losers are told.
        length_penalty: α of the score.
        eos_id: What ends a target.
    """

    def __init__(self, tokens: Tokens, beam_size: int, length_penalty: float, eos_id: int) -> None:
        self.tokens, self.beam_size, self.alpha, self.eos_id = tokens, beam_size, length_penalty, eos_id
        self.nodes: list[dict[str, Any]] = []
        self.rows: list[list[dict[str, Any]]] = []
        """Of each step behind the forced prefix, the hypotheses that were extended."""
        self.forced = 0
        self.ended: list[tuple[int, bool]] = []
        """The last node of each hypothesis that grows no more, and whether it ended by itself."""
        self._at: dict[tuple[int, ...], int] = {(): -1}

    def __call__(self, step: Step) -> None:
        """One step of the search; given to `search` as ``watch``."""
        if not self.rows:
            self._prefix(step)
        living = [w for w, total in enumerate(step.sums_BW[0].tolist()) if total > -torch.inf]
        paths = {w: tuple(step.ids_BWT[0, w].tolist()) for w in living}
        sums = {w: float(step.logprobs_BWT[0, w].sum()) for w in living}
        logprobs_WV = step.logits_NV.float().log_softmax(-1).double()
        self.rows.append(
            [
                {"node": self._at[paths[w]], "candidates": self.tokens.candidates(logprobs_WV[w], CANDIDATES)}
                for w in living
            ]
        )
        taken = set()
        made: dict[tuple[int, ...], int] = {}
        for r in step.valid_BR[0].nonzero().flatten().tolist():
            w, token = int(step.parent_BR[0, r]), int(step.new_ids_BR[0, r])
            logprob, closed = float(step.new_logprobs_BR[0, r]), bool(step.closed_BR[0, r])
            taken.add((w, token))
            node = self._add(self._at[paths[w]], len(paths[w]), token, logprob, sums[w], "kept")
            if closed:
                node["fate"] = "finished"
                self.ended.append((node["id"], token == self.eos_id))
            made[(*paths[w], token)] = node["id"]
        for w, token in self._losers(step, living, sums, taken):
            self._add(self._at[paths[w]], len(paths[w]), token, float(logprobs_WV[w, token]), sums[w], "dropped")
        self._at = made

    def _prefix(self, step: Step) -> None:
        """The tokens that were forced, as nodes of their own."""
        path = tuple(step.ids_BWT[0, 0].tolist())
        parent, total = -1, 0.0
        for place, (token, logprob) in enumerate(zip(path, step.logprobs_BWT[0, 0].tolist(), strict=True)):
            node = self._add(parent, place, token, logprob, total, "kept", forced=True)
            parent, total = node["id"], total + logprob
        self.forced = len(path)
        self._at = {path: parent}

    def _losers(
        self, step: Step, living: Sequence[int], sums: dict[int, float], taken: set[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """The best candidates that were allowed and yet not kept."""
        count = min(2 * self.beam_size + 1, step.steered_NV.shape[1])
        norm_N1 = step.logits_NV.float().logsumexp(-1, keepdim=True)
        best = (step.steered_NV - norm_N1).topk(count)
        found = [
            (sums[w] + logprob, w, token)
            for w in living
            for logprob, token in zip(best.values[w].tolist(), best.indices[w].tolist(), strict=True)
            if logprob > -torch.inf and (w, token) not in taken
        ]
        found.sort(key=lambda each: -each[0])
        return [(w, token) for _, w, token in found[: self.beam_size]]

    def _add(
        self, parent: int, step: int, token: int, logprob: float, before: float, fate: str, forced: bool = False
    ) -> dict[str, Any]:
        total = before + logprob
        node = {
            "id": len(self.nodes),
            "parent": parent,
            "step": step,
            "token": self.tokens.one(token),
            "logprob": finite(logprob),
            "sum": finite(total),
            "score": finite(total / length_penalty(step + 1, self.alpha)),
            "fate": fate,
            "forced": forced,
        }
        self.nodes.append(node)
        return node

    def path(self, node: int) -> list[int]:
        """The nodes from the first one to this one."""
        found: list[int] = []
        while node >= 0:
            found.append(node)
            node = self.nodes[node]["parent"]
        return found[::-1]

    def finish(self, best: Hypothesis) -> None:
        """Marks the path of the hypothesis that was chosen."""
        kept = (node for node in self.nodes if node["fate"] != "dropped")
        at = {(node["parent"], node["token"]["id"]): node for node in kept}
        last = -1
        for index in (*best.ids, *([self.eos_id] if best.finished else [])):
            at[last, index]["fate"] = "best"
            last = at[last, index]["id"]
        if last >= 0 and last not in (each for each, _ in self.ended):  # nothing was allowed behind it
            self.ended.append((last, False))

    def hypotheses(self) -> list[dict[str, Any]]:
        """Those that were finished, best first."""
        told = []
        for last, finished in self.ended:
            path = self.path(last)
            ids = [self.nodes[each]["token"]["id"] for each in path]
            text = self.tokens.tokenizer.decode(ids[:-1] if finished else ids)
            told.append({"text": text, "score": self.nodes[last]["score"], "nodes": path, "finished": finished})
        return sorted(told, key=lambda each: -each["score"])


def steps(tree: Tree, model: Any, logprobs_TV: Tensor, n_source: int, n_prompt: int) -> list[dict[str, Any]]:
    """Of each step what was offered, and what it cost one hypothesis.

    Args:
        logprobs_TV: Of the chosen target under teacher forcing, for the steps that were forced.
        n_source: Tokens that the encoder read; 0 without one.
        n_prompt: Tokens that the decoder had read before the target's first: ``<s>``, or a prompt.
    """
    count = tree.forced + len(tree.rows)
    told, spent = [], Costs(model, n_source, n_prompt + count)
    for place in range(count):
        if place < tree.forced:
            candidates = tree.tokens.candidates(logprobs_TV[place], CANDIDATES)
            rows = [{"node": place - 1, "candidates": candidates}]
        else:
            rows = tree.rows[place - tree.forced]
        told.append({"rows": rows, **spent.step(n_prompt + place, n_prompt if place == 0 else 1)})
    return told


class Costs:
    """Arithmetic and memory of decoding one hypothesis of at most ``longest`` tokens, as `models.describe` counts."""

    def __init__(self, model: Any, n_source: int, longest: int) -> None:
        self.n_source, self.kept = n_source, cost(model, 1)
        cross = sum(module.query.out_features for module in model.modules() if isinstance(module, CrossAttention))
        first, second, last = (cost(model, context).flops_per_target for context in (1, 2, longest))
        own = [first + (second - first) * place for place in range(longest)]
        if own[-1] != last:  # a window: what a token costs stops growing there
            own = [cost(model, context).flops_per_target for context in range(1, longest + 1)]
        # The count takes one context for both attentions; cross-attention sees the source instead.
        self.tokens = [flops + 4 * cross * (n_source - place) for place, flops in enumerate(own, 1)]
        """Forward FLOPs of each token, which sees those before it and itself."""

    def step(self, length: int, new: int) -> dict[str, int]:
        """Of a step that reads the last ``new`` of ``length`` tokens; without a cache it reads them all."""
        every = self.tokens[:length]
        memory = self.kept.cache_per_target * length + self.kept.cache_per_source * self.n_source
        return {
            "cache_tokens": length,
            "cache_bytes": memory + getattr(self.kept, "state", 0),
            "flops": sum(every[length - new :]),
            "flops_without_cache": sum(every),
        }

"""The tree of a search, watched on toys whose every distribution can be looked up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from glassformer.explore.decoding import Tree
from glassformer.generate.beam import search
from glassformer.generate.config import SearchConfig
from glassformer.generate.constraints import Constraints
from tests.toys import EOS, TableModel, batch, request, score, teacher_forced

SOURCE = (3, 4, 5)


class Ids:
    """Tokens that are their own names."""

    tokenizer = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))

    def one(self, index: int) -> dict[str, Any]:
        return {"id": index}

    def candidates(self, logprobs_V, count: int) -> list[dict[str, Any]]:
        best = logprobs_V.topk(min(count, len(logprobs_V)))
        return [
            {"token": {"id": i}, "logprob": p} for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


@pytest.mark.parametrize("prefix", [(), (3,), (3, 6)])
@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_watching_changes_nothing_and_sees_the_hypotheses_that_are_found(beam_size: int, prefix: tuple) -> None:
    for seed in range(12):
        model, alpha = TableModel(seed, 8), (seed % 3) / 2
        config = SearchConfig(beam_size, 1, alpha, max_new_tokens=5)
        asked = request(constraints=[Constraints(prefix)])
        tree = Tree(Ids(), beam_size, alpha, EOS)
        found = search(model, *batch([SOURCE]), config, asked, tree)[0]
        assert found == search(TableModel(seed, 8), *batch([SOURCE]), config, asked)[0]
        best = found[0]
        tree.finish(best)
        told = tree.hypotheses()
        assert told[0]["text"] == " ".join(map(str, best.ids)) and told[0]["finished"] == best.finished
        assert told[0]["score"] == pytest.approx(best.score, abs=1e-6)
        path = [tree.nodes[each] for each in told[0]["nodes"]]
        assert all(node["fate"] == "best" for node in path)
        assert sum(node["fate"] == "best" for node in tree.nodes) == len(path)
        for each in told:
            ids = [tree.nodes[node]["token"]["id"] for node in each["nodes"]]
            assert ids[: len(prefix)] == list(prefix)
            looked_up = teacher_forced(model, SOURCE, tuple(ids), False)
            assert [tree.nodes[node]["logprob"] for node in each["nodes"]] == pytest.approx(looked_up, abs=1e-5)
            assert each["score"] == pytest.approx(score(looked_up, alpha), abs=1e-5)


def test_losers_are_the_best_that_were_allowed_and_not_kept() -> None:
    model = TableModel(3, 8)
    tree = Tree(Ids(), 2, 0.0, EOS)
    search(model, *batch([SOURCE]), SearchConfig(2, 1, 0.0, max_new_tokens=4), request(), tree)
    first = [node for node in tree.nodes if node["step"] == 0]
    logprobs = model.logprobs(SOURCE, ())
    allowed = sorted((index for index in range(2, 8)), key=lambda index: -logprobs[index])
    assert [node["token"]["id"] for node in first if node["fate"] != "dropped"] == allowed[:2]
    assert [node["token"]["id"] for node in first if node["fate"] == "dropped"] == allowed[2:4]

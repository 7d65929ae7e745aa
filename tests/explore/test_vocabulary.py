"""What each id of the output means."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("name", ["translator", "writer", "masked", "zh-en"])
def test_ids_mean_what_a_run_says(client, name: str) -> None:
    told = client.get(f"/api/models/{name}/vocabulary").json()
    size = client.get(f"/api/models/{name}").json()["vocab_size"]
    assert len(told["pieces"]) == len(told["texts"]) == size
    run = client.post("/api/runs", json={"model": name, "text": "I like [MASK]."}).json()
    for token in run["labels"] or [each["token"] for mask in run["output"]["masks"] for each in mask["candidates"]]:
        assert told["pieces"][token["id"]] == token["piece"]
        assert told["texts"][token["id"]] == token["text"]
        assert (token["id"] in told["special"]) == token["special"]


def test_a_model_of_images_names_no_pieces(client) -> None:
    answer = client.get("/api/models/classes/vocabulary")
    assert answer.status_code == 404 and "tokenizer" in answer.json()["error"]

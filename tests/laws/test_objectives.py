"""The laws of what is learnt: what noise hides and never touches, what packing keeps, losses by independent sums."""

from __future__ import annotations

import json
import random
import runpy
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer as gf
from glassformer.answerer import Answerer
from glassformer.classifier import Classifier
from glassformer.data.collate import IGNORE, Labelled, pad
from glassformer.embedder import Embedder
from glassformer.errors import UserError
from glassformer.families import build, presets
from glassformer.generator import Generator
from glassformer.store import load_model
from glassformer.tagger import Tagger
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.config import load_config
from glassformer.train.distributed import World
from glassformer.train.launch import Stop, launch
from glassformer.train.loop import Trainer, train
from glassformer.train.objectives import build_objective, noise, token_loss
from glassformer.train.objectives.documents import continuing_ids, pack, with_specials
from glassformer.train.objectives.images import shifted
from glassformer.train.objectives.labels import figures
from glassformer.train.objectives.loss import label_loss
from glassformer.translator import Translator
from tests.conftest import REPOSITORY
from tests.laws.test_resume import assert_same_end, kill, stop_after, train_until_killed
from tests.randomised import randomise

SPECIAL, MASK = {0, 1, 2, 3}, 3
TEXT = st.lists(st.integers(10, 59), min_size=2, max_size=80)


@given(st.lists(st.integers(0, 59), min_size=1, max_size=80), st.floats(0.01, 0.99), st.integers())
def test_masks_hide_the_share_and_never_a_special_token(ids, share, seed):
    rng = random.Random(seed)
    read, labels = noise.mask_tokens(ids, rng, share=share, mask_id=MASK, ordinary=range(10, 60), special=SPECIAL)
    chosen = [place for place, label in enumerate(labels) if label != IGNORE]
    usual = [token for token in ids if token not in SPECIAL]
    assert len(chosen) == (max(1, round(share * len(usual))) if usual else 0)
    for place, token in enumerate(ids):
        if place in chosen:
            assert labels[place] == token not in SPECIAL and (read[place] in (MASK, token) or read[place] >= 10)
        else:
            assert read[place] == token


def test_of_the_hidden_tokens_80_percent_are_masked_10_replaced_and_10_kept():
    rng, counts = random.Random(5), Counter()
    for _ in range(400):
        ids = [rng.randrange(10, 10_000) for _ in range(200)]
        read, labels = noise.mask_tokens(
            ids, rng, share=0.15, mask_id=MASK, ordinary=range(10, 10_000), special=SPECIAL
        )
        for token, seen, label in zip(ids, read, labels, strict=True):
            if label != IGNORE:
                counts["mask" if seen == MASK else "kept" if seen == token else "replaced"] += 1
    total = sum(counts.values())
    assert total == 400 * 30
    for kind, share in (("mask", 0.8), ("replaced", 0.1), ("kept", 0.1)):
        deviation = (share * (1 - share) / total) ** 0.5
        assert abs(counts[kind] / total - share) < 4 * deviation, kind


@given(st.lists(st.lists(st.integers(30, 59), max_size=4), min_size=1, max_size=20), st.integers())
def test_whole_words_are_hidden_whole_or_not_at_all(tails, seed):
    words = [[10 + index % 20, *tail] for index, tail in enumerate(tails)]
    ids = [1, *(token for word in words for token in word), 2]
    _, labels = noise.mask_tokens(
        ids,
        random.Random(seed),
        share=0.4,
        mask_id=MASK,
        ordinary=range(10, 60),
        special=SPECIAL,
        continues=range(30, 60),
    )
    at, hidden = 1, 0
    for word in words:
        states = {label != IGNORE for label in labels[at : at + len(word)]}
        assert len(states) == 1
        at, hidden = at + len(word), hidden + len(word) * states.pop()
    assert 0 < hidden <= max(round(0.4 * (len(ids) - 2)), max(map(len, words)))


def test_words_are_told_by_every_kind_of_tokenizer():
    lines = ["the unbelievable unbelievers believe, 我喜欢打篮球"] * 9 + ["understanding undone"] * 3
    for kind, text in (("bpe", "the unbelieving, undone 我喜欢"), ("wordpiece", "the undone 我喜欢")):
        tokenizer = Tokenizer.train(lines, kind=kind, vocab_size=400 if kind == "bpe" else 120, min_frequency=1)
        pieces = [tokenizer.id_to_token(index) for index in range(tokenizer.vocab_size)]
        continues = continuing_ids(pieces, kind)
        words: list[list[int]] = []
        for token in tokenizer.encode(text):
            if token in continues and words:
                words[-1].append(token)
            else:
                words.append([token])
        told = [tokenizer.decode(word).strip() for word in words]
        assert told[:2] == text.replace(",", "").split()[:2]
        assert "undone" in told
        assert not continues & set(tokenizer.encode("欢我打"))  # a word each


@given(TEXT, st.floats(0.05, 0.6), st.floats(1.0, 6.0), st.integers())
def test_span_corruption_inverts(ids, share, mean, seed):
    sentinels = list(range(100, 200))
    source, target = noise.corrupt_spans(ids, random.Random(seed), sentinels=sentinels, share=share, mean=mean)
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in sentinels:
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    rebuilt = [t for token in source for t in (spans[token] if token in sentinels else [token])]
    assert rebuilt == ids
    used = [token for token in source if token in sentinels]
    assert used == sentinels[: len(used)] and list(spans) == sentinels[: len(used) + 1] and not spans[target[-1]]
    hidden = sum(map(len, spans.values()))
    assert hidden == min(max(round(len(ids) * share), 1), len(ids) - 1)
    assert len(used) == min(max(round(hidden / mean), 1), len(ids) - hidden)
    assert all(spans[token] for token in used) and all(
        not (a in sentinels and b in sentinels) for a, b in zip(source, source[1:], strict=False)
    )


@given(TEXT, st.floats(0.05, 0.6), st.integers())
def test_infilling_keeps_the_rest_in_its_order(ids, share, seed):
    noisy = noise.infill(ids, random.Random(seed), mask_id=MASK, share=share, mean=3.0)
    kept = [token for token in noisy if token != MASK]
    assert len(kept) == len(ids) - round(share * len(ids))
    rest = iter(ids)
    assert all(token in rest for token in kept)  # a subsequence
    assert all((a, b) != (MASK, MASK) for a, b in zip(noisy, noisy[1:], strict=False))


def test_lengths_of_infilled_spans_are_poisson():
    rng = random.Random(1)
    lengths = [noise._poisson(3.0, rng) for _ in range(20_000)]
    assert abs(np.mean(lengths) - 3) < 0.06 and abs(np.var(lengths) - 3) < 0.15
    assert abs(lengths.count(0) / 20_000 - np.exp(-3.0)) < 0.006


@given(st.lists(st.lists(st.integers(10, 50), max_size=5), min_size=1, max_size=8), st.integers())
def test_sentences_are_shuffled_whole(sentences, seed):
    marked = [[*sentence, 99] for sentence in sentences]
    ids = [token for sentence in marked for token in sentence]
    shuffled = noise.permute_sentences(ids, random.Random(seed), {99})
    found: list[list[int]] = [[]]
    for token in shuffled:
        found[-1].append(token)
        if token == 99:
            found.append([])
    assert sorted(found[:-1]) == sorted(marked) and not found[-1]


DOCUMENTS = st.lists(st.lists(st.integers(10, 59), min_size=1, max_size=30), min_size=1, max_size=8)


@given(DOCUMENTS, st.integers(2, 20), st.data())
def test_packing_loses_nothing_and_repeats_nothing(documents, room, data):
    offset = data.draw(st.integers(0, room - 1))
    stream = [token for document in documents for token in [*document, 2]]
    packed = pack(documents, [2], room, offset)
    assert [token for row in packed for token in row] == stream
    assert all(len(row) == room for row in packed[1:-1]) and max(map(len, packed)) <= room
    apart = pack(documents, [2], room, None)
    assert [token for row in apart for token in row] == stream
    begins = {sum(map(len, apart[:index])) for index in range(len(apart))}
    assert begins >= {sum(len(document) + 1 for document in documents[:n]) for n in range(len(documents))}


SMALL = {
    "gpt2-tiny": dict(vocab_size=60, dropout=0.0),
    "bert-tiny": dict(d_model=16, n_heads=2, d_ff=24, vocab_size=60, max_len=64, dropout=0.0),
}


def small(preset: str, **more):
    return randomise(build(preset, **{**SMALL[preset], **more})).eval()


def by_sums(model, rows) -> float:
    """The negative log-likelihood of every label, one row and one position at a time."""
    total = 0.0
    for read, labels in rows:
        logits = model(torch.tensor([read]))[0].double()
        total -= sum(
            float(logits[place].log_softmax(-1)[label]) for place, label in enumerate(labels) if label != IGNORE
        )
    return total


@pytest.mark.parametrize(("preset", "head"), [("gpt2-tiny", None), ("bert-tiny", {"type": "masked-lm"})])
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_places_is_the_sum_over_labels_in_any_batch(preset, head, seed):
    rng = random.Random(seed)
    model = small(preset, **({"head": head} if head else {}))
    rows = []
    for _ in range(8):
        read = [rng.randrange(4, 60) for _ in range(rng.randrange(1, 20))]
        rows.append((read, [rng.choice([IGNORE, rng.randrange(4, 60)]) for _ in read]))
    rows[0][1][0] = 7

    def losses(chosen):
        ids_BT, mask_BT = pad([read for read, _ in chosen], 0)
        labels_BT, _ = pad([labels for _, labels in chosen], IGNORE)
        batch = Labelled((ids_BT, mask_BT), labels_BT, int((labels_BT != IGNORE).sum()))
        return [float(each) for each in token_loss(model, batch, smoothing=0.0, pad_id=0)]

    together, apart = losses(rows), [losses([row]) for row in rows if any(label != IGNORE for label in row[1])]
    assert together[0] == pytest.approx(by_sums(model, rows), rel=1e-5) == pytest.approx(together[1], rel=1e-5)
    assert sum(loss for loss, _ in apart) == pytest.approx(together[0], rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_labels_is_torch_s_cross_entropy(smoothing):
    labels = [f"l{index}" for index in range(5)]
    model = small("bert-tiny", head={"type": "classifier", "labels": labels})
    rows = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
    ids_BT, mask_BT = pad(rows, 0)
    batch = Labelled((ids_BT, mask_BT), torch.tensor([0, 4, 2]), 3)
    loss, nll = label_loss(model, batch, smoothing=smoothing)
    logits = torch.cat([model(torch.tensor([row])) for row in rows]).double()
    expected = F.cross_entropy(logits, batch.labels, label_smoothing=smoothing, reduction="sum")
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert float(nll) == pytest.approx(float(F.cross_entropy(logits, batch.labels, reduction="sum")), rel=1e-5)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_accuracy_and_f1_are_their_definitions(pairs):
    table = torch.zeros(4, 4, dtype=torch.float64)
    for true, guessed in pairs:
        table[true, guessed] += 1
    scores = []
    for label in {value for pair in pairs for value in pair}:
        both = sum(pair == (label, label) for pair in pairs)
        guesses, truths = (sum(pair[side] == label for pair in pairs) for side in (1, 0))
        precision, recall = both / guesses if guesses else 0.0, both / truths if truths else 0.0
        scores.append(2 * precision * recall / (precision + recall) if both else 0.0)
    right = sum(true == guessed for true, guessed in pairs) / len(pairs)
    assert figures(table) == pytest.approx({"accuracy": 100 * right, "macro-f1": 100 * sum(scores) / len(scores)})


@given(st.integers(-3, 3), st.integers(-3, 3))
def test_a_shifted_image_is_black_where_nothing_was(down, right):
    image = np.random.default_rng(0).random((2, 5, 4), np.float32) + 1
    moved = shifted(image, down, right)
    for row in range(5):
        for column in range(4):
            inside = 0 <= row - down < 5 and 0 <= column - right < 4
            expected = image[:, row - down, column - right] if inside else 0
            assert (moved[:, row, column] == expected).all()


# Whole runs, each over a few lines of made-up text.

WORDS = ["the", "cat", "dog", "sees", "likes", "a", "red", "bird", "and", "runs"]
BERT = {"preset": "bert-tiny", "d_model": 16, "n_heads": 2, "d_ff": 24, "max_len": 40}
RUNS = {
    "causal-lm": ({"preset": "gpt2-tiny", "dropout": 0.2}, {}, Generator),
    "masked-lm": (BERT, {"whole_words": True}, Embedder),
    "span-corruption": ({"preset": "t5-tiny", "dropout": 0.2}, {}, Translator),
    "denoising": ({"preset": "bart-tiny"}, {}, Translator),
    "classification": (BERT, {"hidden": "tanh"}, Classifier),
    "classification by a decoder": ({"preset": "gpt2-tiny", "dropout": 0.2}, {}, Classifier),
    "classification of pairs": (BERT, {}, Classifier),
    "token-classification": (BERT, {}, Tagger),
    "extractive-qa": (BERT, {}, Answerer),
    "images": ({"preset": "vit-tiny", "image_size": 4, "patch_size": 2, "channels": 1}, {"shift": 1}, Classifier),
}


def run_config(folder: Path, name: str, **settings) -> dict:
    """A tiny run of an objective over files written to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(3)

    def sentence() -> list[str]:
        return [rng.choice(WORDS) for _ in range(rng.randint(3, 12))]

    model, objective, _ = RUNS[name]
    file, data = folder / "train.tsv", {"dev_share": 0.2, "max_len": 24}
    if name == "images":
        file = folder / "train.csv"
        images = [[*(str(rng.randrange(17)) for _ in range(16)), rng.choice("012")] for _ in range(60)]
        file.write_text("".join(",".join(row) + "\n" for row in images))
        data |= {"white": 16}
    elif name == "classification of pairs":
        # What is first in one text and second in the other: only segments and places tell.
        pairs = [rng.sample(["cat", "dog"], 2) for _ in range(60)]
        file.write_text("a\tb\tlabel\n" + "".join(f"the {a}\ta {b}\t{a}-{b}\n" for a, b in pairs))
        data |= {"text": ["a", "b"]}
    elif name == "extractive-qa":
        rows = [" ".join(sentence()) for _ in range(60)]
        asked = [(f"{text.split()[1]} ?", text, " ".join(text.split()[2:])) for text in rows]
        file = folder / "train.jsonl"
        keys = ("question", "context", "answer")
        file.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in asked))
        data |= {"max_len": 40}
    elif name.startswith("classification"):
        rows = [(" ".join(words), "cat" if "cat" in words else "none") for words in (sentence() for _ in range(60))]
        file.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    elif name == "token-classification":
        rows = [[f"{word}\t{'N' if len(word) == 3 else 'O'}\n" for word in sentence()] for _ in range(60)]
        file.write_text("\n".join("".join(row) for row in rows))
    else:
        file = folder / "train.txt"
        file.write_text("".join(" ".join(sentence()) + ".\n" for _ in range(60)))
        data |= {"document": "line"}
    kind = "classification" if name == "images" else name.split()[0]
    base = {"output": str(folder / "run"), "steps": 8, "batch_tokens": 200, "workers": 1, "precision": "fp32"}
    base |= {"warmup": 2, "eval_every": 4, "save_every": 3, "eval_lines": 4}
    return {
        "model": model,
        "tokenizer": {"vocab_size": 300},
        "objective": {"type": kind, **objective},
        "data": {"train": str(file), **data},
        "train": {**base, **settings},
    }


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_resumed_exactly_and_its_model_is_of_its_kind(tmp_path, monkeypatch, name):
    whole = train(run_config(tmp_path / "whole", name))
    with monkeypatch.context() as patch:
        stop_after(patch, 5, kill)
        train_until_killed(run_config(tmp_path / "killed", name))
    assert train(run_config(tmp_path / "killed", name), resume=True).step == 8
    if name == "images":  # which have no tokenizer
        (whole.run / "last/tokenizer.json").touch(), (whole.run / "best/tokenizer.json").touch()
        for place in ("last", "best"):
            (tmp_path / "killed/run" / place / "tokenizer.json").touch()
    assert_same_end(whole.run, tmp_path / "killed" / "run")
    if name == "images":
        for place in ("last", "best"):
            (whole.run / place / "tokenizer.json").unlink()
    opened, kind = gf.load(whole.run / "best"), RUNS[name][2]
    assert isinstance(opened, kind)
    if kind is Generator:
        assert isinstance(opened.generate("the cat", max_new_tokens=4), str)
    elif kind is Embedder:
        assert opened.embed(["the cat"]).shape == (1, 16)
    elif kind is Translator:
        assert isinstance(opened.translate("the cat"), str)
    elif name == "classification of pairs":
        assert set(opened.classify(("the cat", "a dog"))["probabilities"]) == {"cat-dog", "dog-cat"}
    elif name == "extractive-qa":
        passage = "the cat sees a red dog"
        told = opened.answer("cat ?", passage)
        assert told["answer"] == (passage[told["start"] : told["end"]] if told["answer"] else "")
    elif name.startswith("classification"):
        assert set(opened.classify("the cat")["probabilities"]) == {"cat", "none"}
    elif name == "token-classification":
        assert opened.labels == ("N", "O") and [each["word"] for each in opened.classify("a cat!")["words"]] == [
            "a",
            "cat",
            "!",
        ]
    logged = [json.loads(line) for line in (whole.run / "log.jsonl").read_text().splitlines()]
    assert {"dev_loss", "train_nll"} <= logged[-1].keys()


def first_gradient(folder: Path, name: str, world: World, **settings):
    config = run_config(folder / f"rank{world.rank}", name, clip=None, **settings)
    config["model"] = {**config["model"], "dropout": 0.0}
    (folder / f"rank{world.rank}" / "run").mkdir()
    made = Trainer(load_config(config), world, Stop(), resume=False)
    made._begin_epoch()
    seen = []
    made._report = lambda loss, norm, rate, tokens: seen.append((loss, norm, tokens))
    made._step(made._batches[: settings.get("accumulate", 1)])
    return seen[0], made.gradients[:-5].tolist()


def _work(argument, stop):
    return {name: first_gradient(argument / name, name, World(), accumulate=2) for name in RUNS}


@pytest.mark.slow
def test_two_workers_step_as_one_does_whatever_is_learnt(tmp_path):
    one = {name: first_gradient(tmp_path / "one" / name, name, World(), accumulate=2) for name in RUNS}
    two = launch(_work, tmp_path / "two", workers=2)
    for name in RUNS:
        assert two[name][0] == pytest.approx(one[name][0], rel=1e-4), name
        assert max(map(abs, one[name][1])) > 1e-4, name
        torch.testing.assert_close(
            torch.tensor(two[name][1]), torch.tensor(one[name][1]), atol=1e-6, rtol=1e-4, msg=name
        )


def test_fine_tuning_keeps_what_both_models_have(tmp_path):
    first = train(run_config(tmp_path / "first", "masked-lm")).run
    config = run_config(tmp_path / "second", "classification", lr=1e-12, steps=1)
    second = train({**config, "model": {"from": str(first / "best")}}).run
    before, after = (load_model(path).model.state_dict() for path in (first / "best", second / "last"))
    shared = [name for name in after if not name.startswith("head.")]
    assert shared and all(torch.allclose(before[name], after[name], atol=1e-6) for name in shared)
    assert (first / "best/tokenizer.json").read_bytes() == (second / "last/tokenizer.json").read_bytes()
    assert after["head.output.weight"].shape == (2, 16)


@given(st.integers(0, 5))
@settings(max_examples=3)
def test_the_causal_rows_predict_every_token_once(seed):
    """Whole runs pack at another place each epoch, and read `<s>` before each row."""
    tokenizer = Tokenizer.train([" ".join(WORDS)] * 3, vocab_size=290)
    assert with_specials(tokenizer, ["<mask>"]).token_to_id("<mask>") == tokenizer.vocab_size - 1
    assert with_specials(tokenizer, []) is tokenizer
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        config = load_config(run_config(Path(folder), "causal-lm"))
        objective = build_objective(config, None)
        epochs = [objective.sampled(seed, epoch) for epoch in range(2)]
        streams = [[token for row in rows for token in row.labels] for rows in epochs]
        texts = [line for line in Path(config.data.train).read_text().splitlines()][:48]
        ids = [token for text in objective.tokenizer.encode_batch(texts) for token in [*text, 2]]
        for rows, stream in zip(epochs, streams, strict=True):
            assert len(ids) - len(stream) <= 2  # a row of one token is left out
            assert all(row.read == [1, *row.labels[:-1]] and len(row.read) <= 24 for row in rows)
        assert epochs[0] != epochs[1] and objective.sampled(seed, 1) == epochs[1]


@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [("masked-lm", "bert-base-chinese"), ("causal-lm", "sentencepiece/test_model.model"), ("causal-lm", "gpt2")],
)
def test_tokenizers_of_others_are_learnt_with(tmp_path, shared, name, tokenizer):
    config = run_config(tmp_path, name, steps=1, save_every=1, eval_every=1)
    config["model"] |= {"d_model": 16, "n_heads": 2}
    config["tokenizer"] = {"from": str(shared / "data/checkpoints/tokenizers" / tokenizer)}
    opened = gf.load(train(config).run / "best")
    text = "the red bird"
    assert opened.tokenizer.decode(opened.tokenizer.encode(text)) == text
    if name == "masked-lm":
        assert opened.tokenizer.token_to_id("<mask>") is None and opened.model.config.embed.vocab_size == 21128
        assert opened.framing.before == (101,) and opened.framing.after == (102,)


def test_a_run_of_another_objective_is_not_gone_on_with(tmp_path):
    config = run_config(tmp_path, "classification", steps=1, save_every=1)
    train(config)
    with pytest.raises(UserError, match="objective.type is 'classification', and 'masked-lm' does not fit"):
        train({**config, "objective": {"type": "masked-lm"}}, resume=True)


def test_segments_tell_two_texts_apart(tmp_path):
    """Both texts have the same words in all rows: the label lies in which stands in which."""
    quick = dict(steps=50, lr=1e-2, warmup=5, eval_every=50, save_every=50, batch_tokens=600)
    opened = gf.load(train(run_config(tmp_path, "classification of pairs", **quick)).run / "last")
    told = opened.classify([("the cat", "a dog"), ("the dog", "a cat")])
    assert [each["label"] for each in told] == ["cat-dog", "dog-cat"]
    assert min(each["probability"] for each in told) > 0.9


def test_the_loss_of_spans_is_that_of_two_choices_of_a_place(tmp_path):
    objective = build_objective(load_config(run_config(tmp_path, "extractive-qa")), None)
    model = randomise(objective.model, 3).eval()
    batch = objective.batch(objective.sampled(0, 0), range(7))
    loss, nll = objective.loss(model, batch, 0.0)
    assert float(loss) == float(nll) and batch.n_labels == 14
    expected = 0.0
    for example in objective.sampled(0, 0)[:7]:
        with torch.no_grad():
            logits_T2 = model(torch.tensor([example.ids]), None, torch.tensor([example.types]))[0].double()
        expected -= sum(float(logits_T2[:, side].log_softmax(0)[place]) for side, place in enumerate(example.label))
        ids = example.ids[example.label[0] : example.label[1] + 1]
        passage = objective.tokenizer.decode([example.ids[place] for place in example.places])
        assert objective.tokenizer.decode(ids).split() == passage.split()[2:]
    assert float(nll) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_model_learns_to_answer_and_to_say_that_there_is_no_answer(tmp_path):
    """The recipe's reports, a quarter of its steps."""
    reports = runpy.run_path(str(REPOSITORY / "recipes/facts.py"))
    rng = random.Random(4)
    for name, count in (("train", 3000), ("dev", 200)):
        rows = "".join(json.dumps(reports["question"](rng)) + "\n" for _ in range(count))
        (tmp_path / f"{name}.jsonl").write_text(rows, encoding="utf-8")
    config = yaml.safe_load((REPOSITORY / "recipes/bert-facts.yaml").read_text("utf-8"))
    config["data"] |= {"train": str(tmp_path / "train.jsonl"), "dev": str(tmp_path / "dev.jsonl")}
    config["train"] |= {
        "output": str(tmp_path / "run"),
        "steps": 120,
        "eval_every": 120,
        "workers": 1,
        "precision": "fp32",
    }
    opened = gf.load(train(config).run / "best")
    asked = [reports["question"](rng) for _ in range(200)]
    told = opened.classify([(row["question"], row["context"]) for row in asked])
    right = [row["answer"] == said["answer"] for row, said in zip(asked, told, strict=True)]
    assert sum(right) > 0.8 * len(right)
    assert sum(said["answer"] == "" for said in told) > 10


TINY = {name: family.kind for name, (family, _) in presets().items() if name.endswith("-tiny")}
LEARNS = {"decoder": "causal-lm", "encoder": "masked-lm", "encoder-decoder": "denoising"}


@pytest.mark.slow
@pytest.mark.parametrize("preset", TINY)
def test_every_family_learns(tmp_path, monkeypatch, preset):
    """The loss of few lines, shown again and again, falls by more than noise."""
    name = "images" if preset.startswith("vit") else LEARNS[TINY[preset]]
    config = run_config(tmp_path, name, steps=40, lr=5e-3, schedule="constant", eval_every=40, save_every=40)
    config["model"] = {**config["model"], "preset": preset} if name == "images" else {"preset": preset}
    losses: list[float] = []
    monkeypatch.setattr(Trainer, "_report", lambda self, loss, norm, rate, tokens: losses.append(loss))
    train(config)
    assert np.mean(losses[-8:]) < np.mean(losses[:4]) * (0.98 if name == "images" else 0.8)

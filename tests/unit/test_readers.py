"""Words to labels, questions to answers: each as the model alone says, at the right place of the text."""

from __future__ import annotations

import json
import random
import re
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import glassformer as gf
from glassformer.answerer import Answerer
from glassformer.cli.main import main
from glassformer.data.labelled import read_labelled
from glassformer.data.questions import read_questions
from glassformer.engines.model import ModelEngine
from glassformer.errors import UserError
from glassformer.header import Framing
from glassformer.store import save_model
from glassformer.tagger import Tagger, entities
from glassformer.text.spans import best_span, encode_question
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.words import encode_words
from tests.randomised import randomise

WORDS = ["the", "cat", "sat", "on", "a", "mat", "two", "dogs", "我", "爱", "你", "naïve"]
LABELS = ["O", "B-X", "I-X", "B-Y", "I-Y"]
MAX_LEN = 40


@pytest.fixture(scope="module", params=["bpe", "wordpiece", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS)] * 3, vocab_size=400, kind=request.param)


def reader(kind: Any, tokenizer: Tokenizer, head: dict[str, Any], **more: Any) -> Any:
    sizes = dict(d_model=16, n_heads=2, d_ff=16, n_layers=2, max_len=MAX_LEN, vocab_size=tokenizer.vocab_size)
    model = randomise(gf.build("bert-tiny", head=head, **{**sizes, **more}), 4).eval()
    return kind(ModelEngine(model), tokenizer, Framing.of(tokenizer, "encoder"))


def answerer(tokenizer: Tokenizer, **more: Any) -> Answerer:
    return reader(Answerer, tokenizer, dict(type="span"), **more)


def tagger(tokenizer: Tokenizer) -> Tagger:
    return reader(Tagger, tokenizer, dict(type="token-classifier", labels=LABELS))


def text(rng: random.Random, most: int = 9) -> str:
    return "".join(rng.choice(WORDS) + rng.choice(["  ", " ", ", ", ". "]) for _ in range(rng.randint(1, most)))


NUMBERS = st.floats(-9, 9, width=32)


@given(st.data(), st.integers(1, 4), st.integers(1, 12), st.integers(1, 12))
def test_the_best_span_is_that_of_all_spans_one_by_one(data, before, length, longest):
    rows = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=before + length + 1, max_size=before + length + 1)
    logits_T2 = np.array(data.draw(rows), np.float32)
    places = range(before, before + length)

    def probability(place: int, side: int) -> float:
        scores = logits_T2[[0, *places], side].astype(np.float64)
        return float(np.exp(logits_T2[place, side].astype(np.float64)) / np.exp(scores).sum())

    spans = [(0, 0), *((a, b) for a in places for b in places if a <= b < a + longest)]
    scores = {span: probability(span[0], 0) * probability(span[1], 1) for span in spans}
    found = best_span(logits_T2, places, longest)
    assert found.probability == pytest.approx(max(scores.values()), rel=1e-6)
    assert scores[found.first, found.last] == pytest.approx(max(scores.values()), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_is_found_again_where_it_stands(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        passage, question = text(rng, 14), text(rng)
        spans = [match.span() for match in re.finditer(r"\w+", passage)]
        start, end = sorted((rng.choice(spans), rng.choice(spans)))
        row = encode_question(tokenizer, question, passage)
        place = row.find(start[0], end[1])
        if tokenizer.kind == "bpe" and place is None:  # a piece may spell 我爱 together with what follows
            continue
        assert place is not None
        a, b = row.characters(passage, *place)
        assert passage[a:b].startswith(passage[start[0] : end[1]]) or passage[start[0] : end[1]] in passage[a:b]
        said = tokenizer.decode(row.ids[place[0] : place[1] + 1]).split()
        assert "".join(said) == "".join(tokenizer.decode(tokenizer.encode(passage[a:b])).split())
        for limit in range(4, len(row.ids)):
            cut = encode_question(tokenizer, question, passage, limit)
            kept = cut.find(start[0], end[1])
            assert cut.cut and len(cut.ids) == limit and (kept is None) == (len(cut.places) <= place[1] - row.places[0])
            assert kept is None or cut.ids[kept[0] : kept[1] + 1] == row.ids[place[0] : place[1] + 1]


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@torch.no_grad()
def test_answers_are_those_that_each_pair_would_get_alone(tokenizer: Tokenizer, batch_size: int) -> None:
    rng, reads = random.Random(1), answerer(tokenizer)
    pairs = [(text(rng, 4), text(rng, 12)) for _ in range(9)]
    for pair, told in zip(pairs, reads.classify(pairs, batch_size=batch_size), strict=True):
        row = encode_question(tokenizer, *pair, MAX_LEN)
        logits = reads.model(torch.tensor([row.ids]), None, torch.tensor([row.types]))[0].numpy()
        span = best_span(logits, row.places)
        assert told["probability"] == pytest.approx(span.probability, abs=1e-5) and told["truncated"] == row.cut
        if span.first:
            assert (told["start"], told["end"]) == row.characters(pair[1], span.first, span.last)
            assert told["answer"] == pair[1][told["start"] : told["end"]] == told["answer"].strip()
        else:
            assert (told["answer"], told["start"], told["end"]) == ("", None, None)
    assert reads.answer(*pairs[0]) == pytest.approx(reads.classify(pairs[0]))
    for bad in ("a text", ["a", "b"], [("a", 5)], 5):
        with pytest.raises(UserError):
            reads.classify(bad)


@pytest.mark.parametrize("tokenizer", ["wordpiece"], indirect=True)
def test_answers_are_those_of_their_pipeline(tokenizer: Tokenizer, tmp_path: Path) -> None:
    reads, rng = answerer(tokenizer, max_len=120), random.Random(2)
    gf.convert(_saved(reads, tmp_path / "ours"), tmp_path / "theirs", "hf")
    model = transformers.BertForQuestionAnswering.from_pretrained(tmp_path / "theirs").eval()
    for _ in range(6):
        question, passage = text(rng), text(rng, 12)
        row = encode_question(tokenizer, question, passage)
        with torch.no_grad():
            out = model(torch.tensor([row.ids]), token_type_ids=torch.tensor([row.types]))
        start, end = (scores[0, row.places].double() for scores in (out.start_logits, out.end_logits))
        best = max(
            ((a, b) for a in range(len(start)) for b in range(a, len(start))), key=lambda s: start[s[0]] + end[s[1]]
        )
        told = reads.answer(question, passage)
        if told["answer"]:
            assert (told["start"], told["end"]) == row.characters(passage, *(row.places[at] for at in best))


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@torch.no_grad()
def test_words_get_the_labels_that_each_text_would_give_them_alone(tokenizer: Tokenizer, batch_size: int) -> None:
    rng, reads = random.Random(3), tagger(tokenizer)
    texts: list[Any] = [text(rng, 6) for _ in range(6)] + [["two dogs", "sat", "on"], ["a"]]
    for given_, told in zip(texts, reads.classify(texts, batch_size=batch_size), strict=True):
        if isinstance(given_, str):
            assert [given_[word["start"] : word["end"]] for word in told["words"]] == [w["word"] for w in told["words"]]
            assert [word["word"] for word in told["words"]] == re.findall(r"[^\W我爱你]+|[我爱你]|[^\w\s]", given_)
        else:
            assert [word["word"] for word in told["words"]] == given_
        ids, firsts = [tokenizer.bos_id], []
        for word in told["words"]:
            firsts.append(len(ids))
            ids += tokenizer.encode(word["word"])
        logits = reads.model(torch.tensor([[*ids, tokenizer.eos_id]]))[0].double().softmax(-1)
        for word, at in zip(told["words"], firsts, strict=True):
            assert word["label"] == LABELS[int(logits[at].argmax())]
            assert word["probability"] == pytest.approx(float(logits[at].max()), abs=1e-5)
    long = reads.classify("cat " * 99)
    assert long["truncated"] and 0 < len(long["words"]) < 99
    assert reads.classify("")["words"] == [] == reads.classify("")["entities"]


@given(st.lists(st.sampled_from([*LABELS, "N"]), max_size=12))
def test_entities_are_runs_of_their_words(labels: list[str]) -> None:
    words: list[Any] = [dict(word=f"w{n}", label=label, probability=1.0) for n, label in enumerate(labels)]
    found = entities(words, [word["word"] for word in words])
    covered = {index for entity in found for index in range(entity["first"], entity["last"] + 1)}
    assert covered == {index for index, label in enumerate(labels) if label[0] in "BI"}
    for entity in found:
        run = labels[entity["first"] : entity["last"] + 1]
        assert {label[2:] for label in run} == {entity["label"]} and "B-X" not in run[1:] and "B-Y" not in run[1:]
        assert entity["text"] == " ".join(f"w{n}" for n in range(entity["first"], entity["last"] + 1))
        after = labels[entity["last"] + 1 : entity["last"] + 2]
        assert after != [f"I-{entity['label']}"]


def test_words_are_spelt_as_theirs_are_behind_a_blank(shared: Path) -> None:
    folder = shared / "data/checkpoints/tokenizers"
    theirs = tokenizers.Tokenizer(
        tokenizers.models.BPE.from_file(str(folder / "gpt2/encoder.json"), str(folder / "gpt2/vocab.bpe"))
    )
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    words = ["Hello", "world", "unbelievable", "!", "42nd"]
    flat = theirs.encode(words, is_pretokenized=True).ids
    ours = encode_words(Tokenizer.load(folder / "gpt2"), words)
    assert [index for word in ours for index in word] == flat and len(ours) == len(words)


QUESTIONS = [("Who?", "Ada met Ben. Ben left.", "Ben left", 13), ("Where?", "Ada met Ben.", "", 0)]


def question_files(folder: Path) -> list[Path]:
    keys = ("question", "context", "answer", "answer_start")
    rows = [dict(zip(keys, row, strict=True)) for row in QUESTIONS]
    asked = [
        dict(row, answers=[dict(text=row["answer"], answer_start=row["answer_start"])] if row["answer"] else [])
        for row in rows
    ]
    columns = [
        dict(question=row["question"], context=row["context"], answers=dict(answer_start=[], text=[])) for row in rows
    ]
    columns[0]["answers"] = dict(answer_start=[13], text=["Ben left"])
    paragraphs = [dict(context=row["context"], qas=[dict(id=str(n), **row)]) for n, row in enumerate(asked)]
    contents = {
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "b.jsonl": "".join(json.dumps(row) + "\n" for row in columns),
        "c.tsv": "".join("\t".join(map(str, row[:3])) + "\n" for row in QUESTIONS),
        "d.tsv": "answer\tquestion\tcontext\n" + "".join(f"{a}\t{q}\t{c}\n" for q, c, a, _ in QUESTIONS),
        "e.json": json.dumps(dict(data=[dict(paragraphs=paragraphs)])),
    }
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in contents]


def test_questions_are_read_from_every_form_and_mistakes_are_told(tmp_path: Path) -> None:
    for file in question_files(tmp_path):
        assert [tuple(row) for row in read_questions(str(file))] == QUESTIONS, file
    for content, says in (
        ("Who?\tAda met Ben.\tCleo\n", "bad.tsv:1: the answer 'Cleo' does not stand in its context"),
        ("Who?\tAda\n", "bad.tsv:1: expected a question, a context and an answer"),
        ("\tAda\tAda\n", "bad.tsv:1: the question is blank"),
        ("", "no questions in it"),
    ):
        (tmp_path / "bad.tsv").write_text(content)
        with pytest.raises(UserError, match=says):
            read_questions(str(tmp_path / "bad.tsv"))
    for name, content in (("bad.jsonl", "[1]"), ("bad.json", '{"data": 5}'), ("bad2.jsonl", '{"question": "a"}')):
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=name):
            read_questions(str(tmp_path / name))


def test_pairs_of_texts_are_read_by_their_columns(tmp_path: Path) -> None:
    rows = [("a cat", "an animal", "yes"), ("a cat", "a dog", "no")]
    (tmp_path / "plain.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    (tmp_path / "named.tsv").write_text("id\tlabel\tb\ta\n" + "".join(f"7\t{c}\t{b}\t{a}\n" for a, b, c in rows))
    (tmp_path / "named.csv").write_text("label,b,a\n" + "".join(f"{c},{b},{a}\n" for a, b, c in rows))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(dict(a=a, b=b, label=c)) + "\n" for a, b, c in rows))
    for name in ("plain.tsv", "named.tsv", "named.csv", "x.jsonl"):
        found = read_labelled(str(tmp_path / name), ("a", "b"))
        assert [(*row.text, row.label) for row in found] == rows, name
    (tmp_path / "bad.tsv").write_text("a cat\tan animal\n")
    with pytest.raises(UserError, match="bad.tsv:1: expected a, b and label"):
        read_labelled(str(tmp_path / "bad.tsv"), ("a", "b"))


def _saved(reads: Any, path: Path) -> Path:
    save_model(path, reads.model, reads.tokenizer)
    return path


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any, stdin: str) -> tuple[int, Any, str]:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin.encode()), encoding="utf-8"))
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def test_the_command_tells_words_and_answers(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    tags, answers = tagger(tokenizer), answerer(tokenizer)
    command = ["classify", "-m", str(_saved(tags, tmp_path / "tags"))]
    code, records, err = run(command, monkeypatch, capsys, "the cat, 我爱你\n\n")
    assert (code, err) == (0, "") and [record["text"] for record in records] == ["the cat, 我爱你", ""]
    assert [word["label"] for word in records[0]["words"]] == [
        word["label"] for word in tags.classify("the cat, 我爱你")["words"]
    ]
    command = ["classify", "-m", str(_saved(answers, tmp_path / "answers"))]
    code, records, err = run(command, monkeypatch, capsys, "two?\tthe cat sat on a mat\n")
    assert (code, err) == (0, "")
    assert records[0]["answer"] == answers.answer("two?", "the cat sat on a mat")["answer"]
    code, _, err = run(command, monkeypatch, capsys, "no passage\n")
    assert code == 2 and "text 1: expected a question and a passage" in err and err.count("\n") == 1
    code, _, err = run([*command, "--top", "2"], monkeypatch, capsys, "a\tb\n")
    assert code == 2 and "--top" in err and err.count("\n") == 1

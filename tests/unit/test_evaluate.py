"""Corpus scores: the right sacrebleu metric for each language, and its warnings."""

import logging
import re

import pytest
import sacrebleu

from glassformer.errors import UserError
from glassformer.train.evaluate import corpus_scores

CHINESE = ["我喜欢在公园里打篮球。", "他昨天去了北京,没有回来。"]
CHINESE_REFERENCES = ["我喜欢打篮球。", "他昨天去北京了,还没有回来。"]
ENGLISH = ["The cat sat on a mat.", "He doesn't like tea, does he?"]
ENGLISH_REFERENCES = ["The cat sat on the mat.", "He doesn't like tea."]


@pytest.mark.parametrize(
    "language, tokens, hypotheses, references",
    [
        ("zh", "zh", CHINESE, CHINESE_REFERENCES),
        ("zh-TW", "zh", CHINESE, CHINESE_REFERENCES),
        ("en", "13a", ENGLISH, ENGLISH_REFERENCES),
        ("de", "13a", ENGLISH, ENGLISH_REFERENCES),
    ],
)
def test_scores_are_sacrebleus_own(language, tokens, hypotheses, references):
    scores = corpus_scores(hypotheses, references, language)
    assert scores["bleu"] == sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokens).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(hypotheses, [references], word_order=2).score
    asian = tokens == "zh"
    ter = sacrebleu.corpus_ter(hypotheses, [references], normalized=asian, asian_support=asian)
    assert scores["ter"] == ter.score
    assert f"tok:{tokens}|" in scores["signatures"]["bleu"]
    assert "nw:2|" in scores["signatures"]["chrf"]
    assert all(re.search(r"version:\d", signature) for signature in scores["signatures"].values())


def test_perfect_translations_get_the_best_scores():
    scores = corpus_scores(ENGLISH, ENGLISH, "en")
    assert scores["bleu"] == pytest.approx(100) and scores["chrf"] == pytest.approx(100) and scores["ter"] == 0


@pytest.mark.parametrize("text, warned", [("▁The ▁cat", True), ("the ca@@ t", True), ("a@@", True), ("a@@b c", False)])
def test_pieces_are_warned_of(text, warned, caplog):
    with caplog.at_level(logging.WARNING):
        corpus_scores([text], ["the cat"], "en")
    assert ("1 of 1 translations hold subword pieces" in caplog.text) == warned


def test_unequal_or_missing_lines_are_told_with_their_counts():
    with pytest.raises(UserError, match="2 translations but 1 references"):
        corpus_scores(["a", "b"], ["a"], "en")
    with pytest.raises(UserError, match="no sentences"):
        corpus_scores([], [], "en")

"""Corpus scores of translations, by sacrebleu, each with the signature that makes it comparable."""

import logging
import re
from collections.abc import Sequence
from typing import Any, TypedDict

from glassformer.errors import UserError
from glassformer.text.script import base_code

log = logging.getLogger(__name__)

PIECES = re.compile(r"▁|@@(?=\s|$)")
"""Marks of subword pieces: SentencePiece's, and those of subword-nmt."""


class CorpusScores(TypedDict):
    """BLEU and chrF++ from 0 to 100 (higher is better), TER from 0 up (lower is better), and sacrebleu's signatures."""

    bleu: float
    chrf: float
    ter: float
    signatures: dict[str, str]


def corpus_scores(hypotheses: Sequence[str], references: Sequence[str], target_language: str) -> CorpusScores:
    """Scores translations against one reference each.

    BLEU (Papineni et al. 2002) is over sacrebleu's `zh` tokens (a Han character is a token) for Chinese and over `13a`
    tokens otherwise; chrF++ is chrF with word bigrams (Popović 2017); TER is that of Snover et al. 2006, splitting Han
    characters for Chinese.

    Args:
        hypotheses: plain translations, not pieces.
        references: as many references.
        target_language: the code of the target language, such as `zh`.

    Raises:
        UserError: the counts differ, or there is nothing to score.
    """
    if len(hypotheses) != len(references):
        raise UserError(f"{len(hypotheses)} translations but {len(references)} references: give one line for each")
    if not hypotheses:
        raise UserError("no sentences to score: give at least one translation and its reference")
    for name, texts in (("translations", hypotheses), ("references", references)):
        pieces = sum(1 for text in texts if PIECES.search(text))
        if pieces:
            log.warning(
                "%d of %d %s hold subword pieces (▁ or @@): decode them before scoring", pieces, len(texts), name
            )

    from sacrebleu.metrics import CHRF, TER

    chinese = base_code(target_language) == "zh"
    metrics = {
        "bleu": _bleu(target_language),
        "chrf": CHRF(word_order=2),
        "ter": TER(normalized=chinese, asian_support=chinese),
    }
    results = {name: metric.corpus_score(list(hypotheses), [list(references)]) for name, metric in metrics.items()}
    return CorpusScores(
        bleu=results["bleu"].score,
        chrf=results["chrf"].score,
        ter=results["ter"].score,
        signatures={name: str(metric.get_signature()) for name, metric in metrics.items()},
    )


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], target_language: str) -> float:
    """The BLEU of ``corpus_scores`` alone: TER takes long on the poor translations of early training."""
    return float(_bleu(target_language).corpus_score(list(hypotheses), [list(references)]).score)


def _bleu(target_language: str) -> Any:
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize="zh" if base_code(target_language) == "zh" else "13a")

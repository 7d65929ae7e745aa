"""What a Python user touches: `load` a model, then `translate` or `score` with it; `train` one."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from glassformer.data.collate import IGNORE, collate, pad
from glassformer.errors import UserError
from glassformer.generate import Hypothesis, SearchConfig, normalised_score, search
from glassformer.store import load_model, unwritable_ids
from glassformer.text.script import detect_language

if TYPE_CHECKING:
    from glassformer.models.seq2seq import Seq2Seq
    from glassformer.store import Translation as TranslationInfo
    from glassformer.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

BUNDLED = Path(__file__).parent / "bundled"
DEFAULT_MODEL = "zh-en"
PRECISIONS = ("auto", "fp32", "bf16")
LOOP = re.compile(r"(\S.{,39}?)(?:\s*\1){3}")


class Candidate(TypedDict):
    """One translation of an n-best list."""

    translation: str
    score: float


class Translation(TypedDict):
    """One line's translation with its details: the record of `translate --format jsonl`.

    `truncated` says that the source was cut to the model's limit, or the translation at its own; `repetition` that the
    translation repeats itself four times in a row where the source does not.
    """

    source: str
    translation: str
    score: float
    n_best: list[Candidate]
    alignment: None
    truncated: bool
    repetition: bool


class TokenScore(TypedDict):
    token: str
    logprob: float


class Score(TypedDict):
    """A given target's score, and the natural log-probability of each of its tokens, `</s>` last."""

    score: float
    tokens: list[TokenScore]


def load(
    path_or_name: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    device: str | torch.device = "auto",
    precision: str = "auto",
) -> Translator:
    """Loads a model.

    Args:
        path_or_name: a MODEL directory, or the name of a bundled model. A bundled name goes first: write `./zh-en` for
            a directory that is called so.
        device: a PyTorch device; "auto" is the GPU if there is one.
        precision: what matrix products run in: "fp32", or "bf16" by autocast. The weights stay float32. "auto" is fp32.

    Raises:
        UserError: no such model, or a model, device or precision that cannot be used.
    """
    if precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: must be one of {', '.join(PRECISIONS)}")
    loaded = load_model(find_model(path_or_name))
    return Translator(loaded.model, loaded.tokenizer, loaded.translation, device=_device(device), precision=precision)


def train(config: str | os.PathLike[str] | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Any:
    """Trains a model from a config file or mapping; `overrides` are its dotted keys, such as `{"train.lr": 1e-3}`."""
    from glassformer.train.loop import train as run

    return run(config, overrides)


def bundled_models() -> list[str]:
    """The names of the models that ship with the package."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/config.json"))


def find_model(path_or_name: str | os.PathLike[str]) -> Path:
    """The MODEL directory behind a bundled name or a path.

    Raises:
        UserError: there is none; the message names what there is.
    """
    name, path, bundled = os.fspath(path_or_name), Path(path_or_name), bundled_models()
    if name in bundled:
        return BUNDLED / name
    if path.is_dir():
        if not (path / "config.json").exists() and (path / "best" / "config.json").exists():
            raise UserError(f"{name}: a training run, not a model; give one of the models in it: -m {path / 'best'}")
        return path
    if path.exists():
        raise UserError(f"{name}: a file, but a model is a directory with config.json and model.safetensors in it")
    close = difflib.get_close_matches(name, bundled, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UserError(
        f"no model {name!r}: no such directory, and the bundled models are {', '.join(bundled) or 'none'}{hint}"
    )


class Translator:
    """An encoder–decoder with its tokenizer.

    Attributes:
        model: the torch module, in eval mode, float32.
        tokenizer: text to ids and back.
        directions: the (source, target) language codes it was trained for; empty when the model does not say.
    """

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        translation: TranslationInfo | None = None,
        *,
        device: torch.device | str = "cpu",
        precision: str = "auto",
    ) -> None:
        self.device = torch.device(device)
        self.precision = precision
        self.model = model.float().to(self.device).eval()
        self.tokenizer = tokenizer
        self.directions = translation.directions if translation else []
        self._translation = translation
        self._pad, self._bos, self._eos = _special(tokenizer)
        self._banned = unwritable_ids(tokenizer, model.config.target_vocab_size)
        self._source_limit = _positions(model.config.encoder)
        self._target_limit = _positions(model.config.decoder)

    def possible_directions(self, source: str | None = None, to: str | None = None) -> list[tuple[str, str]]:
        """The model's directions that fit the languages given.

        Raises:
            UserError: none does; the message lists what the model can do.
        """
        fitting = [(s, t) for s, t in self.directions if source in (None, s) and to in (None, t)]
        if fitting or (source is None and to is None):
            return fitting
        asked = " ".join(f"{flag} {code}" for flag, code in (("--from", source), ("--to", to)) if code is not None)
        able = ", ".join(f"--from {s} --to {t}" for s, t in self.directions)
        raise UserError(
            f"{asked}: this model cannot; " + (f"it can {able}" if able else "it names no languages, so leave that out")
        )

    def one_direction(self, source: str | None = None, to: str | None = None) -> tuple[str, str]:
        """The direction meant for a whole file: the model's first that fits, since a file is not to be guessed at."""
        fitting = self.possible_directions(source, to)
        if not fitting:
            raise UserError("this model names no languages: save it with its translation's source and target")
        return fitting[0]

    def translate(
        self,
        text: str | Iterable[str],
        to: str | None = None,
        source: str | None = None,
        *,
        beam_size: int = 5,
        n_best: int = 1,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        batch_tokens: int = 4000,
        details: bool = False,
    ) -> Any:
        """Translates a text, or each of many; a blank text gives "".

        Args:
            text: one text, or several.
            to: target language; None where the model has one, or else by each text's script.
            source: source language; None likewise.
            beam_size: hypotheses kept a text; 1 is greedy search.
            n_best: translations wanted of each text, seen in the details.
            length_penalty: α of the score (`glassformer.generate.search`).
            max_new_tokens: longest translation in tokens; None is twice the source's plus ten.
            batch_tokens: bound on a batch's padded source tokens times `beam_size`; it changes speed and memory only.
            details: return `Translation` records rather than strings.

        Returns:
            For one text, its translation; for several, a list of as many in their order.

        Raises:
            UserError: an option out of its range, languages the model does not know, or something that is not text.
        """
        config = SearchConfig(beam_size, n_best, length_penalty, max_new_tokens)
        if batch_tokens < 1:
            raise UserError(f"--batch-tokens {batch_tokens}: must be 1 or more")
        texts = [text] if isinstance(text, str) else list(text)
        directions = self.possible_directions(source, to)
        results = self._translate(texts, directions, config, batch_tokens)
        answers: list[Any] = results if details else [result["translation"] for result in results]
        return answers[0] if isinstance(text, str) else answers

    def score(
        self,
        pairs: Iterable[tuple[str, str]],
        to: str | None = None,
        source: str | None = None,
        *,
        length_penalty: float = 1.0,
        batch_tokens: int = 4000,
    ) -> list[Score]:
        """Scores given targets by teacher forcing, with the formula that search ranks by.

        Raises:
            UserError: as `translate`; and a pair that is longer than the model's positions.
        """
        pairs = list(pairs)
        directions = self.possible_directions(source, to)
        rows = []
        for number, (text, target) in enumerate(pairs, 1):
            row = self._read(_checked(text, number), directions)
            target_ids = self.tokenizer.encode(_checked(target, number))
            if row.cut:
                raise UserError(
                    f"pair {number}: its source has more than the model's {self._source_limit} tokens; shorten it"
                )
            if self._target_limit is not None and len(target_ids) >= self._target_limit:
                raise UserError(
                    f"pair {number}: its target has more than the model's {self._target_limit} tokens; shorten it"
                )
            rows.append((row.ids, target_ids))
        scores: list[Score | None] = [None] * len(rows)
        lengths = [max(len(a), len(b) + 1) for a, b in rows]
        for batch in _batches(lengths, batch_tokens):
            for index, logprobs in zip(batch, self._teacher_forced([rows[i] for i in batch]), strict=True):
                tokens = self.tokenizer.tokens([*rows[index][1], self._eos])
                scores[index] = Score(
                    score=normalised_score(logprobs, length_penalty),
                    tokens=[TokenScore(token=t, logprob=p) for t, p in zip(tokens, logprobs, strict=True)],
                )
        return [score for score in scores if score is not None]

    def _translate(
        self, texts: Sequence[str], directions: list[tuple[str, str]], config: SearchConfig, batch_tokens: int
    ) -> list[Translation]:
        results = [_blank(_checked(text, number)) for number, text in enumerate(texts, 1)]
        places = [place for place, text in enumerate(texts) if text.strip()]
        rows = [self._read(texts[place], directions) for place in places]
        cut = [places[i] + 1 for i, row in enumerate(rows) if row.cut]
        if cut:
            more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
            log.warning("text %d%s: cut to the model's limit of %d tokens", cut[0], more, self._source_limit)
        # Different pieces can spell one text. Looking at the whole beam leaves n-best lists distinct as texts too.
        wide = replace(config, n_best=config.beam_size if config.n_best > 1 else 1)
        for batch in _batches([len(row.ids) for row in rows], max(1, batch_tokens // config.beam_size)):
            source_BS, source_mask_BS = pad([rows[i].ids for i in batch], self._pad)
            with self._autocast():
                found = search(
                    self.model,
                    source_BS.to(self.device),
                    None if source_mask_BS is None else source_mask_BS.to(self.device),
                    wide,
                    bos_id=self._bos,
                    eos_id=self._eos,
                    banned_ids=self._banned,
                    max_length=self._target_limit,
                )
            for i, hypotheses in zip(batch, found, strict=True):
                results[places[i]] = self._record(texts[places[i]], rows[i].cut, hypotheses, config.n_best)
        return results

    def _record(self, text: str, cut: bool, hypotheses: list[Hypothesis], n_best: int) -> Translation:
        by_text: dict[str, float] = {}
        for hypothesis in hypotheses:
            by_text.setdefault(self.tokenizer.decode(list(hypothesis.ids)), hypothesis.score)
        candidates = [Candidate(translation=t, score=s) for t, s in by_text.items()][:n_best]
        best = candidates[0]
        return Translation(
            source=text,
            **best,
            n_best=candidates,
            alignment=None,
            truncated=cut or not hypotheses[0].finished,
            repetition=_loops(best["translation"]) and not _loops(text),
        )

    def _read(self, text: str, directions: list[tuple[str, str]]) -> _Row:
        """A text as source ids, `[<2xx>] pieces </s>`, cut to the model's positions."""
        pieces = self.tokenizer.encode(text)
        tag: list[int] = []
        if self._translation and directions:
            source = detect_language(text, [s for s, _ in directions]) if len(directions) > 1 else directions[0][0]
            tag = self._translation.tag(dict(directions)[source], self.tokenizer)
        room = len(pieces) if self._source_limit is None else self._source_limit - len(tag) - 1
        return _Row([*tag, *pieces[:room], self._eos], cut=len(pieces) > room)

    @torch.no_grad()
    def _teacher_forced(self, rows: Sequence[tuple[list[int], list[int]]]) -> Iterator[list[float]]:
        """Log-probabilities of each row's target tokens and `</s>`."""
        sources, targets = zip(*rows, strict=True)
        batch = collate(sources, targets, pad_id=self._pad, bos_id=self._bos, eos_id=self._eos)
        mask_BS = None if batch.source_mask_BS is None else batch.source_mask_BS.to(self.device)
        with self._autocast():
            logits_BTV = self.model(batch.source_BS.to(self.device), batch.target_BT.to(self.device), mask_BS)
        labels_BT = batch.labels_BT.to(self.device)
        real_BT = labels_BT != IGNORE
        chosen_BT1 = logits_BTV.float().log_softmax(-1).gather(2, labels_BT.where(real_BT, 0).unsqueeze(2))
        for row_T, real_T in zip(chosen_BT1.squeeze(2), real_BT, strict=True):
            yield row_T[real_T].tolist()

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")


@dataclass(frozen=True)
class _Row:
    ids: list[int]
    cut: bool


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices grouped by length, longest first, at most `batch_tokens` padded tokens a group, or one index."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if group and lengths[group[0]] * (len(group) + 1) > batch_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _blank(text: str) -> Translation:
    """The record of a text without words: there is nothing to choose, so nothing is improbable."""
    nothing = Candidate(translation="", score=0.0)
    return Translation(source=text, **nothing, n_best=[nothing], alignment=None, truncated=False, repetition=False)


def _checked(text: Any, number: int) -> str:
    if not isinstance(text, str):
        raise UserError(f"text {number}: expected a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"text {number}, character {error.start + 1}: half of a surrogate pair, which no encoder accepts"
        ) from None
    return text


def _loops(text: str) -> bool:
    return any(any(c.isalpha() for c in match[1]) for match in LOOP.finditer(text))


def _special(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """The ids of padding, `<s>` and `</s>`."""
    pad_id, bos_id, eos_id = tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id
    if pad_id is None or bos_id is None or eos_id is None:
        raise UserError(
            "the tokenizer lacks <pad>, <s> or </s>, which translation needs; add them to its tokenizer.json"
        )
    return pad_id, bos_id, eos_id


def _positions(stack: Any) -> int | None:
    return None if stack.position is None else int(stack.position.max_len)


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {str(device)!r}: cannot be used here ({str(error).splitlines()[0]})") from None
    return torch.device(device)

"""Documents: a model learns to go on with them, or to fill in what was hidden in them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from random import Random
from typing import Any, NamedTuple

from glassformer.config import HeadConfig, LayerNormConfig, MaskedLMHeadConfig, MLPConfig, ModelConfig
from glassformer.data.collate import IGNORE, Batch, Labelled, collate, pad
from glassformer.data.documents import read_documents
from glassformer.errors import UserError
from glassformer.models.model import Model
from glassformer.store import Loaded
from glassformer.text.recipe import SPACELESS
from glassformer.text.tokenizer import Tokenizer, language_of
from glassformer.train.config import Corpus, TokenizerSection
from glassformer.train.distributed import World
from glassformer.train.objective_config import (
    CausalLMObjective,
    DenoisingObjective,
    DocumentObjectiveConfig,
    MaskedLMObjective,
    SpanCorruptionObjective,
)
from glassformer.train.objectives import noise
from glassformer.train.objectives.objective import Objective, needs, with_head
from glassformer.train.setup import longest_example

MASKS = ("<mask>", "[MASK]")
ENDS = "。！？!?.…\n"
"""What a sentence ends with, where sentences are shuffled."""
_SPACELESS = re.compile(f"[{SPACELESS}]")
KINDS = {"causal-lm": "decoder", "masked-lm": "encoder"}


class Row(NamedTuple):
    """What is read and what is predicted: for an encoder or a decoder place by place, else a source and a target."""

    read: list[int]
    labels: list[int]


class DocumentObjective(Objective):
    """Rows of text, anew for each epoch: where they begin when documents are packed, and what is hidden in them."""

    @property
    def _objective(self) -> DocumentObjectiveConfig:
        assert isinstance(self.config.objective, DocumentObjectiveConfig)
        return self.config.objective

    def read(self) -> None:
        data = self.config.data
        self._texts = self._read(data.train)
        self._dev_texts = self._read(data.dev) if data.dev else []
        if data.dev_share and len(self._texts) == 1:  # the end of the one text
            cut = round(len(self._texts[0]) * (1 - data.dev_share))
            self._texts, self._dev_texts = [self._texts[0][:cut]], [self._texts[0][cut:]]
        else:
            self._texts, self._dev_texts = map(list, data.split(self._texts, self._dev_texts))
        letters, dev = (sum(map(len, texts)) for texts in (self._texts, self._dev_texts))
        self.told.append(f"{len(self._texts):,} documents of {letters:,} characters to train on, {dev:,} for dev")

    def _read(self, entries: Corpus) -> list[str]:
        data = self.config.data
        files = [entries] if isinstance(entries, str) else entries
        for file in files:
            if not isinstance(file, str):
                raise UserError(f"{file[0]}: objective {self._objective.type} reads one file at a time, not pairs")
        if not isinstance(data.text, str):
            raise UserError(f"data.text: objective {self._objective.type} reads one text a row; name one column")
        return [text for file in files for text in read_documents(str(file), data.document, data.text)]

    def new_tokenizer(self) -> Tokenizer:
        return with_specials(text_tokenizer(self.config.tokenizer, self._texts), self._specials())

    def _specials(self) -> list[str]:
        """Tokens that the objective needs besides those of every tokenizer."""
        match self._objective:
            case SpanCorruptionObjective():
                return [f"<extra_id_{index}>" for index in range(self._most_spans(self.config.data.max_len) + 1)]
            case CausalLMObjective():
                return []
            case _:
                return [MASKS[0]]

    def _most_spans(self, length: int) -> int:
        assert isinstance(self._objective, SpanCorruptionObjective)
        return max(
            noise.count_spans(n, self._objective.noise, self._objective.mean_span)[1] for n in range(2, length + 2)
        )

    def check(self, start: Loaded) -> None:
        check_reads_text(start)

    def fitted(self, config: ModelConfig) -> ModelConfig:
        kind = KINDS.get(self._objective.type, "encoder-decoder")
        needs(config, [kind], self._objective.type)
        data = self.config.data
        limit = longest_example(config, data.max_len)
        if "max_len" in data.model_fields_set and limit < data.max_len:
            raise UserError(
                f"data.max_len {data.max_len}: the model has {limit} positions; lower it, or raise model.max_len"
            )
        if kind != "encoder":
            return config if isinstance(config.head, HeadConfig) else with_head(config, HeadConfig())
        if isinstance(config.head, MaskedLMHeadConfig):
            return config
        assert config.encoder is not None
        block = config.encoder.blocks[0]
        like = block.norm if isinstance(block.norm, LayerNormConfig) else LayerNormConfig(eps=1e-12)
        activation = block.ffn.activation if isinstance(block.ffn, MLPConfig) else "gelu"
        return with_head(config, MaskedLMHeadConfig(norm=like, activation=activation))

    def prepare(self) -> None:
        tokenizer, kind = self.tokenizer, self._objective
        assert tokenizer is not None
        if not self.framing.ends and not self.framing.after:
            raise UserError("the tokenizer has no token that ends a text, such as </s>; train one")
        ends = self.framing.ends or self.framing.after
        separated = isinstance(kind, CausalLMObjective) or kind.pack
        self._separator = tuple(ends[:1]) if separated else ()
        around = len(self.framing.before) + len(self.framing.after)
        if isinstance(kind, CausalLMObjective):
            around = -(not self.framing.before)  # of a row's tokens, the last one is only predicted
        elif self._writes:  # masks may be inserted, and a target has tokens around it
            around = max(around + 1, len(self.framing.forced) + 1)
        self._room = self.max_len - around
        if self._room < 2:
            raise UserError(f"data.max_len {self.max_len}: leaves no room for text; raise it")
        pieces = pieces_of(tokenizer)
        self._special = special_ids(tokenizer)
        self._ordinary = [
            index for index in range(tokenizer.vocab_size) if pieces[index] and index not in self._special
        ]
        self._mask_id = next((found for name in MASKS if (found := tokenizer.token_to_id(name)) is not None), None)
        if isinstance(kind, MaskedLMObjective | DenoisingObjective) and self._mask_id is None:
            raise UserError(f"objective {kind.type}: the tokenizer has no {' or '.join(MASKS)}; take one that has")
        if isinstance(kind, SpanCorruptionObjective):
            self._sentinels = sentinels_of(tokenizer)
            spans = self._most_spans(self._room)
            if len(self._sentinels) <= spans:
                raise UserError(
                    f"objective {kind.type}: rows of {self.max_len} tokens take {spans + 1} sentinels <extra_id_0> …, "
                    f"but the tokenizer has {len(self._sentinels)}; lower data.max_len"
                )
        words = isinstance(kind, MaskedLMObjective) and kind.whole_words
        self._continues = continuing_ids(pieces, tokenizer.kind) if words else None
        self._ends = {index for index, piece in enumerate(pieces) if _ends_sentence(piece)}
        self._ids = tokenizer.encode_batch(self._texts)
        self._dev = self._rows(tokenizer.encode_batch(self._dev_texts), Random("dev"), 0)

    def sampled(self, seed: int, epoch: int, *, dropout: bool = True) -> list[Row]:
        rng = Random(f"documents/{seed}/{epoch}")
        return self._rows(self._ids, rng, int(rng.random() * self._room))

    @property
    def dev(self) -> list[Row]:
        return self._dev

    def _rows(self, documents: Sequence[Sequence[int]], rng: Random, offset: int) -> list[Row]:
        if not documents:
            return []
        chunks = pack(documents, self._separator, self._room, offset if self._objective.pack else None)
        return [self._row(chunk, rng) for chunk in chunks if len(chunk) > 1]

    def _row(self, ids: list[int], rng: Random) -> Row:
        framing, kind = self.framing, self._objective
        match kind:
            case CausalLMObjective():
                return Row([*framing.before[-1:], *ids][: len(ids)], ids) if framing.before else Row(ids[:-1], ids[1:])
            case MaskedLMObjective():
                assert self._mask_id is not None
                read, labels = noise.mask_tokens(
                    [*framing.before, *ids, *framing.after],
                    rng,
                    share=kind.noise,
                    mask_id=self._mask_id,
                    ordinary=self._ordinary,
                    special=self._special,
                    continues=self._continues,
                )
                return Row(read, labels)
            case SpanCorruptionObjective():
                source, target = noise.corrupt_spans(
                    ids, rng, sentinels=self._sentinels, share=kind.noise, mean=kind.mean_span
                )
            case DenoisingObjective():
                assert self._mask_id is not None
                told = noise.permute_sentences(ids, rng, self._ends) if kind.permute_sentences else ids
                source = noise.infill(told, rng, mask_id=self._mask_id, share=kind.noise, mean=kind.mean_span)
                target = ids
        return Row([*framing.before, *source, *framing.after], target)

    @property
    def _writes(self) -> bool:
        return self.model.config.kind == "encoder-decoder"

    def lengths(self, example: Row) -> tuple[int, int]:
        if self._writes:
            return len(example.read), len(example.labels) + len(self.framing.forced) + 1
        return (0, len(example.read)) if self.model.config.kind == "decoder" else (len(example.read), 0)

    def batch(self, examples: Sequence[Row], rows: Sequence[int]) -> Batch | Labelled:
        chosen, pad_id, framing = [examples[row] for row in rows], self.pad_id or 0, self.framing
        if self._writes:
            assert framing.start is not None
            return collate(
                [row.read for row in chosen],
                [[*framing.forced, *row.labels] for row in chosen],
                pad_id=pad_id,
                bos_id=framing.start,
                eos_id=framing.ends[0],
            )
        ids_BT, mask_BT = pad([row.read for row in chosen], pad_id)
        labels_BT, _ = pad([row.labels for row in chosen], IGNORE)
        return Labelled((ids_BT, mask_BT), labels_BT, int((labels_BT != IGNORE).sum()))

    def scores(
        self, model: Model, loss: float, world: World, autocast: AbstractContextManager[object]
    ) -> dict[str, float]:
        return {"perplexity": math.exp(min(loss, 700.0))}


def pack(
    documents: Sequence[Sequence[int]], separator: Sequence[int], room: int, offset: int | None
) -> list[list[int]]:
    """Cuts documents, each with its separator behind it, into rows.

    Args:
        room: Most tokens of a row.
        offset: Tokens of the first row, so that epochs cut at other places (0 is a full one), where rows run from one
            document into the next; None begins each document in a row of its own.
    """
    texts = [[*document, *separator] for document in documents]
    if offset is not None:
        texts = [[token for text in texts for token in text]]
    first = offset or room
    return [
        text[at : at + room] if at else text[:first] for text in texts for at in [0, *range(first, len(text), room)]
    ]


def text_tokenizer(section: TokenizerSection, texts: Sequence[str]) -> Tokenizer:
    """Loads the tokenizer that the config names, or learns one."""
    if section.source is not None:
        return Tokenizer.load(section.source)
    return Tokenizer.train(texts, **section.model_dump(exclude={"source"}))


def check_reads_text(start: Loaded) -> None:
    """Refuses a model without a tokenizer."""
    if start.tokenizer is None:
        raise UserError(f"{start.path}: has no tokenizer, so it reads no text; put its tokenizer.json beside it")


def with_specials(tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """The tokenizer with special tokens at the end of its vocabulary, unless it has them."""
    if MASKS[0] in tokens and any(tokenizer.token_to_id(name) is not None for name in MASKS):
        return tokenizer
    if missing := [token for token in tokens if tokenizer.token_to_id(token) is None]:
        if not hasattr(tokenizer.backend, "add_special_tokens"):
            raise UserError(
                f"tokenizer.from: a SentencePiece model takes no {missing[0]}; leave it out to learn a new one"
            )
        tokenizer.backend.add_special_tokens(missing)
        return Tokenizer.from_json(tokenizer.backend.to_str())
    return tokenizer


def pieces_of(tokenizer: Tokenizer) -> list[str]:
    """The spelling of every id; empty where a foreign vocabulary leaves one out."""
    found: list[str] = []
    for index in range(tokenizer.vocab_size):
        try:
            found.append(tokenizer.id_to_token(index))
        except UserError:
            found.append("")
    return found


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """Ids that stand for no text."""
    added: dict[int, Any] = getattr(tokenizer.backend, "get_added_tokens_decoder", dict)()
    told = {index for index, token in added.items() if token.special}
    named = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id}
    named |= {tokenizer.token_to_id(name) for name in (*MASKS, "[CLS]", "[SEP]")}
    return told | {index for index in named if index is not None}


def sentinels_of(tokenizer: Tokenizer) -> list[int]:
    """The ids of ``<extra_id_0>``, ``<extra_id_1>`` …, as far as there are any."""
    found: list[int] = []
    while (index := tokenizer.token_to_id(f"<extra_id_{len(found)}>")) is not None:
        found.append(index)
    return found


def continuing_ids(pieces: Sequence[str], kind: str) -> set[int]:
    """Ids of pieces that go on with the word before them; a character of a script without spaces is a word."""
    if kind == "wordpiece":
        return {index for index, piece in enumerate(pieces) if piece.startswith("##")}
    return {index for index, piece in enumerate(pieces) if piece[:1].isalnum() and not _SPACELESS.search(piece)}


def _ends_sentence(piece: str) -> bool:
    return bool(piece) and language_of(piece) is None and (piece[-1] in ENDS or piece == "<0x0A>")

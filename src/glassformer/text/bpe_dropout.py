"""BPE dropout with a seed: subword regularisation that training can resume bit for bit."""

from __future__ import annotations

import json
import math
import random

import tokenizers

from glassformer.errors import UserError
from glassformer.text.tokenizer import Tokenizer

_MEMO_LIMIT = 1 << 17


class BpeDropout:
    """Segments text by BPE, dropping each candidate merge with a probability (Provilkov et al. 2020, arXiv:1910.13267).

    At each step every adjacent pair with a merge is dropped with probability p, and the first surviving one in order
    of (rank, position) is applied; a word is done when none survives. At p = 0 this is `tokenizer.encode`.

    Only the pair about to be applied has to be drawn for: candidates are tried in order until one survives, and what
    lies behind it does not matter. These tries are one sequence of independent coins, so instead of one random number
    a try, the number of tries until the next drop is drawn, geometrically. A word whose usual merges end before that
    drop is taken from a memo; the law of the result is the same.

    Args:
        tokenizer: of kind bpe.
        probability: p, in [0, 1].

    Raises:
        UserError: another kind of tokenizer, or p out of range.
    """

    def __init__(self, tokenizer: Tokenizer, probability: float) -> None:
        if not 0.0 <= probability <= 1.0:
            raise UserError(f"BPE dropout of {probability}: expected a probability from 0 to 1")
        if not isinstance(tokenizer.backend, tokenizers.Tokenizer):
            raise UserError("BPE dropout does not work on a SentencePiece model: set BPE dropout to 0")
        state = json.loads(tokenizer.backend.to_str())
        model = state["model"]
        if model["type"] != "BPE":
            raise UserError(
                f"BPE dropout needs a bpe tokenizer, and this one is {tokenizer.kind}: set BPE dropout to 0"
            )
        if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix") or model.get("ignore_merges"):
            raise UserError("BPE dropout does not know this tokenizer's marks of word ends: set BPE dropout to 0")
        self.probability = probability
        self._normalizer = tokenizer.backend.normalizer
        self._pre_tokenizer = tokenizer.backend.pre_tokenizer
        self._vocab: dict[str, int] = model["vocab"]
        self._unknown = self._vocab.get(model["unk_token"]) if model["unk_token"] else None
        self._fuse_unknown = bool(model["fuse_unk"])
        self._byte_fallback = bool(model["byte_fallback"])
        self._merges: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, merge in enumerate(model["merges"]):
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            self._merges[self._vocab[left], self._vocab[right]] = rank, self._vocab[left + right]
        self._log_keep = math.log1p(-probability) if 0.0 < probability < 1.0 else 0.0
        self._memo: dict[str, tuple[tuple[int, ...], int]] = {}

    def encode(self, text: str, rng: random.Random) -> list[int]:
        """Ids of one sampled segmentation; the same state of `rng` gives the same ids."""
        normalized = self._normalizer.normalize_str(text) if self._normalizer else text
        words = self._pre_tokenizer.pre_tokenize_str(normalized) if self._pre_tokenizer else [(normalized, None)]
        ids: list[int] = []
        memo = self._memo
        tries = self._tries_to_drop(rng)
        for word, _ in words:
            known = memo.get(word) or self._remember(word)
            if known[1] <= tries:
                ids.extend(known[0])
                tries -= known[1]
            else:
                sampled, tries = self._segment(word, tries, rng)
                ids.extend(sampled)
        return ids

    def _tries_to_drop(self, rng: random.Random) -> float:
        if self._log_keep:
            return int(math.log(1.0 - rng.random()) / self._log_keep)
        return 0 if self.probability else math.inf

    def _remember(self, word: str) -> tuple[tuple[int, ...], int]:
        """Ids of `word` without dropout, and the number of merges that led there."""
        symbols = self._symbols(word)
        ids, _ = self._segment(word, math.inf, None)
        known = tuple(ids), len(symbols) - len(ids)
        if len(self._memo) < _MEMO_LIMIT:
            self._memo[word] = known
        return known

    def _symbols(self, word: str) -> list[int]:
        """Ids of the characters of `word`, those without a piece as bytes or as the unknown token."""
        ids: list[int] = []
        vocab = self._vocab
        fuse = False
        for char in word:
            index = vocab.get(char)
            if index is None and self._byte_fallback:
                spelled = [vocab.get(f"<0x{byte:02X}>") for byte in char.encode()]
                if None not in spelled:
                    ids.extend(spelled)  # type: ignore[arg-type]  # no None among them
                    fuse = False
                    continue
            if index is None:
                if self._unknown is not None and not (fuse and self._fuse_unknown):
                    ids.append(self._unknown)
                fuse = True
            else:
                ids.append(index)
                fuse = False
        return ids

    def _segment(self, word: str, tries: float, rng: random.Random | None) -> tuple[list[int], float]:
        """Merges `word` with the next drop after `tries` tries; returns its ids and the tries left."""
        merges = self._merges
        ids = self._symbols(word)
        none = (len(merges), -1)
        pairs = [merges.get(pair, none) for pair in zip(ids, ids[1:], strict=False)]
        while pairs:
            best = min(pairs)
            if best is none:
                break
            if tries > 0:
                at = pairs.index(best)
                tries -= 1
            else:
                assert rng is not None
                at = -1
                for _, candidate in sorted((pair[0], place) for place, pair in enumerate(pairs) if pair is not none):
                    if tries > 0:
                        at = candidate
                        tries -= 1
                        break
                    tries = self._tries_to_drop(rng)
                if at < 0:
                    break
            ids[at : at + 2] = [pairs[at][1]]
            del pairs[at]
            if at < len(pairs):
                pairs[at] = merges.get((ids[at], ids[at + 1]), none)
            if at > 0:
                pairs[at - 1] = merges.get((ids[at - 1], ids[at]), none)
        return ids, tries

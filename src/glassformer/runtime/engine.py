"""A packed model, run by the native library. Imports neither PyTorch nor, before a single step is asked for, numpy."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from glassformer.runtime import format as packed_format
from glassformer.runtime import library as native
from glassformer.runtime.library import EngineUnavailable
from glassformer.runtime.library import ints as _ints
from glassformer.runtime.steps import DecodeState

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DecodeState", "EngineUnavailable", "Found", "NativeModel"]

NAN_LOGITS, NO_MEMORY = 2, 3


class Found(NamedTuple):
    """A target that search found.

    Attributes:
        ids: its tokens, without `<s>` and `</s>`.
        token_logprobs: the natural log-probability of each, then of `</s>` if it was produced.
        finished: whether `</s>` was produced.
    """

    ids: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    finished: bool


class NativeModel:
    """A model in a packed file: an encoder–decoder, a decoder, or an encoder.

    Safe to use from several threads at once: nothing in it changes.

    Attributes:
        precision: "int8", "bf16" or "fp32".
        tokenizer: the digest of the tokenizer's files that were checked when it was packed; None when there are none.
        kernels: the instruction set that it runs with.
        threads: what one call may use.
        prompted: it is a decoder alone, whose sources are prompts: a target goes on from one, and shares its positions.
        source_limit, target_limit: longest sequences; None where positions have no end.
    """

    def __init__(self, header: dict[str, Any], data: mmap.mmap, start: int, threads: int, kernels: str) -> None:
        self._library = native.library()
        self._data = data  # keeps the mapping that all pointers lead into
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(data)) + start
        self._size = header["size"]
        self._kept: list[Any] = []
        self.precision: str = header["precision"]
        self.tokenizer: str | None = header.get("tokenizer")
        self.kernels, self.threads = kernels, threads
        self.model = native.Model()
        self._fill(self.model, header["model"])
        self.prompted = not self.model.encoder.n_layers
        first = self.model.decoder if self.prompted else self.model.encoder
        self.source_limit, self.target_limit = first.max_len or None, self.model.decoder.max_len or None

    @classmethod
    def open(cls, file: str | os.PathLike[str], threads: int | None = None, kernels: str | None = None) -> NativeModel:
        """Maps a packed file.

        Args:
            threads: None is one for each processor that this process may use; at most four times as many are taken.
            kernels: an instruction set of `kernel_sets`; None is the best.

        Raises:
            EngineUnavailable: the library is not there, or the file is not one that it can run.
            ValueError: `threads` is less than 1.
        """
        if threads is not None and threads < 1:
            raise ValueError(f"threads {threads}: must be 1 or more")
        sets = native.kernel_sets()
        if kernels is not None and kernels not in sets:
            raise EngineUnavailable(f"no kernels {kernels!r} here; there are {', '.join(sets)}")
        header, data, start = packed_format.read(Path(file))
        most = _processors()
        try:
            return cls(header, data, start, min(threads or most, 4 * most), kernels or sets[0])
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineUnavailable(f"{file}: its header is damaged ({error}); delete it") from None

    def search(
        self,
        sources: Sequence[Sequence[int]],
        *,
        limits: Sequence[int],
        bos_id: int,
        eos_id: int,
        prefixes: Sequence[Sequence[int]] | None = None,
        banned_ids: Sequence[int] = (),
        banned_phrases: Sequence[Sequence[int]] = (),
        no_repeat_ngram: int = 0,
        shortlists: Sequence[Sequence[int]] | None = None,
        beam_size: int = 1,
        n_best: int = 1,
        length_penalty: float = 1.0,
        workers: int = 0,
    ) -> list[list[Found]]:
        """Finds the best targets of each source, by the rules of `glassformer.generate.search`.

        Args:
            limits: the longest target of each, prefix and `</s>` included.
            prefixes: what each target begins with.
            banned_ids, banned_phrases: tokens, and sequences of them, that no target holds.
            no_repeat_ngram: no n-gram of this many tokens comes twice; 0 is no matter. Prefixes may break these bans.
            shortlists: for each source the only ids that its targets are made of, sorted, each once; none is the whole
                vocabulary. Probabilities are those among them.
            workers: groups decoded side by side, each by threads/workers threads; 0 chooses.

        Returns:
            For each source at most `n_best` targets, best first.

        Raises:
            ValueError: an id is in no vocabulary, a source or a limit beyond the model's, or a number out of range.
            FloatingPointError: the model gave NaN logits.
            MemoryError: there was not enough.
        """
        if prefixes is None:
            prefixes = [()] * len(sources)
        if not len(sources) == len(prefixes) == len(limits):
            raise ValueError(f"{len(sources)} sources, {len(prefixes)} prefixes, {len(limits)} limits")
        if not 1 <= n_best <= beam_size:
            raise ValueError(f"n_best {n_best} of a beam of {beam_size}: must be from 1 to that")
        used = map(len, sources) if self.prompted else [0] * len(sources)
        if not all(1 <= limit <= (self.target_limit or limit + n) - n for n, limit in zip(used, limits, strict=True)):
            less = ", less the prompt's length" if self.prompted else ""
            raise ValueError(f"limits {list(limits)}: must be from 1 to the model's {self.target_limit}{less}")
        if no_repeat_ngram < 0 or not all(banned_phrases):
            raise ValueError("no_repeat_ngram must be 0 or more, and a banned phrase one token or more")
        self._check_sources(sources)
        _check_ids(chain([[bos_id]], prefixes), self.model.target_vocab, "target")
        keep = [_ints(chain.from_iterable(sources)), _ints(map(len, sources)), _ints(chain.from_iterable(prefixes))]
        keep += [_ints(map(len, prefixes)), _ints(limits), _ints(banned_ids)]
        keep += [_ints(chain.from_iterable(banned_phrases)), _ints(map(len, banned_phrases))]
        if shortlists is None:
            shortlists = [()] * len(sources)
        _check_ids(shortlists, self.model.target_vocab, "shortlist")
        keep += [_ints(chain.from_iterable(shortlists)), _ints(map(len, shortlists))]
        request = native.SearchRequest(
            *keep,
            sentences=len(sources),
            n_banned=len(banned_ids),
            n_phrases=len(banned_phrases),
            no_repeat_ngram=no_repeat_ngram,
            beam_size=beam_size,
            n_best=n_best,
            bos=bos_id,
            eos=eos_id,
            threads=self.threads,
            workers=workers,
            length_penalty=length_penalty,
        )
        result = native.SearchResult()
        kernels = self.kernels.encode()
        self._check(self._library.gf_search(self.model, kernels, request, result))
        try:
            return _unpacked(result, len(sources))
        finally:
            self._library.gf_free_result(result)

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], *, bos_id: int
    ) -> list[list[float]]:
        """The natural log-probability of each token of each target (`</s>` is one of them), by teacher forcing.

        Raises:
            ValueError, FloatingPointError, MemoryError: as `search`.
        """
        # A forced search: the very steps, and so the very numbers, of the search that found a target.
        found = self.search(
            sources, limits=[max(len(t), 1) for t in targets], prefixes=targets, bos_id=bos_id, eos_id=-1
        )
        return [list(of_one[0].token_logprobs[: len(t)]) for of_one, t in zip(found, targets, strict=True)]

    def start(self, sources: Sequence[Sequence[int]]) -> DecodeState:
        """Encodes the sources, or reads the prompts, and returns a state of as many rows for a decoding step by step.

        Raises:
            ValueError, MemoryError: as `search`.
        """
        self._check_sources(sources)
        handle = native.Pointer()
        lengths = _ints(map(len, sources))
        ids = _ints(chain.from_iterable(sources))
        self._check(
            self._library.gf_start(
                self.model, self.kernels.encode(), ids, lengths, len(sources), self.threads, ctypes.byref(handle)
            )
        )
        return DecodeState(self, handle, sources)

    def encode(self, sources: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """The hidden states of an encoder alone: for each source float32 (S, D).

        Raises:
            ValueError, MemoryError: as `search`.
        """
        import numpy as np

        self._check_sources(sources)
        lengths = [len(ids) for ids in sources]
        hidden_SD = np.empty((sum(lengths), self.model.width), np.float32)
        self._check(
            self._library.gf_encode(
                self.model,
                self.kernels.encode(),
                _ints(chain.from_iterable(sources)),
                _ints(lengths),
                len(lengths),
                self.threads,
                hidden_SD.ctypes.data,
            )
        )
        hidden_SD = hidden_SD[:, : self.model.d]
        return np.split(hidden_SD, np.cumsum(lengths)[:-1]) if lengths else []

    @cached_property
    def cross_heads(self) -> dict[int, int]:
        """The decoder's layers with cross-attention, and how many heads each has."""
        layers = enumerate(self.model.decoder.layers[: self.model.decoder.n_layers])
        return {i: layer.cross_heads for i, layer in layers if layer.cross_q.weight}

    def cross_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], heads: Sequence[tuple[int, int]]
    ) -> list[np.ndarray]:
        """What each position of the decoder gives to each source token, by teacher forcing.

        Args:
            targets: ids as the decoder reads them, `<s> …`; as many as sources.
            heads: pairs of a decoder layer and one of its heads, from 0.

        Returns:
            For each pair of texts float32 (heads wanted, T, S); rows add up to 1.

        Raises:
            ValueError: an id, a length, a layer or a head is beyond the model's.
            MemoryError: there was not enough.
        """
        import numpy as np

        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources, {len(targets)} targets")
        if not all(0 <= head < self.cross_heads.get(layer, 0) for layer, head in heads):
            raise ValueError(f"layers and heads {list(heads)}: the model has {self.cross_heads}")
        self._check_sources(sources)
        _check_ids(targets, self.model.target_vocab, "target")
        longest = max(map(len, targets), default=0)
        if longest > (self.target_limit or longest):
            raise ValueError(f"a target of {longest} tokens is beyond the model's {self.target_limit}")
        shapes = [(len(heads), len(t), len(s)) for s, t in zip(sources, targets, strict=True)]
        sizes = [wanted * t * s for wanted, t, s in shapes]
        weights = np.empty(sum(sizes), np.float32)
        request = native.AttentionRequest(
            *(_ints(part) for rows in (sources, targets) for part in (chain.from_iterable(rows), map(len, rows))),
            _ints(layer for layer, _ in heads),
            _ints(head for _, head in heads),
            sentences=len(sources),
            wanted=len(heads),
            threads=self.threads,
        )
        self._check(self._library.gf_attention(self.model, self.kernels.encode(), request, weights.ctypes.data))
        parts = np.split(weights, np.cumsum(sizes)[:-1]) if sizes else []
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _check_sources(self, sources: Sequence[Sequence[int]]) -> None:
        longest = max(map(len, sources), default=0)
        if longest > (self.source_limit or longest):
            raise ValueError(f"a source of {longest} tokens is beyond the model's {self.source_limit}")
        if self.prompted and not all(map(len, sources)):
            raise ValueError("an empty prompt: start with the token that begins a text")
        _check_ids(sources, self.model.source_vocab, "source")

    def _check(self, status: int) -> None:
        if status:
            message = self._library.gf_error().decode()
            raise {NAN_LOGITS: FloatingPointError, NO_MEMORY: MemoryError}.get(status, RuntimeError)(message)

    def _fill(self, struct: Any, values: dict[str, Any]) -> None:
        """Fills a struct from the header's data of the same names; arrays become pointers into the file."""
        kinds = dict(struct._fields_)
        for name, value in values.items():
            if isinstance(value, list):
                items = (native.Layer * len(value))()
                for item, of_item in zip(items, value, strict=True):
                    self._fill(item, of_item)
                self._kept.append(items)
                setattr(struct, name, items)
            elif not isinstance(value, dict):
                setattr(struct, name, value)
            elif kinds[name] is not native.Pointer:
                self._fill(getattr(struct, name), value)
            elif not 0 <= value["at"] <= value["at"] + value["bytes"] <= self._size:
                raise KeyError(name)
            else:
                setattr(struct, name, self._base + value["at"])


def _check_ids(rows: Iterable[Sequence[int]], vocab: int, what: str) -> None:
    for row in rows:
        if len(row) and not 0 <= min(row) <= max(row) < vocab:
            raise ValueError(f"{what} ids from {min(row)} to {max(row)} are not from 0 to {vocab - 1}")


def _unpacked(result: Any, sentences: int) -> list[list[Found]]:
    found: list[list[Found]] = []
    hypothesis = at = 0
    for sentence in range(sentences):
        found.append([])
        for _ in range(result.counts[sentence]):
            length, finished = result.lengths[hypothesis], bool(result.finished[hypothesis])
            ids, logprobs = result.tokens[at : at + length], result.logprobs[at : at + length]
            found[-1].append(Found(tuple(ids[:-1] if finished else ids), tuple(logprobs), finished))
            at += length
            hypothesis += 1
    return found


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""The native engine as an engine; what its own loop lacks is decoded over its steps. Loads no PyTorch itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.engines.engine import Unavailable
from glassformer.errors import UserError
from glassformer.generate.config import Request, SamplingConfig, SearchConfig
from glassformer.generate.constraints import check_constraints, limits, refuse_phrases
from glassformer.generate.hypothesis import Hypothesis, normalised_score

if TYPE_CHECKING:
    import numpy as np

    from glassformer.generate.events import Event
    from glassformer.generate.processors import Processor
    from glassformer.models.seq2seq import Seq2Seq
    from glassformer.runtime.engine import NativeModel
    from glassformer.runtime.shortlist import Shortlist

Ids = Sequence[Sequence[int]]


class NativeEngine:
    """A model in the native engine, on the CPU.

    Args:
        native: the packed model.
        vocab_size: the number of logits.
        load_module: reads the torch module, which is done when it is first asked for.

    Attributes:
        shortlist: what targets are made of; None is the whole vocabulary.
    """

    name = "native"

    def __init__(self, native: NativeModel, vocab_size: int, load_module: Callable[[], Seq2Seq]) -> None:
        self._native, self._load_module = native, load_module
        self.precision, self.vocab_size = native.precision, vocab_size
        self.source_limit = None if native.prompted else native.source_limit
        self.target_limit = native.target_limit
        self.shortlist: Shortlist | None = None

    @property
    def tokenizer(self) -> str | None:
        """The digest of the tokenizer's files that were found to be the model's when it was packed."""
        return self._native.tokenizer

    @property
    def cross_heads(self) -> dict[int, int]:
        return self._native.cross_heads

    @cached_property
    def module(self) -> Seq2Seq:
        return self._load_module()

    def decode(self, sources: Ids, config: SearchConfig | SamplingConfig, request: Request) -> list[list[Hypothesis]]:
        constraints = check_constraints(request, len(sources))
        if not isinstance(config, SearchConfig) or not self.groups_itself(config, request):
            if self.shortlist is not None:
                others = "sampling, beam groups, forced terms or a repetition penalty"
                raise UserError(f"--shortlist: it does not go with {others}; leave one of them out")
            from glassformer.engines.model import decode_ids

            return decode_ids(self._decodable, sources, config, request)
        found = self._native.search(
            sources,
            shortlists=self._shortlists(sources, [constraint.prefix for constraint in constraints], request.eos_id),
            prefixes=[constraint.prefix for constraint in constraints],
            limits=limits([len(ids) for ids in sources], constraints, config.max_new_tokens, request.max_length),
            beam_size=config.beam_size,
            n_best=config.n_best,
            length_penalty=config.length_penalty,
            bos_id=0 if request.bos_id is None else request.bos_id,  # a prompt needs none
            eos_id=request.eos_id,
            banned_ids=sorted(set(request.banned_ids)),
            **(_bans(request.processors) or {}),
        )
        return [
            [
                Hypothesis(
                    tuple(one.ids),
                    normalised_score(one.token_logprobs, config.length_penalty),
                    tuple(one.token_logprobs),
                    one.finished,
                )
                for one in of_one
            ]
            for of_one in found
        ]

    def groups_itself(self, config: SearchConfig | SamplingConfig, request: Request) -> bool:
        if not isinstance(config, SearchConfig) or config.groups > 1 or _bans(request.processors) is None:
            return False
        return not any(constraint.phrases for constraint in request.constraints or ())

    def stream(self, sources: Ids, config: SamplingConfig, request: Request) -> Iterator[Event]:
        # A translation is short, so that telling it at once is sooner than loading PyTorch; a continuation may be long.
        if not config.warpers and not request.processors and not self._native.prompted:
            yield from self._greedy(sources, config, request)
            return
        from glassformer.engines.model import stream_ids

        yield from stream_ids(self._decodable, sources, config, request)

    def _greedy(self, sources: Ids, config: SamplingConfig, request: Request) -> Iterator[Event]:
        """Greedy targets, each told when it is complete: the fused loop takes less time than loading PyTorch's."""
        from glassformer.generate.events import End, Token

        refuse_phrases(check_constraints(request, len(sources)))
        search = SearchConfig(max_new_tokens=config.max_new_tokens)
        for sentence, source in enumerate(sources):
            constraints = None if request.constraints is None else request.constraints[sentence : sentence + 1]
            ((found,),) = self.decode([source], search, replace(request, constraints=constraints))
            forced = len(constraints[0].prefix) if constraints else 0
            ids = (*found.ids, *[request.eos_id] * found.finished)
            for place, (index, logprob) in enumerate(zip(ids, found.token_logprobs, strict=True)):
                yield Token(sentence, 0, index, logprob, forced=place < forced)
            yield End(sentence, 0, "eos" if found.finished else "limit")

    def _shortlists(self, sources: Ids, prefixes: Ids, eos_id: int) -> list[list[int]] | None:
        if self.shortlist is None:
            return None
        return [self.shortlist.of(ids, [*prefix, eos_id]) for ids, prefix in zip(sources, prefixes, strict=True)]

    def logprobs(self, sources: Ids, targets: Ids, bos_id: int) -> list[list[float]]:
        return [list(row) for row in self._native.score(sources, targets, bos_id=bos_id)]

    def hidden(self, sources: Ids) -> list[np.ndarray]:
        return self._native.encode(sources)

    def cross_attention(self, sources: Ids, targets: Ids, heads: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        return self._native.cross_attention(sources, targets, heads)

    @cached_property
    def _decodable(self) -> Any:
        from glassformer.runtime.decodable import NativeDecodable

        return NativeDecodable(self._native)


def _bans(processors: Sequence[Processor]) -> dict[str, Any] | None:
    """The processors as options of the native loop; None where it lacks one of them."""
    if not processors:
        return {"banned_phrases": [], "no_repeat_ngram": 0}
    from glassformer.generate.processors import BannedWords, NoRepeatNgram

    known = Counter(type(processor) for processor in processors)
    if known.keys() - {NoRepeatNgram, BannedWords} or known[NoRepeatNgram] > 1:
        return None
    ngrams = [processor.n for processor in processors if isinstance(processor, NoRepeatNgram)]
    phrases = [word for processor in processors if isinstance(processor, BannedWords) for word in processor.words]
    return {"banned_phrases": phrases, "no_repeat_ngram": sum(ngrams)}


def open_native(
    path: Path,
    vocab_size: int,
    precision: str,
    threads: int | None,
    load_module: Callable[[], Seq2Seq],
    pack: Callable[[Path, str], None] | None = None,
) -> NativeEngine:
    """The native engine over a MODEL directory, or whatever `pack` packs (`glassformer.runtime.cache.packed`).

    Raises:
        Unavailable: it cannot run here, or not this model in this precision.
    """
    try:
        from glassformer.runtime.cache import packed
        from glassformer.runtime.engine import EngineUnavailable, NativeModel
    except ImportError as error:
        raise Unavailable(f"it is not part of this installation ({error})") from None
    try:
        native = NativeModel.open(packed(path, precision, pack), threads=threads)
    except EngineUnavailable as error:
        raise Unavailable(str(error)) from None
    return NativeEngine(native, vocab_size, load_module)

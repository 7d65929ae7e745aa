"""A shortlist: the few target pieces that a source's are ever translated by, so that their logits alone are computed.

It is learnt from a parallel text by IBM Model 1 over pieces (Brown et al. 1993, section 4.1) and holds, of each source
piece, the likeliest target pieces, and besides the most frequent of all. What a source is copied by, its own pieces, is
always allowed. Each sentence has a list of its own, so that its translation depends on no other sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from glassformer.errors import UserError

PER_PIECE, FREQUENT, ROUNDS = 50, 200, 4


class Shortlist:
    """Which target ids may follow from which source ids.

    Attributes:
        starts: (source vocabulary + 1) where a source id's targets begin in `targets`.
        targets: target ids.
        always: target ids that are allowed whatever the source.
    """

    def __init__(self, starts: np.ndarray, targets: np.ndarray, always: np.ndarray) -> None:
        self.starts, self.targets, self.always = starts, targets, always

    @classmethod
    def learn(
        cls,
        pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
        vocab_size: int,
        *,
        per_piece: int = PER_PIECE,
        frequent: int = FREQUENT,
        always: Sequence[int] = (),
    ) -> Shortlist:
        """Learns one from pairs of a source's and its target's ids.

        Args:
            vocab_size: of source and target alike.
            per_piece: most targets of a source id.
            frequent: how many of the most frequent target ids are always allowed.
            always: further ids that are.
        """
        sources, targets, places, place = [], [], [], 0
        for source, target in pairs:
            s, t = np.unique(np.asarray(source, np.int64)), np.asarray(target, np.int64)
            if len(s) and len(t):
                sources.append(np.tile(s, len(t)))
                targets.append(np.repeat(t, len(s)))
                places.append(np.repeat(np.arange(place, place + len(t)), len(s)))
                place += len(t)
        if not sources:
            raise UserError("a shortlist needs pairs to learn from, and there are none")
        source_C, target_C, place_C = map(np.concatenate, (sources, targets, places))
        pair_P, pair_C = np.unique(source_C * vocab_size + target_C, return_inverse=True)
        source_P = pair_P // vocab_size
        # t(target | source), uniform at first; a target's count goes to the sources beside it by their shares.
        given_P = np.ones(len(pair_P))
        for _ in range(ROUNDS):
            share_C = given_P[pair_C]
            share_C /= np.bincount(place_C, share_C, place)[place_C]
            count_P = np.bincount(pair_C, share_C, len(pair_P))
            given_P = count_P / np.bincount(source_P, count_P, vocab_size)[source_P]
        order_P = np.lexsort((-given_P, source_P))
        first_P = np.searchsorted(source_P[order_P], source_P[order_P])
        kept = order_P[np.arange(len(order_P)) - first_P < per_piece]
        starts = np.searchsorted(source_P[kept], np.arange(vocab_size + 1))
        seen_V = np.bincount(target_C, 1 / np.bincount(place_C, minlength=place)[place_C], vocab_size)
        common = np.argsort(-seen_V, kind="stable")[:frequent]
        kinds = (starts, (pair_P % vocab_size)[kept], np.union1d(common, np.asarray(always, np.int64)))
        return cls(*(each.astype(np.int32) for each in kinds))

    def of(self, source: Sequence[int], besides: Sequence[int] = ()) -> list[int]:
        """The ids that a source's targets are made of, sorted: its pieces' targets, itself, and `besides`."""
        parts = [self.targets[self.starts[i] : self.starts[i + 1]] for i in set(source) if i + 1 < len(self.starts)]
        own = np.asarray([*source, *besides], np.int32)
        found: list[int] = np.unique(np.concatenate([self.always, own, *parts])).tolist()
        return found

    def save(self, file: Path) -> None:
        """Writes a safetensors file, all of it or none."""
        from safetensors.numpy import save

        data = save({"starts": self.starts, "targets": self.targets, "always": self.always})
        file = Path(os.path.realpath(file))
        if file.exists() and not file.is_file():  # a device, which is written to and not replaced
            file.write_bytes(data)
            return
        scratch = file.with_name(f"{file.name}.{os.getpid()}.tmp")
        try:
            scratch.write_bytes(data)
            os.replace(scratch, file)
        finally:
            scratch.unlink(missing_ok=True)

    @classmethod
    def load(cls, file: Path, vocab_size: int) -> Shortlist:
        """Reads what `save` wrote.

        Raises:
            UserError: it is no shortlist, or one of another vocabulary.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            arrays = load_file(file)
            shortlist = cls(arrays["starts"], arrays["targets"], arrays["always"])
        except (OSError, SafetensorError, KeyError) as error:
            raise UserError(
                f"--shortlist {file}: no shortlist ({error}); make one with glassformer shortlist"
            ) from None
        ids = np.concatenate([shortlist.targets, shortlist.always])
        if len(shortlist.starts) != vocab_size + 1 or ids.min() < 0 or ids.max() >= vocab_size:
            size = len(shortlist.starts) - 1
            raise UserError(f"--shortlist {file}: made for {size} pieces, and the model has {vocab_size}; make it anew")
        return shortlist

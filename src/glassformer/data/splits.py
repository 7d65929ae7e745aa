"""Cutting a corpus into train, dev, and test so that nothing in one gives another away."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from glassformer.data.digests import digest, leak_key, pair_digest
from glassformer.data.lines import Pair
from glassformer.errors import UserError

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Share:
    """How much goes to a split: so many pairs, or that part of all."""

    amount: float
    is_count: bool

    @classmethod
    def parse(cls, text: str, flag: str) -> "Share":
        """Read `2000`, `0.05`, or `5%`.

        Raises:
            UserError: anything else, naming the flag.
        """
        try:
            if text.isascii() and text.isdigit():
                return cls(int(text), True)
            amount = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            amount = -1.0
        if not 0 <= amount < 1:
            raise UserError(f"{flag} {text}: expected a number of pairs (2000) or a share below 1 (0.05, 5%)")
        return cls(amount, False)

    def of(self, total: int) -> int:
        """Pairs, of `total`."""
        return int(self.amount) if self.is_count else round(self.amount * total)


class _Groups:
    """Union–find with path halving and union by size (Tarjan and van Leeuwen 1984)."""

    def __init__(self, items: int) -> None:
        self.parent, self.size = array("I", range(items)), array("I", [1]) * items

    def root(self, item: int) -> int:
        parent = self.parent
        while parent[item] != item:
            parent[item] = item = parent[parent[item]]
        return item

    def join(self, one: int, other: int) -> None:
        one, other = self.root(one), self.root(other)
        if one != other:
            if self.size[one] < self.size[other]:
                one, other = other, one
            self.parent[other] = one
            self.size[one] += self.size[other]


def split_pairs(
    pairs: Iterable[Pair], dev: Share, test: Share, *, languages: tuple[str, str] = ("", ""), seed: int = 1
) -> bytearray:
    """Choose a split for each pair: an index into `SPLITS`.

    Pairs that share a source or a target, by `leak_key`, are in one group, and so are the pairs of groups that touch;
    a group goes to one split as a whole. Groups are taken in an order set by a hash of their text and the seed, so
    that the order of the pairs does not matter. Test is filled first, then dev; a group too large for what room is left
    goes to train.

    Args:
        pairs: any number; no text is held, but some eighty bytes are for each.
        dev: how much goes to dev.
        test: how much goes to test.
        languages: codes of source and target, for `leak_key`.
        seed: any integer.

    Raises:
        UserError: dev and test ask for more than there is, or leave nothing to train on.
    """
    sides, digests = (array("Q"), array("Q")), array("Q")
    for pair in pairs:
        keys = [leak_key(side, language) for side, language in zip(pair, languages, strict=True)]
        for side, key in zip(sides, keys, strict=True):
            # What is blank has nothing to give away.
            side.append(digest(key) if key else 0)
        digests.append(pair_digest(*keys))
    total = len(digests)
    room = {2: test.of(total), 1: dev.of(total)}
    if total and sum(room.values()) >= total:
        raise UserError(
            f"--dev and --test ask for {room[1]} + {room[2]} of {total} pairs, which leaves none to train on"
        )
    groups = _Groups(total)
    for side in sides:
        order = np.argsort(side)
        ordered = np.asarray(side)[order]
        repeats = np.flatnonzero((ordered[1:] == ordered[:-1]) & (ordered[1:] != 0))
        for one, other in zip(order[repeats].tolist(), order[repeats + 1].tolist(), strict=True):
            groups.join(one, other)
    roots = np.fromiter(map(groups.root, range(total)), np.uint32, total)
    names = np.full(total, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(names, roots, digests)
    heads = np.unique(roots)
    hashes = (blake2b(b"%d %d" % (seed, name), digest_size=8).digest() for name in names[heads])
    order = np.argsort(np.fromiter((int.from_bytes(value) for value in hashes), np.uint64, len(heads)))
    choice = np.zeros(total, np.uint8)
    for root in heads[order]:
        fits = [split for split, left in room.items() if groups.size[root] <= left]
        if fits:
            choice[root] = fits[0]
            room[fits[0]] -= groups.size[root]
            if not any(room.values()):
                break
    return bytearray(choice[roots])

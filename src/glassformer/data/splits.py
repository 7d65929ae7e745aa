"""Cutting a corpus into train, dev, and test so that nothing in one gives another away."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

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

    def __init__(self) -> None:
        self.parent, self.size = array("q"), array("q")

    def add(self) -> int:
        self.parent.append(len(self.parent))
        self.size.append(1)
        return len(self.parent) - 1

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
        pairs: any number; no text is held, but some hundreds of bytes are for each.
        dev: how much goes to dev.
        test: how much goes to test.
        languages: codes of source and target, for `leak_key`.
        seed: any integer.

    Raises:
        UserError: dev and test ask for more than there is, or leave nothing to train on.
    """
    groups = _Groups()
    known: dict[int, int] = {}
    digests = array("Q")
    for pair in pairs:
        item = groups.add()
        keys = [leak_key(side, language) for side, language in zip(pair, languages, strict=True)]
        for side, key in enumerate(keys):
            # What is blank has nothing to give away.
            if key:
                groups.join(known.setdefault(digest(f"{side}{key}"), item), item)
        digests.append(pair_digest(*keys))
    total = len(digests)
    room = {2: test.of(total), 1: dev.of(total)}
    if total and sum(room.values()) >= total:
        raise UserError(
            f"--dev and --test ask for {room[1]} + {room[2]} of {total} pairs, which leaves none to train on"
        )
    names: dict[int, int] = {}
    for item, value in enumerate(digests):
        root = groups.root(item)
        names[root] = min(value, names.get(root, value))
    chosen: dict[int, int] = {}
    for root in sorted(names, key=lambda root: blake2b(b"%d %d" % (seed, names[root]), digest_size=8).digest()):
        fits = [split for split, left in room.items() if groups.size[root] <= left]
        if fits:
            chosen[root] = fits[0]
            room[fits[0]] -= groups.size[root]
            if not any(room.values()):
                break
    return bytearray(chosen.get(groups.root(item), 0) for item in range(total))

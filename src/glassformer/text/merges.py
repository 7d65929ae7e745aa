"""Learning byte-pair merges (Sennrich et al. 2016, arXiv:1508.07909, algorithm 1), for every marking of word parts.

Ties between equally frequent pairs go to the lexicographically largest pair, as in the reference implementation
subword-nmt, whose published merges this reproduces exactly. The `tokenizers` library, which trains our `bpe` kind since
it is far faster, gives ties to the pair of the oldest pieces instead; on subword-nmt's corpus it parts from the
reference at the first tie (merge 15) and shares 879 of its 1,000 merges.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise

END_OF_WORD = "</w>"


class _LargestFirst(tuple[str, str]):
    """A pair that a min-heap yields in descending order."""

    __slots__ = ()
    __lt__ = tuple.__gt__


def learn_merges(
    words: Mapping[tuple[str, ...], int],
    limit: int,
    min_frequency: int = 2,
    join: Callable[[str, str], str] = str.__add__,
) -> list[tuple[str, str]]:
    """The `limit` best merges, in order.

    Args:
        words: how often each word occurs, as its starting symbols, such as `("t", "h", "e</w>")`.
        min_frequency: learning stops at pairs rarer than this.
        join: spells the symbol that a merge makes.
    """
    spelled = [list(word) for word in words]
    counts = list(words.values())
    pairs: Counter[tuple[str, str]] = Counter()
    where: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for index, symbols in enumerate(spelled):
        for pair in pairwise(symbols):
            pairs[pair] += counts[index]
            where[pair].add(index)
    heap = [(-count, _LargestFirst(pair)) for pair, count in pairs.items()]
    heapq.heapify(heap)
    merges: list[tuple[str, str]] = []
    while heap and len(merges) < limit:
        negative, key = heapq.heappop(heap)
        best = (key[0], key[1])
        if pairs[best] != -negative:
            continue
        if -negative < min_frequency:
            break
        merges.append(best)
        changed: set[tuple[str, str]] = set()
        for index in where.pop(best):
            before, after = spelled[index], _merge(spelled[index], best, join(*best))
            spelled[index] = after
            for pair in pairwise(before):
                pairs[pair] -= counts[index]
                changed.add(pair)
            for pair in pairwise(after):
                pairs[pair] += counts[index]
                where[pair].add(index)
                changed.add(pair)
        pairs.pop(best, None)
        for pair in changed - {best}:
            if pairs[pair] > 0:
                heapq.heappush(heap, (-pairs[pair], _LargestFirst(pair)))
    return merges


def _merge(symbols: list[str], pair: tuple[str, str], joined: str) -> list[str]:
    merged: list[str] = []
    index = 0
    while index < len(symbols):
        if index + 1 < len(symbols) and (symbols[index], symbols[index + 1]) == pair:
            merged.append(joined)
            index += 2
        else:
            merged.append(symbols[index])
            index += 1
    return merged

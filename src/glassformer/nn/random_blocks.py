"""Which random blocks a block of tokens sees, drawn as `transformers` draws them, so that trained weights find them.

The original code (google-research/bigbird) draws by NumPy's first generator from a seed for each layer; so does this.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

PLANNED = (1024, 3072, 4096)
"""Lengths in tokens for which the paper's models drew in another way."""
NEAR = 1024
"""There, random blocks lie among so many first tokens."""


@lru_cache(maxsize=64)
def drawn(seed: int, n_heads: int, n_blocks: int, count: int, size: int, plan_len: int) -> np.ndarray:
    """The random blocks of every head and every block but the first and the last.

    Args:
        n_blocks: At least ``6 + 2 · count``.
        count: Random blocks for each.
        size: Tokens of a block.
        plan_len: Length that is drawn for where the text is one of ``PLANNED``.

    Returns:
        int64, shape (H, n_blocks − 2, count).
    """
    source = np.random.RandomState(seed)
    if count and n_blocks * size in PLANNED and n_blocks <= plan_len // size and NEAR // size >= 4 + 2 * count:
        return np.stack([_near(source, plan_len // size, count, NEAR // size)[: n_blocks - 2] for _ in range(n_heads)])
    first = 5 + 2 * count
    result = np.zeros((n_heads, n_blocks, count), np.int64)
    for block in range(1, n_blocks):
        for head in range(n_heads):
            result[head, block] = _allowed(source, block, first)[:count]
    return result[:, 1:-1]


def _allowed(source: np.random.RandomState, block: int, first: int) -> np.ndarray:
    """Blocks among the first ones that ``block`` does not see anyhow, shuffled."""
    seen = {block - 1, block, block + 1, 0, first - 1}
    if block == 1:
        seen.add(first - 2)
    if block == first - 2:
        seen.add(1)
    return np.array([each for each in source.permutation(np.arange(first, dtype=np.int32)) if each not in seen])


def _near(source: np.random.RandomState, n_blocks: int, count: int, near: int) -> np.ndarray:
    """The drawing of the paper's models, slips included: a block near the end may draw a neighbour."""
    middle, last = np.arange(1, n_blocks - 1, dtype=np.int32), near - 1
    rows = []
    for block in range(1, n_blocks - 1):
        start = min(block - 2, last)
        if block <= 2:
            choice = middle[block + 1 : last]
        elif block >= n_blocks - 3:
            choice = middle[:last]
        elif block - 2 > last or block + 1 == last:
            choice = middle[:start]
        else:
            choice = np.concatenate((middle[:start], middle[block + 1 : last]))
        rows.append(source.permutation(choice)[:count])
    return np.array(rows, np.int64)

"""Parallel text in, batches out.

`glassformer.data.collate` is not imported here: it needs PyTorch, and reading lines does not.
"""

from glassformer.data.batching import Plan, plan_epoch, shard
from glassformer.data.corpus import Pair, read_lines, read_pairs

__all__ = ["Pair", "Plan", "plan_epoch", "read_lines", "read_pairs", "shard"]

"""Parallel text in, batches out.

Names are imported on first use: reading lines needs neither the other formats' parsers nor, as `data.collate` does,
PyTorch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.data.batching import Plan, plan_epoch, shard
    from glassformer.data.corpus import Pair, read_lines, read_pairs

__all__ = ["Pair", "Plan", "plan_epoch", "read_lines", "read_pairs", "shard"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from glassformer.data import batching, corpus

    return getattr(batching, name, None) or getattr(corpus, name)

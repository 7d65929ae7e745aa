"""PyTorch's module as an engine, and the decoding of ids that every `Decodable` shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glassformer.config import StackConfig
from glassformer.data.collate import pad
from glassformer.generate.beam import search
from glassformer.generate.config import Request, SamplingConfig, SearchConfig
from glassformer.generate.events import Event
from glassformer.generate.hypothesis import Hypothesis
from glassformer.generate.protocol import Decodable
from glassformer.generate.streaming import generate, stream
from glassformer.trace.recorder import record

if TYPE_CHECKING:
    import numpy as np

    from glassformer.models.seq2seq import Seq2Seq

Ids = Sequence[Sequence[int]]
_PADDING = 0
"""Any id of the vocabulary: what stands in padding is masked, or lies behind a target's end."""


class ModelEngine:
    """A torch module, on any device.

    Args:
        module: made float32, moved to the device and put in eval mode.
        device: where it runs.
        precision: "bf16" runs matrix products in it by autocast; "fp32" and "auto" leave float32.
    """

    name = "model"

    def __init__(self, module: Seq2Seq, device: torch.device | str = "cpu", precision: str = "auto") -> None:
        self.device = torch.device(device)
        self.module = module.float().to(self.device).eval()
        self.decodable: Decodable[Any] = self.module
        self.precision = "fp32" if precision == "auto" else precision
        config = module.config
        self.vocab_size = config.target_vocab_size
        self.source_limit, self.target_limit = _positions(config.encoder), _positions(config.decoder)
        blocks = config.decoder.blocks if config.decoder else ()
        self.cross_heads = {i: block.cross.n_heads for i, block in enumerate(blocks) if block.cross is not None}

    def decode(self, sources: Ids, config: SearchConfig | SamplingConfig, request: Request) -> list[list[Hypothesis]]:
        with self._autocast():
            return decode_ids(self.decodable, sources, config, request, self.device)

    def groups_itself(self, config: SearchConfig | SamplingConfig, request: Request) -> bool:
        return False

    def stream(self, sources: Ids, config: SamplingConfig, request: Request) -> Iterator[Event]:
        events = stream_ids(self.decodable, sources, config, request, self.device)
        while True:
            with self._autocast():  # around each step, since whoever reads the events computes, too
                event = next(events, None)
            if event is None:
                return
            yield event

    @torch.no_grad()
    def logprobs(self, sources: Ids, targets: Ids, bos_id: int) -> list[list[float]]:
        source_BS, source_mask_BS = _padded(sources, self.device)
        target_BT, _ = _padded([[bos_id, *target[:-1]] for target in targets], self.device)
        label_BT, _ = _padded(targets, self.device)
        with self._autocast():
            state = self.decodable.start(source_BS, source_mask_BS)
            logits_BTV = self.decodable.step(target_BT, state, last_only=False)
        logprob_BT = logits_BTV.float().log_softmax(-1).gather(2, label_BT.unsqueeze(2)).squeeze(2)
        return [row_T[: len(target)] for row_T, target in zip(logprob_BT.tolist(), targets, strict=True)]

    @torch.inference_mode()
    def hidden(self, sources: Ids) -> list[np.ndarray]:
        ids_BS, mask_BS = _padded([list(ids) or [_PADDING] for ids in sources], self.device)
        with self._autocast():
            x_BSD = self.module.hidden(ids_BS, mask_BS).float().cpu()  # type: ignore[arg-type]  # one stack: a mask
        return [x_SD[: len(ids)].numpy() for x_SD, ids in zip(x_BSD, sources, strict=True)]

    @torch.no_grad()
    def cross_attention(self, sources: Ids, targets: Ids, heads: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        source_BS, source_mask_BS = _padded(sources, self.device)
        target_BT, _ = _padded(targets, self.device)  # padding lies behind all that is looked at
        with record(self.module) as trace:
            self.module.hidden(source_BS, target_BT, source_mask_BS)
        patterns = [trace[f"decoder.layers.{layer}.cross.pattern"][:, head].float() for layer, head in heads]
        weights_BHTS = torch.stack(patterns, 1).cpu().numpy()
        rows = zip(weights_BHTS, targets, sources, strict=True)
        return [weights_HTS[:, : len(target), : len(source)] for weights_HTS, target, source in rows]

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")


def decode_ids(
    model: Decodable[Any],
    sources: Ids,
    config: SearchConfig | SamplingConfig,
    request: Request,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """`search` or `generate`, whichever the config is of, over sources of any lengths."""
    padded = _padded(sources, torch.device(device))
    if isinstance(config, SearchConfig):
        return search(model, *padded, config, request)
    return generate(model, *padded, config, request)


def stream_ids(
    model: Decodable[Any],
    sources: Ids,
    config: SamplingConfig,
    request: Request,
    device: torch.device | str = "cpu",
) -> Iterator[Event]:
    """`stream` over sources of any lengths."""
    return stream(model, *_padded(sources, torch.device(device)), config, request)


def _padded(rows: Ids, device: torch.device) -> tuple[Tensor, Tensor | None]:
    ids_BS, mask_BS = pad(rows, _PADDING)
    return ids_BS.to(device), None if mask_BS is None else mask_BS.to(device)


def _positions(stack: StackConfig | None) -> int | None:
    return None if stack is None else stack.max_len

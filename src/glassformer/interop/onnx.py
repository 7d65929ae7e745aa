"""ONNX graphs, out: every size of batch and length in one graph, checked against nothing but the standard.

An encoder–decoder becomes ``encoder.onnx`` (source, source_mask → memory) and ``decoder.onnx`` (target, memory,
source_mask → logits of every position); any other model ``model.onnx`` (input, or pixels → output). Masks are boolean,
True where a token is real. A decoder reads its whole target at each step: there is no cache between steps.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.config import ModelConfig, PatchEmbedConfig
from glassformer.errors import UserError
from glassformer.header import FORMAT_VERSION, Framing
from glassformer.nn.mixer import Context
from glassformer.nn.tap import Tap, _recorder
from glassformer.store import FileHeader, atomic_directory
from glassformer.text.tokenizer import Tokenizer

OPSET = 18
CONFIG = "config.json"


class _Encoder(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, source_BS: Tensor, source_mask_BS: Tensor) -> Tensor:
        return self.model.encode(source_BS, source_mask_BS)


class _Decoder(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, target_BT: Tensor, memory_BSD: Tensor, source_mask_BS: Tensor) -> Tensor:
        # A mask, if of nothing, keeps causality in the graph whatever the length.
        everything_BT = torch.ones_like(target_BT, dtype=torch.bool)
        ctx = Context(mask_BS=everything_BT, memory_BSD=memory_BSD, memory_mask_BS=source_mask_BS)
        hidden_BTD = self.model.decoder(self.model.decoder_embed(target_BT), ctx)
        return hidden_BTD if self.model.head is None else self.model.head(hidden_BTD, self.model.decoder_embed)


class _Explicit:
    """A recorder that keeps nothing: while one looks, attention takes the path that is made of plain operations."""

    def see(self, tap: Tap, value: Tensor) -> Tensor:
        return value


def save(directory: Path, model: Any, tokenizer: Tokenizer | None = None, framing: Framing | None = None) -> None:
    """Writes a model's graphs, its ``config.json`` and its tokenizer; needs ``onnx`` and ``onnxscript`` installed.

    Raises:
        UserError: They are not installed, or the directory exists.
    """
    if directory.exists():
        raise UserError(f"{directory}: exists already; name a new directory")
    with atomic_directory(directory) as scratch:
        export(scratch, model)
        sha256 = tokenizer.hash if tokenizer else None
        header = FileHeader(format_version=FORMAT_VERSION, model=model.config, framing=framing, tokenizer_sha256=sha256)
        text = json.dumps(header.to_dict(), indent=2, ensure_ascii=False)
        (scratch / CONFIG).write_text(text + "\n", encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(scratch)


def export(directory: Path, model: Any) -> None:
    """Writes a model's graphs alone."""
    try:
        import onnx  # noqa: F401 (only whether it is there)
        import onnxscript  # noqa: F401 (likewise)
    except ImportError:
        raise UserError("writing ONNX needs two packages: pip install 'glassformer[convert]'") from None
    config = model.config
    _refuse_loops(config)
    device = next(model.parameters()).device
    mask_BS = torch.ones(2, 7, dtype=torch.bool, device=device)
    ids_BS, ids_BT = (
        torch.zeros(2, 7, dtype=torch.long, device=device),
        torch.zeros(2, 5, dtype=torch.long, device=device),
    )
    source, target = {0: "batch", 1: "source"}, {0: "batch", 1: "target"}
    if config.kind == "encoder-decoder":
        memory_BSD = torch.zeros(2, 7, config.d_model, device=device)
        inputs = {"source": source, "source_mask": source}
        _export(directory / "encoder.onnx", _Encoder(model), (ids_BS, mask_BS), inputs, "memory")
        inputs = {"target": target, "memory": source, "source_mask": source}
        _export(directory / "decoder.onnx", _Decoder(model), (ids_BT, memory_BSD, mask_BS), inputs, "logits")
    elif isinstance(config.embed, PatchEmbedConfig):
        pixels = torch.zeros(2, config.embed.channels, *config.embed.image_size, device=device)
        _export(directory / "model.onnx", model, (pixels,), {"pixels": {0: "batch"}}, "output")
    else:
        inputs = {"input": source, "input_mask": source}
        _export(directory / "model.onnx", model, (ids_BS, mask_BS), inputs, "output")


def _refuse_loops(config: ModelConfig) -> None:
    """Refuses, by name, parts whose work depends on the length: a graph would hold that of the example."""
    try:
        for _, stack in config.stacks:
            for block in stack.blocks:
                _ = block.attention, block.mlp
    except UserError as error:
        raise UserError(f"ONNX: {error}") from None


def _export(file: Path, module: nn.Module, args: Any, inputs: dict[str, dict[int, str]], output: str) -> None:
    large = sum(parameter.nbytes for parameter in module.parameters()) > 2**30  # protocol buffers end at 2 GiB
    with torch.no_grad(), _quiet(), _explicitly():
        module.eval()(*args)  # what is computed once and kept, such as rotary angles, must not be a tracer's stand-in
        torch.onnx.export(
            module,
            args,
            str(file),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=[output],
            dynamic_shapes=tuple(inputs.values()),
            external_data=large,
            verbose=False,
        )


@contextlib.contextmanager
def _explicitly() -> Iterator[None]:
    token = _recorder.set(_Explicit())
    try:
        yield
    finally:
        _recorder.reset(token)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter tells its own developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def run(directory: Path, inputs: list[Any]) -> Any:
    """What onnxruntime makes of numpy inputs, in the order of the model's ``forward``.

    Raises:
        ImportError: onnxruntime is not installed.
    """
    import onnxruntime

    def session(name: str, values: list[Any]) -> Any:
        opened = onnxruntime.InferenceSession(str(directory / name), providers=["CPUExecutionProvider"])
        return opened.run(None, {each.name: value for each, value in zip(opened.get_inputs(), values, strict=True)})[0]

    if (directory / "model.onnx").exists():
        return session("model.onnx", inputs)
    source, target, mask = inputs
    return session("decoder.onnx", [target, session("encoder.onnx", [source, mask]), mask])

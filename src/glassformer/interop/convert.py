"""From any format that is read to any that is written, and proof that both say the same.

Source and result are run on random inputs, each by whoever defines its format where that is installed
(``transformers``, ``ctranslate2``, ``onnxruntime``), else by ourselves; what was not run is told.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer import interop
from glassformer.config import ModelConfig, PatchEmbedConfig
from glassformer.errors import UserError
from glassformer.header import Framing
from glassformer.interop import ct2, hf, onnx
from glassformer.interop.sentence_transformers import Settings
from glassformer.store import Loaded, load_model, save_model

TARGETS = ("glassformer", "hf", "ct2", "onnx")
KEEP_SETTINGS = ("glassformer", "hf")
"""Formats that say beside a model how its vectors are made."""
TOLERANCE = 1e-3
"""The largest difference that a result may have, as a share of the largest logit (or of 1, if that is less)."""
ROWS, LENGTH, TARGET_LENGTH = 3, 12, 7


@dataclass(frozen=True)
class Comparison:
    """How far the result of a conversion is from its source.

    Attributes:
        source, result: What ran them; None where nothing here can.
        difference: The largest between their outputs on random inputs; None where one of them was not run.
        quantity: What was compared, such as "logits (3, 7, 97)".
        notes: What was not compared, and why.
    """

    source: str | None
    result: str | None
    difference: float | None
    quantity: str
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.difference is None:
            return "; ".join(["not compared", *self.notes])
        told = f"{self.quantity} of {self.source} and {self.result} differ by at most {self.difference:.2g}"
        return "; ".join([told, *self.notes])


@dataclass(frozen=True)
class _Inputs:
    """Random inputs: (ids or pixels), of an encoder–decoder also what its decoder reads; and which tokens are real."""

    first: Tensor
    target_BT: Tensor | None
    mask_BS: Tensor | None


def convert(source: Path, destination: Path, to: str = "glassformer", quantisation: str | None = None) -> Comparison:
    """Writes a model in another format.

    Args:
        source: A model of any format that is read.
        destination: A directory that does not exist yet; it appears whole and compared, or not at all.
        to: One of ``TARGETS``.
        quantisation: How CTranslate2 stores matrices, such as ``int8``; its rounding is then told and not judged.

    Raises:
        UserError: The source cannot be read, the format cannot represent it, the destination exists, or the result
            says something else than the source.
    """
    if to not in TARGETS:
        raise UserError(f"--to {to}: expected one of {', '.join(TARGETS)}")
    if quantisation is not None and to != "ct2":
        raise UserError(f"--quantization {quantisation}: only --to ct2 has it")
    if destination.exists():
        raise UserError(f"{destination}: exists already; name a new directory")
    form = interop.format_of(source)
    loaded = load_model(source) if form is None else interop.load(source, form)
    scratch = destination.with_name(f".{destination.name}.{os.getpid()}.converted")
    try:
        settings = Settings.read(source) if source.is_dir() else None
        _write(scratch, loaded, to, quantisation)
        if settings is not None and to in KEEP_SETTINGS:
            settings.write(scratch, loaded.model.config.d_model)
        compared = _compare(source, form or "glassformer", loaded, scratch, to)
        if settings is not None and to not in KEEP_SETTINGS:
            compared.notes.append(f"{to} does not keep how sentence-transformers pools")
        if compared.difference is not None and quantisation is None and compared.difference > TOLERANCE:
            raise UserError(f"{destination}: not written, since the result is another model: {compared}")
        os.replace(scratch, destination)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return compared


def _write(path: Path, loaded: Loaded, to: str, quantisation: str | None) -> None:
    model, tokenizer, framing = loaded.model, loaded.tokenizer, loaded.framing
    match to:
        case "glassformer":
            save_model(path, model, tokenizer, loaded.translation, framing=framing)
        case "hf":
            hf.save(path, model, tokenizer, framing)
        case "ct2":
            ct2.save(path, model, tokenizer, framing, quantisation)
        case _:
            onnx.save(path, model, tokenizer, framing)


def _compare(source: Path, form: str, loaded: Loaded, result: Path, to: str) -> Comparison:
    config = loaded.model.config
    inputs = _random_inputs(config, loaded.framing or Framing())
    notes: list[str] = []
    with _quiet():
        told = _run(source, form, inputs, loaded, notes)
        own = ("our reading of it", _ours(loaded.model, inputs))
        written = _run(result, to, inputs, loaded, notes)
    if told is None:
        notes.append("so the result is compared with our reading of the source")
        told = own
    if written is None:
        return Comparison(told[0], None, None, "", notes)
    (who, a), (whom, b) = told, written
    if a.shape != b.shape:  # one of them tells the log-probabilities of the target alone
        a, b = (_of_targets(values, inputs) for values in (a, b))
        quantity = "log-probabilities"
    else:
        quantity = "outputs" if config.head is None else "logits"
    if a.shape != b.shape:
        raise UserError(f"the result gives {list(b.shape)} where the source gives {list(a.shape)}")
    scale = max(1.0, a.abs().max().item())
    difference = (a - b).abs().max().item() / scale
    return Comparison(who, whom, difference, f"{quantity} {tuple(a.shape)}", notes)


def _random_inputs(config: ModelConfig, framing: Framing) -> _Inputs:
    """Ids from the middle of the vocabulary on, where none keeps its special tokens, framed as texts are."""
    random = torch.Generator().manual_seed(0)
    if isinstance(config.embed, PatchEmbedConfig):
        shape = (ROWS, config.embed.channels, *config.embed.image_size)
        return _Inputs(torch.randn(shape, generator=random), None, None)

    def ids(vocab_size: int, length: int, limit: int | None, *around: Sequence[int]) -> Tensor:
        before, after = (torch.tensor(each, dtype=torch.long).expand(ROWS, -1) for each in around)
        inner = max(0, min(length, limit or length) - before.shape[1] - after.shape[1])
        first, last = vocab_size // 2, max(vocab_size - 1, vocab_size // 2 + 1)
        return torch.cat([before, torch.randint(first, last, (ROWS, inner), generator=random), after], 1)

    limits = [stack.max_len for _, stack in config.stacks]
    if config.kind != "encoder-decoder":
        first_BS = ids(config.embed.vocab_size, LENGTH, limits[0], (), ())
        mask_BS = torch.ones_like(first_BS, dtype=torch.bool)
        if config.kind == "encoder":
            mask_BS[1:, LENGTH * 2 // 3 :] = False
        return _Inputs(first_BS, None, mask_BS)
    first_BS = ids(config.embed.vocab_size, LENGTH, limits[0], framing.before, framing.after)
    start = (framing.start,) if framing.start is not None else (0,)
    target_BT = ids(config.target_vocab_size, TARGET_LENGTH, limits[1], start, ())
    return _Inputs(first_BS, target_BT, torch.ones_like(first_BS, dtype=torch.bool))


def _of_targets(values: Tensor, inputs: _Inputs) -> Tensor:
    """The log-probability of each token that follows, of logits; what is that already stays as it is."""
    if values.dim() == 2:
        return values
    read_BT = inputs.first if inputs.target_BT is None else inputs.target_BT
    return values[:, :-1].log_softmax(-1).gather(2, read_BT[:, 1:, None]).squeeze(2)


Ran = tuple[str, Tensor]


def _run(path: Path, form: str, inputs: _Inputs, loaded: Loaded, notes: list[str]) -> Ran | None:
    """Who ran the model at that path, and what it gave; None, with a note, where nobody can."""
    runners: dict[str, tuple[str, Callable[[], Tensor]]] = {
        "hf": ("transformers", lambda: _transformers(path, inputs)),
        "ct2": ("ctranslate2", lambda: _ctranslate2(path, inputs, loaded.framing or Framing())),
        "onnx": ("onnxruntime", lambda: _onnxruntime(path, inputs)),
    }
    if form == "glassformer":
        return "glassformer", _ours(load_model(path).model, inputs)
    if form not in runners:
        notes.append(f"a {form} source cannot be run here")
        return None
    package, run = runners[form]
    if importlib.util.find_spec(package) is None:
        notes.append(f"{package} is not installed (pip install {package})")
        return (
            (f"our reading of it ({form})", _ours(interop.load(path, form).model, inputs)) if form != "onnx" else None
        )
    return package, run().float()


@torch.no_grad()
def _ours(model: Any, inputs: _Inputs) -> Tensor:
    return _kept(model(*(x for x in (inputs.first, inputs.target_BT, inputs.mask_BS) if x is not None)), inputs)


def _kept(values: Tensor, inputs: _Inputs) -> Tensor:
    """Outputs at padding are nobody's business."""
    if inputs.mask_BS is not None and inputs.target_BT is None and values.dim() == 3:
        return values * inputs.mask_BS[..., None]
    return values


@torch.no_grad()
def _transformers(path: Path, inputs: _Inputs) -> Tensor:
    import transformers

    (architecture, *_) = json.loads((path / "config.json").read_text(encoding="utf-8"))["architectures"]
    model = getattr(transformers, architecture).from_pretrained(path, dtype=torch.float32).eval()
    given = {"pixel_values": inputs.first}
    if inputs.mask_BS is not None:
        given = {"input_ids": inputs.first, "attention_mask": inputs.mask_BS.long()}
    if inputs.target_BT is not None:
        given["decoder_input_ids"] = inputs.target_BT
    out = model(**given)
    if "start_logits" in out:
        values = torch.stack([out.start_logits, out.end_logits], -1)
    else:
        values = out.logits if "logits" in out else out.last_hidden_state
    return _kept(values, inputs)


def _ctranslate2(path: Path, inputs: _Inputs, framing: Framing) -> Tensor:
    """Log-probabilities of the tokens behind the first; it puts the frame around a text itself."""
    import ctranslate2

    source, target = ct2.vocabularies(path)
    if inputs.target_BT is None:
        generator = ctranslate2.Generator(str(path), compute_type="float32", intra_threads=1)
        rows = [[target[index] for index in ids] for ids in inputs.first.tolist()]
        return torch.tensor([each.log_probs for each in generator.score_batch(rows)])
    translator = ctranslate2.Translator(str(path), compute_type="float32", intra_threads=1)
    inner = slice(len(framing.before), inputs.first.shape[1] - len(framing.after))
    sources = [[source[index] for index in ids[inner]] for ids in inputs.first.tolist()]
    targets = [[target[index] for index in ids[1:]] for ids in inputs.target_BT.tolist()]
    scored = translator.score_batch(sources, targets)
    return torch.tensor([each.log_probs[: len(row)] for each, row in zip(scored, targets, strict=True)])


def _onnxruntime(path: Path, inputs: _Inputs) -> Tensor:
    given = [x.numpy() for x in (inputs.first, inputs.target_BT, inputs.mask_BS) if x is not None]
    return _kept(torch.from_numpy(onnx.run(path, given)), inputs)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the other libraries tell their own users."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars
            yield
    finally:
        logger.setLevel(level)

"""How many source and target tokens a second does training take? Against Hugging Face's Marian of the same numbers.

Ours is the step of ``glassformer train``: batches from text, autocast, the loss, the sum over workers, clipping, AdamW.
Theirs is the model in a plain loop with what their Trainer uses: its label smoother, fused AdamW, clipping, autocast;
with several processes, PyTorch's DistributedDataParallel. Both drop out at 0.1, smooth labels by 0.1, and pad nothing.
"""

from __future__ import annotations

import importlib
import random
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.measure import Call, Options, Question, System
from benchmarks.shapes import SHAPES, Shape, training_flops
from glassformer.train.config import load_config
from glassformer.train.distributed import World
from glassformer.train.loop import Trainer

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")


def ours(setting: str, *, precision: str) -> Call:
    """A step of our training loop, always on the same batch."""
    # The loop's own step: a copy of it here would still be measured long after the loop has changed.
    trainer = one_batch(setting, precision)
    (batch,) = trainer._batches
    return lambda: trainer._step([batch])


def one_batch(setting: str, precision: str) -> Trainer:
    """A run of ours about to take its first step, whose epoch is a single batch."""
    shape = SHAPES[setting]
    with TemporaryDirectory(prefix="benchmark-") as scratch:
        folder = Path(scratch)
        (folder / "run").mkdir()
        write_corpus(folder, shape)
        config = load_config(
            {
                "model": {"preset": shape.preset},
                "tokenizer": {"from": str(folder / "tokenizer.json")},
                "data": {"train": str(folder / "train.tsv")},
                "train": {
                    "output": str(folder / "run"),
                    "batch_tokens": shape.tokens,
                    "precision": precision,
                    "lr": 1e-4,
                    "schedule": "constant",
                },
            }
        )
        never: Any = threading.Event()  # all that a step asks of a Stop is is_set()
        trainer = Trainer(config, World(), never, resume=False)
        if trainer.reporter:
            trainer.reporter.close([], "")
    trainer.reporter = None  # its progress line would be drawn over the table
    trainer._begin_epoch()
    return trainer


def write_corpus(folder: Path, shape: Shape) -> None:
    """Random words, one token each, and their tokenizer: with ``</s>`` every side has ``shape.length`` tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [f"w{index}" for index in range(shape.vocab_size - len(SPECIALS))]
    vocabulary = {token: index for index, token in enumerate([*SPECIALS, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(folder / "tokenizer.json"))
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(words, k=shape.length - 1)) for _ in range(2 * shape.sentences)]
    lines = [f"{source}\t{target}\n" for source, target in zip(sentences[::2], sentences[1::2], strict=True)]
    (folder / "train.tsv").write_text("source\ttarget\n" + "".join(lines), encoding="utf-8")


def hugging_face(setting: str, *, precision: str) -> Call:
    """A step of a plain loop around Hugging Face's Marian; with several processes each takes its part of the batch."""
    transformers = importlib.import_module("transformers")
    smoother = importlib.import_module("transformers.trainer_pt_utils").LabelSmoother(epsilon=0.1)
    shape = SHAPES[setting]
    pad = shape.vocab_size - 1
    torch.manual_seed(0)
    marian = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=shape.vocab_size,
            decoder_vocab_size=shape.vocab_size,
            d_model=shape.d_model,
            encoder_layers=shape.layers,
            decoder_layers=shape.layers,
            encoder_attention_heads=shape.n_heads,
            decoder_attention_heads=shape.n_heads,
            encoder_ffn_dim=shape.d_ff,
            decoder_ffn_dim=shape.d_ff,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=512,
            dropout=0.1,
            attention_dropout=0.0,
            activation_dropout=0.0,
            pad_token_id=pad,
            decoder_start_token_id=pad,
            eos_token_id=0,
            forced_eos_token_id=None,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
        )
    ).train()
    parameters = [parameter for parameter in marian.parameters() if parameter.requires_grad]
    model: nn.Module = marian
    rank, size = 0, 1
    if dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
        model = nn.parallel.DistributedDataParallel(marian)
    source_BS, labels_BT = torch.randint(1, pad, (2, shape.sentences, shape.length))[:, rank::size]
    start_B1 = torch.full_like(labels_BT[:, :1], pad)
    batch = {
        "input_ids": source_BS,
        "attention_mask": torch.ones_like(source_BS),
        "decoder_input_ids": torch.cat([start_B1, labels_BT[:, :-1]], 1),
        "use_cache": False,
    }
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.98), fused=True)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bf16" else nullcontext()

    def call() -> float:
        optimizer.zero_grad()
        with autocast:
            loss = smoother(model(**batch), labels_BT)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return float(loss.detach())

    return call


def _systems(setting: str, options: Options) -> list[System]:
    threads = options.threads
    layouts = ((1, threads), (threads, 1)) if threads > 1 else ((1, 1),)
    return [
        System(
            f"{name} {precision} {processes}x{each}",
            partial(prepare, precision=precision),
            threads=each,
            processes=processes,
            peer=peer,
            packages=packages,
        )
        for name, prepare, peer, packages in (
            ("glassformer", ours, False, ("glassformer", "torch")),
            ("hf-marian", hugging_face, True, ("transformers", "torch")),
        )
        for precision in ("bf16", "fp32")
        for processes, each in layouts
    ]


def _rates(setting: str, options: Options) -> Mapping[str, float]:
    shape = SHAPES[setting]
    return {"tokens": shape.tokens, "GFLOP": training_flops(shape) / 1e9}


QUESTION = Question(tuple(SHAPES), ("small", "base"), _systems, _rates)

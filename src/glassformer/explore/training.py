"""A small translator that learns while one looks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from glassformer.data.collate import Batch, collate
from glassformer.explore.tokens import Tokens, finite
from glassformer.explore.words import word_tokenizer
from glassformer.families import build
from glassformer.generate.beam import search
from glassformer.generate.config import Request, SearchConfig
from glassformer.trace.recorder import record
from glassformer.train.objectives.loss import token_loss

STEPS, EVERY = 250, 5
RATE, WARMUP = 1.5e-3, 40
SECONDS = 0.09
"""What a step takes at least, so that one can follow: about 20 seconds in all."""
SHOWN = 0
"""Which pair is shown."""


def pairs(name: str) -> list[tuple[str, str]]:
    """Sentences with blanks between words, Chinese and English, from a file beside this one."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [(source, target) for source, _, target in (line.partition("\t") for line in lines)]


class Lesson:
    """A model of 2 + 2 layers, d_model 32, and the forty sentences that it learns."""

    def __init__(self, seed: int = 1) -> None:
        self.learnt, self.held_out = pairs("lesson.tsv"), pairs("held_out.tsv")
        self.tokenizer = word_tokenizer(sentence for pair in self.learnt for sentence in pair)
        self.tokens = Tokens(self.tokenizer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = build("transformer-tiny", vocab_size=self.tokenizer.vocab_size, max_len=64, dropout=0.0)
        self.optimizer = torch.optim.Adam(self.model.parameters(), RATE, betas=(0.9, 0.98))

    def batch(self, sentences: list[tuple[str, str]]) -> Batch:
        """Sentences under teacher forcing: the target shifted right is read, the target itself is to be said."""
        source = [[*self.tokenizer.encode(each), 2] for each, _ in sentences]
        target = [self.tokenizer.encode(each) for _, each in sentences]
        return collate(source, target, pad_id=0, bos_id=1, eos_id=2)

    def events(self, steps: int = STEPS, every: int = EVERY, seconds: float = SECONDS) -> Iterator[dict[str, Any]]:
        """Trains, and tells every few steps how far it is, as `TrainingEvent`; the last one is of step ``steps``."""
        batch, held_out = self.batch(self.learnt), self.batch(self.held_out)
        yield self.event(0, steps, self.loss(batch), self.loss(held_out))
        for step in range(1, steps + 1):
            started = time.monotonic()
            rate = RATE * min(step / WARMUP, 0.5 * (1 + math.cos(math.pi * (step - 1) / steps)) + 0.02)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            with torch.enable_grad():
                smoothed, nll = token_loss(self.model, batch, smoothing=0.0, pad_id=0)
                self.optimizer.zero_grad()
                (smoothed / batch.n_labels).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if step % every == 0 or step == steps:
                yield self.event(step, steps, float(nll.detach()) / batch.n_labels, self.loss(held_out))
            time.sleep(max(0.0, seconds - (time.monotonic() - started)))

    @torch.no_grad()
    def loss(self, batch: Batch) -> float:
        """Negative log-likelihood of a label, in nats."""
        return float(token_loss(self.model, batch, smoothing=0.0, pad_id=0)[1]) / batch.n_labels

    @torch.no_grad()
    def event(self, step: int, steps: int, loss: float, dev_loss: float) -> dict[str, Any]:
        """What is told of one moment, with one pair under teacher forcing and by itself."""
        shown = self.batch([self.learnt[SHOWN]])
        with record(self.model) as trace:
            logits_TV = self.model(*shown.inputs)[0]
        logprobs_TV = logits_TV.log_softmax(-1)
        label_T = logprobs_TV.gather(1, shown.labels[0][:, None])[:, 0]
        request = Request(1, 2, [0, 1, 3])
        said = search(self.model, shown.source_BS, None, SearchConfig(1, 1, 1.0, 12), request)[0][0]
        layer = len(self.model.decoder.layers) - 1
        one = self.tokens.one
        return {
            "step": step,
            "steps": steps,
            "loss": loss,
            "dev_loss": dev_loss,
            "source": [one(index) for index in shown.source_BS[0].tolist()],
            "decoder_input": [one(index) for index in shown.target_BT[0].tolist()],
            "labels": [one(index) for index in shown.labels[0].tolist()],
            "loss_per_position": [finite(each) for each in (-label_T).tolist()],
            "predictions": [one(index) for index in logits_TV.argmax(-1).tolist()],
            "label_probabilities": label_T.exp().tolist(),
            "free": [one(index) for index in (*said.ids, *([2] if said.finished else []))],
            "cross": trace[f"decoder.layers.{layer}.cross.pattern"][0].mean(0).tolist(),
        }

"""Trains the teaching model that ships with the package: d_model 4, one head, 6 + 6 layers, every number readable.

    python -P recipes/teaching.py OUTPUT [FIRST_SEED]

A model so narrow and so deep learns from few of its random beginnings: seeds are tried one after another until one
translates every sentence below, greedily and with a beam. What it reached is written to standard error.
"""

import math
import sys
from pathlib import Path

import torch

from glassformer.data.collate import collate
from glassformer.engines.model import ModelEngine
from glassformer.explore.words import word_tokenizer
from glassformer.families import build
from glassformer.header import Translation
from glassformer.store import save_model
from glassformer.train.objectives.loss import token_loss
from glassformer.translator import Translator

PAIRS = [
    ("我 爱 自然 语言 处理", "I love NLP"),
    ("你 爱 自然 语言 处理", "you love NLP"),
    ("我 喜欢 自然 语言 处理", "I like NLP"),
    ("你 喜欢 自然 语言 处理", "you like NLP"),
    ("我 喜欢 打 篮球", "I like playing basketball"),
    ("你 喜欢 打 篮球", "you like playing basketball"),
    ("我 爱 打 篮球", "I love playing basketball"),
    ("你 爱 打 篮球", "you love playing basketball"),
    ("我 爱 你", "I love you"),
    ("我 喜欢 你", "I like you"),
    ("你 爱 我", "you love me"),
    ("你 喜欢 我", "you like me"),
]
STEPS, WARMUP, RATE = 4000, 200, 8e-3
SMOOTHING = 0.1
"""Without it every answer would be certain, and there would be nothing to see in a distribution."""


def train(seed: int) -> tuple[torch.nn.Module, float]:
    """One try; gives the model and its last loss, in nats a token."""
    torch.manual_seed(seed)
    tokenizer = word_tokenizer(sentence for pair in PAIRS for sentence in pair)
    model = build("transformer-teaching", vocab_size=tokenizer.vocab_size, max_len=64).train()
    source = [[*tokenizer.encode(zh), tokenizer.eos_id] for zh, _ in PAIRS]
    target = [tokenizer.encode(en) for _, en in PAIRS]
    batch = collate(source, target, pad_id=0, bos_id=1, eos_id=2)
    optimizer = torch.optim.Adam(model.parameters(), RATE, betas=(0.9, 0.98))
    loss = math.inf
    for step in range(STEPS):
        rate = RATE * min((step + 1) / WARMUP, 0.5 * (1 + math.cos(math.pi * step / STEPS)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        smoothed, nll = token_loss(model, batch, smoothing=SMOOTHING, pad_id=0)
        optimizer.zero_grad()
        (smoothed / batch.n_labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss = float(nll) / batch.n_labels
        if step == STEPS // 4 and loss > 1.2:  # this beginning leads nowhere
            break
    return model.eval(), loss


def main(output: Path, seed: int) -> None:
    """Tries seeds until one knows all sentences, and saves its model."""
    translation = Translation("zh", "en")
    tokenizer = word_tokenizer(sentence for pair in PAIRS for sentence in pair)
    while True:
        model, loss = train(seed)
        translator = Translator(ModelEngine(model), tokenizer, translation)
        texts, wanted = ["".join(zh.split()) for zh, _ in PAIRS], [en for _, en in PAIRS]
        right = [
            sum(a == b for a, b in zip(translator.translate(texts, beam_size=n), wanted, strict=True)) for n in (1, 5)
        ]
        print(f"seed {seed}: loss {loss:.4f}, right {right} of {len(PAIRS)}", file=sys.stderr, flush=True)
        if right == [len(PAIRS)] * 2:
            save_model(output, model, tokenizer, translation)
            return
        seed += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)

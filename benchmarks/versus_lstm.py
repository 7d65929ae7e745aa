"""What recurrence costs, and what attention gains: the claims measured. ``python -m benchmarks.versus_lstm``.

The claims are those of section 4 of Vaswani et al. 2017: attention is trained in parallel over the positions, and its
path between any two of them is of length 1, where a recurrence's is as long as the text.

* ``depth``: the longest chain of operations of which each needs the one before: what no number of processors shortens.
* ``speed``: tokens a second in training, of a Transformer and an LSTM of as many parameters, on the same batches.
* ``recall``: after a few hundred steps, how often the first token is told after n others.
* ``gradient``: how much of an input is left in the output n tokens later, in fresh models: ``‖∂y_n / ∂x_0‖``.

Times are CPU times of one thread, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import glassformer as gf
from glassformer.config import ModelConfig
from glassformer.nn.mixer import Context

ROTARY = dict(max_len=4096)
MIXERS: dict[str, dict[str, Any]] = {
    "attention": dict(mixer=dict(n_heads=4, causal=True, bias=False, rotary=ROTARY), ffn=4),
    "lstm": dict(mixer=dict(type="lstm"), ffn=0),
    "rwkv4": dict(mixer=dict(type="rwkv4"), ffn=4),
    "rwkv7": dict(mixer=dict(type="rwkv7", n_heads=4, decay_rank=16, rate_rank=16, gate_rank=16), ffn=4),
}
LETTERS = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is asked for and prints its table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versus_lstm", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("claims", nargs="*", help="depth, speed, recall, gradient; all of them by default")
    parser.add_argument("--steps", type=int, default=400, help="of training, for recall (default 400)")
    parser.add_argument("--distances", default="4,16,64,256", help="of recall and gradient (default 4,16,64,256)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each model, for speed (default 5)")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    distances = [int(each) for each in args.distances.split(",")]
    for claim in args.claims or ("depth", "speed", "recall", "gradient"):
        if claim == "depth":
            table("depth: operations in a row, of one layer's mixer, forward", *depth((16, 64, 256, 1024)))
        elif claim == "speed":
            table("speed: training, thousand tokens/s of CPU", *speed(args.rounds))
        elif claim == "recall":
            table(
                f"recall: % told right after {args.steps} steps (chance {100 / LETTERS:.0f})",
                *recall(distances, args.steps),
            )
        elif claim == "gradient":
            table("gradient: ‖∂y_n / ∂x_0‖ relative to n = 1", *gradient(distances))
        else:
            parser.error(f"{claim}: known are depth, speed, recall and gradient")
    return 0


def table(title: str, heads: list[str], rows: list[list[str]]) -> None:
    """Prints a table of Markdown."""
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def twin(preset: str) -> tuple[Any, Any]:
    """A preset's Transformer, and the LSTM of equal width and layers whose memory makes it about as large."""
    transformer = gf.build(preset, dropout=0.0)
    config = transformer.config
    sizes = dict(
        d_model=config.d_model,
        encoder_layers=len(config.encoder.blocks),
        decoder_layers=len(config.decoder.blocks),
        vocab_size=config.embed.vocab_size,
        n_heads=config.decoder.blocks[0].cross.n_heads,
        dropout=0.0,
    )

    def count(width: int) -> int:
        return gf.build("lstm-tiny", device="meta", **sizes, d_hidden=width).num_parameters()

    near = min(range(8, 4 * config.d_model, 2), key=lambda width: abs(count(width) - transformer.num_parameters()))
    return transformer, gf.build("lstm-tiny", **sizes, d_hidden=near)


def depth(lengths: Sequence[int]) -> tuple[list[str], list[list[str]]]:
    """Of the graph that autograd keeps; a tracer makes PyTorch's fused LSTM tell its steps one by one."""
    rows = []
    for name in MIXERS:
        stack, row = decoder(name, layers=1).decoder, [name]
        for length in lengths:
            x_BTD = torch.randn(1, length, 64, requires_grad=True)
            with gf.record(stack):
                y_BTD = stack.layers[0].mixer(x_BTD, stack._prepared(Context(), x_BTD))
            row.append(str(longest_chain(y_BTD)))
        rows.append(row)
    return ["mixer", *(f"T = {length}" for length in lengths)], rows


def longest_chain(value: Tensor) -> int:
    """Nodes on the longest way from a tensor back to where its graph begins."""
    lengths: dict[Any, int] = {None: 0}
    waiting = [value.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [each for each, _ in node.next_functions] if node is not None else []
        unknown = [each for each in before if each not in lengths]
        waiting += unknown
        if not unknown:
            lengths[waiting.pop()] = 1 + max((lengths[each] for each in before), default=0)
    return lengths[value.grad_fn]


def speed(rounds: int) -> tuple[list[str], list[list[str]]]:
    """Training steps of both, turn by turn: the fastest turn of each counts."""
    rows = []
    for preset in ("transformer-tiny", "transformer-small"):
        models = twin(preset)
        optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-4) for model in models]
        for length in (16, 64, 256):
            tokens_BS = torch.randint(4, 60, (1024 // length, length), generator=torch.Generator().manual_seed(0))
            best = [float("inf")] * 2
            for _ in range(rounds):
                for which, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                    start = time.process_time()
                    step(optimizer, F.cross_entropy(model(tokens_BS, tokens_BS).flatten(0, 1), tokens_BS.flatten()))
                    best[which] = min(best[which], time.process_time() - start)
            rates = [2 * tokens_BS.numel() / each / 1000 for each in best]
            sizes = [f"{model.num_parameters():,}" for model in models]
            rows.append(
                [
                    preset,
                    *sizes,
                    f"{len(tokens_BS)} × {length}",
                    *(f"{r:.1f}" for r in rates),
                    f"{rates[0] / rates[1]:.2f}",
                ]
            )
    return ["model", "parameters", "of the LSTM", "batch", "Transformer", "LSTM", "ratio"], rows


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def decoder(name: str, d_model: int = 64, layers: int = 2, vocab_size: int = 2 * LETTERS + 1) -> Any:
    """A small decoder with that mixer; the LSTM, which has no feed-forward part, gets as many parameters."""
    kind = MIXERS[name]
    mixer = dict(kind["mixer"])
    if mixer.get("type") == "lstm":
        mixer["d_hidden"] = round(d_model * 1.22)  # 4 d h + 4 h² + h d is then 12 d²
    ffn = dict(d_ff=kind["ffn"] * d_model, activation="gelu") if kind["ffn"] else None
    stack = dict(blocks=[dict(repeat=layers, block=dict(mixer=mixer, ffn=ffn, order="pre"))], final_norm={})
    embed = dict(vocab_size=vocab_size)
    return gf.build(ModelConfig.from_dict(dict(d_model=d_model, embed=embed, decoder=stack)))


def lesson(distance: int, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A letter, so many others that are not asked for, a question mark; and the letter."""
    asked_B = torch.randint(LETTERS, (rows,), generator=generator)
    others_BS = torch.randint(LETTERS, 2 * LETTERS, (rows, distance), generator=generator)
    return torch.cat([asked_B[:, None], others_BS, torch.full((rows, 1), 2 * LETTERS)], 1), asked_B


def recall(distances: list[int], steps: int) -> tuple[list[str], list[list[str]]]:
    """Every mixer learns every distance afresh; what it told right of 512 new texts."""
    rows = []
    for name in MIXERS:
        row = [name]
        for distance in distances:
            torch.manual_seed(0)
            model, generator = decoder(name), torch.Generator().manual_seed(1)
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
            for number in range(steps):
                optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (number + 1) / 40) * (1 - number / steps)
                tokens_BT, asked_B = lesson(distance, 32, generator)
                loss = F.cross_entropy(model(tokens_BT)[:, -1], asked_B)
                step(optimizer, loss)
            with torch.no_grad():
                tokens_BT, asked_B = lesson(distance, 512, generator)
                right = (model.eval()(tokens_BT)[:, -1].argmax(-1) == asked_B).float().mean().item()
            row.append(f"{100 * right:.0f}")
        rows.append([*row, f"{model.num_parameters():,}"])
    return ["mixer", *(f"n = {distance}" for distance in distances), "parameters"], rows


def gradient(distances: list[int], seeds: int = 3) -> tuple[list[str], list[list[str]]]:
    """In one layer without its residual, whose path is of length 1 in every model."""
    rows = []
    for name in MIXERS:
        norms = torch.zeros(1 + len(distances))
        for seed in range(seeds):
            torch.manual_seed(seed)
            mixer = decoder(name, layers=1).decoder
            x_BTD = torch.randn(4, max(distances) + 1, 64)
            for place, distance in enumerate((1, *distances)):
                first_BD = x_BTD[:, 0].clone().requires_grad_()
                text_BTD = torch.cat([first_BD[:, None], x_BTD[:, 1 : distance + 1]], 1)
                ctx = mixer._prepared(Context(), text_BTD)
                y_BD = mixer.layers[0].mixer(text_BTD, ctx)[:, -1]
                norms[place] += torch.autograd.grad((y_BD * torch.randn_like(y_BD)).sum(), first_BD)[0].norm() / seeds
        rows.append([name, *(f"{each / norms[0]:.1g}" for each in norms[1:].tolist())])
    return ["mixer", *(f"n = {distance}" for distance in distances)], rows


if __name__ == "__main__":
    raise SystemExit(main())

"""What each layer would already say: the residual stream read by the last norm and the output layer ("logit lens")."""

from __future__ import annotations

from typing import Any

import torch

from glassformer.explore.problem import Problem
from glassformer.explore.runs import Run
from glassformer.trace.manifest import residual_stream

CANDIDATES = 5


@torch.no_grad()
def lens(run: Run, stack: str) -> dict[str, Any]:
    """The likeliest tokens at each position after each layer, as `Lens`; the last layer's are the model's own.

    Raises:
        Problem: The model has no such stack, or no output layer that reads it.
    """
    opened = run.opened
    config, model = opened.config, opened.model
    stacks = [name for name, _ in config.stacks]
    if stack not in stacks:
        raise Problem(f"stack {stack!r}: {opened.name} has {' and '.join(stacks)}")
    head = config.head.type if config.head is not None else "none"
    if head not in ("lm", "masked-lm") or opened.target_tokens is None:
        raise Problem(f"{opened.name} has no output layer that names pieces, so its layers say none")
    if stack != stacks[-1]:
        raise Problem(f"stack {stack}: the output layer reads the {stacks[-1]} alone")
    part = getattr(model, stack)
    layers = []
    for name, tap in residual_stream(part, stack).items():
        hidden_TD = run.tensor(tap)[0]
        if part.final_norm is not None:
            hidden_TD = part.final_norm(hidden_TD)
        logprobs_TV = model.logits(hidden_TD).float().log_softmax(-1)
        rows = [opened.target_tokens.candidates(logprobs_V, CANDIDATES) for logprobs_V in logprobs_TV]
        layers.append({"name": name, "positions": rows})
    return {"stack": stack, "layers": layers}

"""Learning-rate schedules, each a function of the step alone, and the optimizers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from glassformer.errors import UserError
from glassformer.nn.mixer import Part
from glassformer.train.config import TrainSection
from glassformer.train.distributed import SharedZeros, World


def learning_rate(step: int, config: TrainSection, d_model: int) -> float:
    """The learning rate of a step.

    ``inverse-sqrt`` rises linearly to ``lr`` and then falls as 1/√step. ``noam`` is the same shape in the paper's own
    terms, ``lr · d_model^−0.5 · min(step^−0.5, step · warmup^−1.5)`` (Vaswani et al. 2017, equation 3). ``linear`` and
    ``cosine`` fall to ``min_lr · lr`` at the last step.

    Args:
        step: 1 for the first step; 0 is taken as 1.
    """
    step = max(step, 1)
    warmup = max(config.warmup, 1)
    if config.schedule == "noam":
        return config.lr * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    if step < warmup:
        return config.lr * step / warmup
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "inverse-sqrt":
        return config.lr * math.sqrt(warmup / step)
    done = min(1.0, (step - warmup) / max(config.steps - warmup, 1))
    left = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.lr * (config.min_lr + (1.0 - config.min_lr) * left)


class Optimizer:
    """AdamW for all parameters, or Muon for the matrices of the layers and AdamW for the rest.

    AdamW (Loshchilov and Hutter 2019) leaves vectors (biases and norms), and what a part calls so, undecayed. Muon
    (Jordan et al. 2024; the scale of its updates after Liu et al. 2025, arXiv:2502.16982) replaces a matrix's momentum
    by the nearest orthogonal matrix; embeddings and the output layer, whose rows are no map from features to features,
    stay with AdamW.

    Orthogonalising is the costly part of a step. Local workers keep those matrices and their momenta in shared memory,
    and each updates some of them for all.
    """

    def __init__(self, model: nn.Module, config: TrainSection, world: World) -> None:
        named = dict(model.named_parameters())
        linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        matrices = {name: named[name] for name in named if name in linear and config.optimizer == "muon"}
        rest = {name: named[name] for name in named if name not in matrices}
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in named.items()}
        self._muon_rate = config.muon_rate
        self._world = world
        held = {
            f"{name}.{own}" for name, part in model.named_modules() if isinstance(part, Part) for own in part.undecayed
        }
        decayed = [name for name, parameter in rest.items() if parameter.dim() > 1 and name not in held]
        groups = [
            {"params": [rest[name] for name in decayed], "weight_decay": config.weight_decay},
            {"params": [rest[name] for name in rest if name not in decayed], "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
        self._muon: torch.optim.Muon | None = None
        self._others: list[nn.Parameter] = []
        if matrices:
            self._muon = torch.optim.Muon(
                matrices.values(), lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
            )
            if world.shares_memory(next(iter(matrices.values())).device):
                self._share(list(matrices.values()), self._muon)

    def _share(self, matrices: list[nn.Parameter], muon: torch.optim.Muon) -> None:
        world = self._world
        numel = sum(matrix.numel() for matrix in matrices)
        self._memory = SharedZeros(2 * numel, world)
        weights, momenta = self._memory.flat.split(numel)
        sizes = [matrix.numel() for matrix in matrices]
        for matrix, weight, momentum in zip(matrices, weights.split(sizes), momenta.split(sizes), strict=True):
            if world.leads:
                weight.copy_(matrix.detach().flatten())
            matrix.data = weight.view_as(matrix)
            muon.state[matrix]["momentum_buffer"] = momentum.view_as(matrix)
        world.barrier()
        load = [0.0] * world.size
        for matrix in sorted(matrices, key=_orthogonalising_cost, reverse=True):
            rank = load.index(min(load))
            load[rank] += _orthogonalising_cost(matrix)
            if rank != world.rank:
                self._others.append(matrix)

    def step(self, rate: float) -> None:
        """Updates every parameter from its gradient, at a learning rate."""
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        if self._muon is None:
            return
        for group in self._muon.param_groups:
            group["lr"] = rate * self._muon_rate
        gradients = [matrix.grad for matrix in self._others]
        for matrix in self._others:  # torch skips what has no gradient: another worker updates it
            matrix.grad = None
        self._muon.step()
        for matrix, gradient in zip(self._others, gradients, strict=True):
            matrix.grad = gradient
        if self._others:
            self._world.barrier()

    def state(self) -> dict[str, Tensor]:
        """Moments and momenta, ``<parameter>/<name>`` → value."""
        return {
            f"{self._names[parameter]}/{name}": value
            for optimizer in (self._adamw, self._muon)
            if optimizer is not None
            for parameter, values in optimizer.state.items()
            for name, value in values.items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Takes back what ``state`` gave.

        Raises:
            UserError: When it is another optimizer's.
        """
        parameters = {name: parameter for parameter, name in self._names.items()}
        for key, value in state.items():
            name, _, field = key.rpartition("/")
            optimizer = self._muon if field == "momentum_buffer" else self._adamw
            if optimizer is None or name not in parameters:
                raise UserError(f"the checkpoint's optimizer state {key} is not this run's; set train.optimizer back")
            held = optimizer.state[parameters[name]]
            if field in held:
                held[field].copy_(value)
            else:
                held[field] = value.to(parameters[name].device) if field != "step" else value
        self._world.barrier()


def _orthogonalising_cost(matrix: Tensor) -> float:
    """Multiplications of one Newton–Schulz iteration, up to a factor."""
    short, long = sorted(matrix.shape)
    return float(2 * short * short * long + short**3)

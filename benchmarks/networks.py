"""Whole networks: training steps with everything in them, predictions, and moves of the subspace.

Dense LRT is local reparameterization as published code has it, by plain autograd, masked the same with masks
(``rivals.py``), deterministic the plain network. Normalization, optimizer and the learning of the standard deviations
are part of the work: sparse networks learn them from curvature, the rivals, and "gradient" to compare with, as
parameters with the KL in the loss. For a move, three things count: the backward pass before it, which forms dense
gradients, the move itself, which ranks and rewrites, and the next step, which rebuilds the indices of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.measurements import DENSE, GRADIENT, MASKED, PLAIN, Effort, Timing, UpdateCost, density_of, sparse
from benchmarks.rivals import published
from benchmarks.timing import THREAD, Stopwatch, Work, alternate, laps
from gossamer.layers import CurvatureWeight, kl, param_groups, sparse_weights
from gossamer.models import mlp, resnet18
from gossamer.optim import Curvature
from gossamer.posterior import predict
from gossamer.schedules import constant
from gossamer.sparsity import Subspace
from gossamer.sparsity.convert import bayesianize

__all__ = [
    "MLP",
    "NETWORKS",
    "RESNET",
    "UPDATES",
    "NetworkCase",
    "UpdateCase",
    "measure_network",
    "measure_updates",
    "network_for",
    "optimizer_for",
    "train_step",
]

N_DATA = 50_000
MASK_DENSITY = 0.05
RESNET, MLP, CONV_NET = "ResNet-18", "MLP 784-1024-1024-10", "conv net 32-32-64-64"


class NetworkCase(NamedTuple):
    """A network and its work: ``prepare(model, x)`` returns the function to time; ``beside`` are ways of its own."""

    subject: str
    work: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    prepare: Callable[[nn.Module, Tensor], Work]
    beside: tuple[str, ...] = ()


def measure_network(case: NetworkCase, effort: Effort) -> Timing:
    """Milliseconds of a step or a prediction, in every way.

    Example:
        >>> case = NetworkCase("tiny", "training step", lambda: mlp(8, (16,)), (8,), 4, training)
        >>> row = measure_network(case, Effort(densities=(0.1,), rounds=1))
        >>> list(row.ms)
        ['dense LRT', 'masked', 'deterministic', 'sparse 0.1']
    """
    ways = [DENSE, *([MASKED] if effort.with_masked else []), PLAIN, *map(sparse, effort.densities), *case.beside]
    works: dict[str, Work] = {}
    for way in ways:
        torch.manual_seed(0)
        works[way] = case.prepare(network_for(case.build, way), torch.randn(case.batch, *case.shape))
    return Timing(case.subject, "network", case.work, case.batch, alternate(works, effort.rounds, effort.clock))


def network_for(build: Callable[[], nn.Module], way: str) -> nn.Module:
    """The network of a way: plain, dense Bayesian, masked, or sparse at the density in its name.

    Example:
        >>> import gossamer
        >>> gossamer.density(network_for(lambda: mlp(8, (16,)), "sparse 0.5"))
        0.5
    """
    if way == PLAIN:
        return build()
    if way in (DENSE, MASKED):
        return published(build, MASK_DENSITY if way == MASKED else 1.0)
    return bayesianize(build(), density=density_of(way), std="gradient" if way.startswith(GRADIENT) else "curvature")


def optimizer_for(model: nn.Module, *, adam: bool = False) -> Optimizer:
    """SGD with momentum, or Adam, on all parameters of a network of any way; curvatures learn beside it."""
    parameters = param_groups(model) if sparse_weights(model) else model.parameters()
    optimizer = torch.optim.Adam(parameters) if adam else torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    if _has_curvature(model):
        Curvature(model, optimizer, N_DATA)
    return optimizer


def _has_curvature(model: nn.Module) -> bool:
    return any(isinstance(weight, CurvatureWeight) for weight in sparse_weights(model).values())


def train_step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
    """One step of a user's loop: forward, loss, with the KL where it belongs there, backward, optimizer."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    if sparse_weights(model) and not _has_curvature(model):
        loss = loss + kl(model) / N_DATA
    loss.backward()
    optimizer.step()


def training(model: nn.Module, x: Tensor, *, adam: bool = False) -> Work:
    """A training step, always on the same batch."""
    return partial(train_step, model, optimizer_for(model, adam=adam), x, torch.randint(10, (len(x),)))


def one_draw(model: nn.Module, x: Tensor) -> Work:
    """One pass in evaluation mode, with noise where the network has noise."""
    model.eval()

    def work() -> None:
        with torch.no_grad():
            model(x)

    return work


def many_draws(model: nn.Module, x: Tensor, *, n_draws: int, local: bool) -> Work:
    """``gossamer.predict``; one pass in batches of the same size for a network without a distribution."""
    if not sparse_weights(model):
        passes = [one_draw(model, part) for part in x.split(256)]
        return lambda: [work() for work in passes]
    return partial(predict, model, x, n_draws, "local" if local else "weights")


def conv_net() -> nn.Module:
    """Four 3×3 convolutions with BatchNorm, 32 to 64 channels, for 3×32×32 images: too small to gain much."""
    layers: list[nn.Module] = []
    for n_in, n_out in ((3, 32), (32, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU()]
    return nn.Sequential(
        *layers[:6], nn.MaxPool2d(2), *layers[6:], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )


def wide_mlp() -> nn.Module:
    """784-1024-1024-10."""
    return mlp(784, (1024, 1024))


IMAGE, DIGIT = (3, 32, 32), (784,)
NETWORKS = (
    NetworkCase(RESNET, "training step", resnet18, IMAGE, 32, training, (sparse(0.05, GRADIENT),)),
    NetworkCase(RESNET, "prediction, one draw", resnet18, IMAGE, 32, one_draw),
    NetworkCase(RESNET, "prediction, one draw", resnet18, IMAGE, 1, one_draw),
    NetworkCase(MLP, "training step", wide_mlp, DIGIT, 128, partial(training, adam=True), (sparse(0.05, GRADIENT),)),
    NetworkCase(CONV_NET, "training step", conv_net, IMAGE, 128, training),
    NetworkCase(MLP, "5 networks drawn", wide_mlp, DIGIT, 1000, partial(many_draws, n_draws=5, local=False)),
    NetworkCase(MLP, "5 local draws", wide_mlp, DIGIT, 1000, partial(many_draws, n_draws=5, local=True)),
)


PERIOD = 100  # steps between moves in a training: the default of Subspace, and of the released code
CYCLE = 4  # steps measured for each move: the one with the move, the one after it, and two ordinary ones
REPLACEMENT_RATE = 0.3  # the highest of a training; it falls to zero


class UpdateCase(NamedTuple):
    """A sparse network in training."""

    subject: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    density: float = 0.05
    adam: bool = False


UPDATES = (UpdateCase(RESNET, resnet18, IMAGE, 32), UpdateCase(MLP, wide_mlp, DIGIT, 128, adam=True))


def measure_updates(case: UpdateCase, rounds: int, clock: Stopwatch = THREAD) -> UpdateCost:
    """Train with a move every fourth step, and split the time.

    Example:
        >>> from gossamer.models import mlp
        >>> cost = measure_updates(UpdateCase("tiny", lambda: mlp(8, (16,)), (8,), 4, density=0.2), rounds=2)
        >>> len(cost.ordinary_ms), len(cost.extra_ms), cost.period
        (2, 2, 100)
    """
    torch.manual_seed(0)
    model = network_for(case.build, sparse(case.density))
    optimizer = optimizer_for(model, adam=case.adam)
    x, y = torch.randn(case.batch, *case.shape), torch.randint(10, (case.batch,))
    steps = CYCLE * rounds + CYCLE - 1  # the first move is at the fourth step, and each cycle begins with a move
    rate = constant(REPLACEMENT_RATE)
    subspace = Subspace(model, optimizer, total_steps=steps + 1, update_period=CYCLE, replacement_rate=rate, until=1.0)

    def step() -> None:
        train_step(model, optimizer, x, y)
        subspace.step()

    times = laps(step, steps, clock)
    moves = [entry["step"] for entry in subspace.record if "rate" in entry]
    cycles = [times[move - 1 : move - 1 + CYCLE] for move in moves if move - 1 + CYCLE <= steps]
    ordinary = [round(fmean(cycle[2:]), 4) for cycle in cycles]
    extra = [round(sum(cycle[:2]) - 2 * usual, 4) for cycle, usual in zip(cycles, ordinary, strict=True)]
    return UpdateCost(case.subject, case.batch, case.density, PERIOD, ordinary, extra)

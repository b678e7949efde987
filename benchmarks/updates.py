"""What it costs to move the subspace, beside what the steps between two moves cost.

The step before a move has a backward pass that forms dense gradients, the move itself ranks and rewrites, and the next
step rebuilds the indices of the kernels. All three count.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.networks import DIGIT, IMAGE, MLP, RESNET, network_for, optimizer_for, train_step, wide_mlp
from benchmarks.results import UpdateCost, sparse
from benchmarks.timing import THREAD, Clock, laps
from gossamer.models import resnet18
from gossamer.schedules import constant
from gossamer.sparsity import Subspace

__all__ = ["UPDATES", "UpdateCase", "measure_updates"]

PERIOD = 100  # of a training: the default of Subspace, and of the released code of the paper
CYCLE = 4  # steps measured for each move: the one with the move, the one after it, and two ordinary ones
REPLACEMENT_RATE = 0.3  # the highest of a training, where it falls to zero


class UpdateCase(NamedTuple):
    """A sparse network in training."""

    subject: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    density: float = 0.05
    adam: bool = False


UPDATES = (UpdateCase(RESNET, resnet18, IMAGE, 32), UpdateCase(MLP, wide_mlp, DIGIT, 128, adam=True))


def measure_updates(case: UpdateCase, rounds: int, clock: Clock = THREAD) -> UpdateCost:
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

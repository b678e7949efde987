"""Cyclical stochastic gradient MCMC (Zhang et al., ICLR 2020, Algorithm 1), for any sampler.

In each cycle the learning rate falls along a half cosine. While it is high the sampler goes to another mode without
noise; in the last part it samples there, and some of its networks are kept.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from gossamer.methods._parts import noise_of_all_ranks, refresh_of
from gossamer.optim import Sampler
from gossamer.posterior import Snapshots, ends_of_cycles
from gossamer.schedules import cyclical, phases
from gossamer.types import Method, Task

USUAL = 0.5  # the paper's learning rate


def in_cycles(
    task: Task,
    steps: int,
    sampler: Callable[..., Sampler],
    *,
    lr: float | None,
    cycles: int,
    per_cycle: int,
    temperature: float,
    hot: float,
    refresh_batchnorm: bool,
) -> Method:
    """A method that runs ``sampler`` in cycles on the plain network; its posterior is a set of snapshots."""
    at = ends_of_cycles(steps, cycles, per_cycle)

    rate = USUAL if lr is None else lr

    def optimizer(model: nn.Module) -> Sampler:
        return sampler(
            model.parameters(),
            lr=rate,
            n_data=task.n_data,
            temperature=phases(0.0, temperature, steps, cycles, hot) if hot != 1 else temperature,
            generator=noise_of_all_ranks(),
        )

    return Method(
        prepare=lambda model: model,
        optimizer=optimizer,
        lr=cyclical(rate, steps, cycles),
        collector=lambda: Snapshots(at, refresh_of(task, refresh_batchnorm)),
        lr_is_given=lr is not None,
    )

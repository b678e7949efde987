"""SWAG (Maddox et al., NeurIPS 2019): SGD at a constant rate, whose path gives mean and covariance of a Gaussian.

    q(θ) = N(θ̄, scale · (diag(Σ) + DᵀD/(K - 1)))

θ̄ and Σ are mean and variances of the networks along the path, one per epoch of the paper; the rows of D are the
deviations of the last K from the mean at their time. The paper's ½ on both terms is ``scale``. The rates are those of
its wide ResNets. Statistics of batch normalisation are made anew from 512 training examples, where it takes all.
"""

from dataclasses import replace
from typing import Any

from gossamer.methods._parts import refresh_of, whole, with_options_of
from gossamer.methods.sgd import sgd
from gossamer.posterior import Swag
from gossamer.types import Method, Schedule, Task

__all__ = ["swag"]

EPOCHS = 300  # of the paper's trainings, which collect after each epoch from the 161st on


@with_options_of(sgd, "optimizer")
def swag(
    task: Task,
    steps: int,
    *,
    lr: float | None = None,
    swag_lr: float | None = None,
    begin: float = 160 / EPOCHS,
    every: int | None = None,
    rank: int = 20,
    scale: float = 0.5,
    **training: Any,
) -> Method:
    """SWAG: a Gaussian of low rank plus diagonal, fitted to the path of SGD.

    Args:
        lr: Learning rate until half of ``begin``; 0.1. From there it changes linearly until 0.9 of ``begin``.
        swag_lr: Learning rate from then on; half of ``lr``, as in the paper.
        begin: Share of the training after which networks are collected.
        every: Steps between two of them; ``None`` is a 300th of the training, which is the paper's epoch.
        rank: K, how many deviations are kept.
        scale: Factor of the covariance; the paper's is ½.
    """
    if not 0 <= begin < 1:
        raise ValueError(f"begin is a share of the training, at least 0 and less than 1; got {begin}")
    rate = 0.1 if lr is None else lr
    last = rate / 2 if swag_lr is None else swag_lr
    period = max(1, steps // EPOCHS) if every is None else whole("every", every)
    return replace(
        sgd(task, steps, lr=rate, **training),
        lr=_rate(rate, last, begin * steps),
        collector=lambda: Swag(int(begin * steps) + 1, period, rank, scale, refresh_of(task)),
        chosen={"every": period},
        lr_is_given=lr is not None or swag_lr is not None,
    )


def _rate(lr: float, swag_lr: float, begin: float) -> Schedule:
    """``lr`` until 0.5 ``begin``, ``swag_lr`` from 0.9 ``begin``, a line between them."""

    def value(step: int) -> float:
        way = 1.0 if begin == 0 else min(1.0, max(0.0, (step / begin - 0.5) / 0.4))
        return lr + (swag_lr - lr) * way

    return value

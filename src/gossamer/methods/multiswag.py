"""MultiSWAG (Wilson and Izmailov, NeurIPS 2020): a mixture of SWAG posteriors from other seeds.

    q(θ) = Σ_k N(θ; θ̄_k, Σ_k)/K,   each as in :mod:`gossamer.methods.swag`

A deep ensemble with the covariance around each member. The length of the training is that of all members together.
"""

from __future__ import annotations

from gossamer.methods.ensemble import ensemble
from gossamer.methods.swag import EPOCHS
from gossamer.types import Method, Task

__all__ = ["multiswag"]


def multiswag(
    task: Task,
    steps: int,
    *,
    members: int = 3,
    lr: float | None = None,
    swag_lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    begin: float = 160 / EPOCHS,
    every: int | None = None,
    rank: int = 20,
    scale: float = 0.5,
) -> Method:
    """MultiSWAG: an ensemble of Gaussians, each fitted to the path of SGD.

    Args:
        task: The task.
        steps: Length of the training of all members together; each has an equal share.
        members: K, how many Gaussians.
        lr: Learning rate of a member until half of ``begin``; 0.1. From there it changes linearly until 0.9 of
            ``begin``.
        swag_lr: Learning rate from then on; 0.05.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        begin: Share of a member's training after which networks are collected.
        every: Steps between two of them; ``None`` is a 300th of a member's training, which is the paper's epoch.
        rank: How many deviations are kept.
        scale: Factor of the covariance; the paper's is ½.
    """
    options: dict[str, float | None] = {"lr": lr, "swag_lr": swag_lr, "momentum": momentum}
    options |= {"weight_decay": weight_decay, "begin": begin, "every": every, "rank": rank, "scale": scale}
    return ensemble(task, steps, member="swag", members=members, member_options=options)

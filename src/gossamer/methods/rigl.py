"""RigL (Evci et al., ICML 2020): deterministic sparse training, drop by magnitude, grow by gradient."""

from functools import partial
from typing import Any

from gossamer.methods._parts import by_sgd, update_period_for
from gossamer.sparsity import Subspace
from gossamer.sparsity.convert import sparsify
from gossamer.types import Method, Task

__all__ = ["rigl"]


def rigl(
    task: Task,
    steps: int,
    *,
    density: float = 0.05,
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    update_period: int | None = None,
    replacement_rate: float = 0.3,
    until: float = 0.75,
    allocation: str = "erk",
) -> Method:
    """RigL: a fixed share of active weights, moved to where gradients are largest.

    Args:
        density: Share of active weights.
        lr: Learning rate at the start of a cosine; 0.1.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        update_period: Steps between updates; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps.
        replacement_rate: Share of the active weights replaced at the first update; it falls to 0 along a cosine.
        until: Share of the training after which the subspace stays as it is.
        allocation: How the active weights are spread over the layers; ``"erk"`` was the authors' best.
    """
    return moving(
        steps,
        removal="magnitude",
        addition="sampled_gradient",
        density=density,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        update_period=update_period,
        replacement_rate=replacement_rate,
        until=until,
        allocation=allocation,
    )


def moving(
    steps: int,
    *,
    density: float,
    lr: float | None,
    momentum: float,
    weight_decay: float,
    update_period: int | None,
    allocation: str,
    **moves: Any,
) -> Method:
    """A method of point weights in a subspace that moves; ``moves`` are the other options of :class:`Subspace`."""
    moves |= {"total_steps": steps, "update_period": update_period_for(steps, update_period)}
    return by_sgd(
        steps,
        lr,
        momentum,
        weight_decay,
        prepare=partial(sparsify, density=density, allocation=allocation),
        rules=lambda model, optimizer: [Subspace(model, optimizer, **moves)],
    )

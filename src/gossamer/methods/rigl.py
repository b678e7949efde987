"""RigL (Evci et al., ICML 2020): deterministic sparse training, drop by magnitude, grow by gradient."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gossamer.methods._parts import by_sgd, update_period_for, with_options_of
from gossamer.methods.sgd import sgd
from gossamer.sparsity import Subspace
from gossamer.sparsity.convert import sparsify
from gossamer.types import Criterion, Method, Task

__all__ = ["rigl"]


@with_options_of(sgd, "optimizer")
def rigl(
    task: Task,
    steps: int,
    *,
    density: float = 0.05,
    update_period: int | None = None,
    replacement_rate: float = 0.3,
    until: float = 0.75,
    allocation: str = "erk",
    **training: Any,
) -> Method:
    """RigL: a fixed share of active weights, moved to where gradients are largest.

    Args:
        density: Share of active weights.
        update_period: Steps between updates; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps.
        replacement_rate: Share of the active weights replaced at the first update; it falls to 0 along a cosine.
        until: Share of the training after which the subspace stays as it is.
        allocation: How the active weights are spread over the layers; ``"erk"`` was best in the paper of RigL.
    """
    return by_sgd(
        steps,
        **training,
        prepare=partial(sparsify, density=density, allocation=allocation),
        rules=moves(steps, "magnitude", "sampled_gradient", update_period, replacement_rate, until),
    )


def moves(
    steps: int,
    removal: str | Criterion,
    addition: str | Criterion,
    update_period: int | None,
    replacement_rate: float,
    until: float,
) -> Callable[[nn.Module, Optimizer], list[Subspace]]:
    """The rules of a method whose subspace moves by two criteria."""
    subspace = partial(
        Subspace,
        total_steps=steps,
        removal=removal,
        addition=addition,
        update_period=update_period_for(steps, update_period),
        replacement_rate=replacement_rate,
        until=until,
    )
    return lambda model, optimizer: [subspace(model, optimizer)]

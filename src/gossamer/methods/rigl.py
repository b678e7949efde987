"""RigL (Evci et al., ICML 2020): deterministic sparse training, drop by magnitude, grow by gradient."""

from functools import partial
from typing import Any

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
        allocation: How the active weights are spread over the layers; ``"erk"`` was the authors' best.
    """
    return moving(
        steps,
        removal="magnitude",
        addition="sampled_gradient",
        density=density,
        update_period=update_period,
        replacement_rate=replacement_rate,
        until=until,
        allocation=allocation,
        **training,
    )


def moving(
    steps: int,
    *,
    removal: str | Criterion,
    addition: str,
    density: float,
    update_period: int | None,
    replacement_rate: float,
    until: float,
    allocation: str,
    **training: Any,
) -> Method:
    """A method of point weights in a subspace that moves; ``training`` are the options of SGD."""
    subspace = partial(
        Subspace,
        total_steps=steps,
        removal=removal,
        addition=addition,
        update_period=update_period_for(steps, update_period),
        replacement_rate=replacement_rate,
        until=until,
    )
    prepare = partial(sparsify, density=density, allocation=allocation)
    return by_sgd(steps, **training, prepare=prepare, rules=lambda model, optimizer: [subspace(model, optimizer)])

"""Gradual magnitude pruning (Zhu and Gupta, 2017): the smallest weights of a dense network go, fast at first.

The sparsity after step t is s_t = s (1 - (1 - (t - t₀) / (t₁ - t₀))³) between the steps t₀ and t₁.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gossamer.distributed import world_size
from gossamer.methods._parts import all_active, by_sgd, update_period_for, with_options_of
from gossamer.methods.sgd import sgd
from gossamer.schedules import cubic, step_of
from gossamer.sparsity import Prune
from gossamer.sparsity.exchange import Scope
from gossamer.types import Method, Task

__all__ = ["magnitude"]


@with_options_of(sgd, "optimizer")
def magnitude(
    task: Task,
    steps: int,
    *,
    density: float = 0.05,
    warmup: float = 0.2,
    until: float = 0.75,
    update_period: int | None = None,
    scope: Scope = "global",
    **training: Any,
) -> Method:
    """Gradual magnitude pruning: starts dense and ends with ``density`` times the weights, which alone are stored.

    A weight that is cut leaves the storage, with its gradient and momentum, so steps become cheaper as training goes
    on. In the paper it stays behind a mask, where no gradient reaches it.

    Args:
        density: Share of the weights that stay in the end.
        warmup: Share of the training before the first cut, t₀.
        until: Share of the training at which the density is reached, t₁.
        update_period: Steps between cuts; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps.
        scope: ``"global"`` compares the weights of all layers; ``"layer"`` gives every layer the same density, as in
            the paper, which leaves almost nothing of a small first convolution.
    """
    period = update_period_for(steps, update_period)
    prune = by_size(steps, density, warmup, until, scope=scope, update_period=period)

    def rules(model: nn.Module, optimizer: Optimizer) -> list[Prune]:
        if world_size() > 1:
            raise ValueError("magnitude shortens its parameters, which DDP cannot follow: train on one rank, or by dpf")
        return [prune(model, optimizer, until=until)]

    return by_sgd(steps, **training, prepare=all_active, rules=rules)


def by_size(steps: int, density: float, warmup: float, until: float, **options: Any) -> Callable[..., Prune]:
    """Pruning of single weights by their size, along a cubic from ``warmup`` to ``until``."""
    return partial(
        Prune,
        target_density=cubic(1.0, density, step_of(warmup, steps, "warmup"), step_of(until, steps, "until")),
        criterion="mean_square",  # of one weight: its size
        groups="weight",
        total_steps=steps,
        warmup=warmup,
        **options,
    )

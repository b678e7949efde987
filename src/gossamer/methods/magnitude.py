"""Gradual magnitude pruning (Zhu and Gupta, 2017): the smallest weights of a dense network go, fast at first.

The sparsity after step t is s_t = s (1 - (1 - (t - t₀) / (t₁ - t₀))³) between the steps t₀ and t₁.
"""

from collections.abc import Sequence
from functools import partial

from torch import nn
from torch.optim import Optimizer

from gossamer.distributed import world_size
from gossamer.methods._parts import by_sgd, update_period_for
from gossamer.schedules import cubic, step_of
from gossamer.sparsity import Prune
from gossamer.sparsity.convert import sparsify
from gossamer.sparsity.exchange import Scope
from gossamer.types import Method, Rule, Task

__all__ = ["magnitude"]


def magnitude(
    task: Task,
    steps: int,
    *,
    density: float = 0.05,
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    warmup: float = 0.2,
    until: float = 0.75,
    update_period: int | None = None,
    scope: Scope = "global",
) -> Method:
    """Gradual magnitude pruning: starts dense and ends with ``density`` times the weights, which alone are stored.

    A weight that is cut leaves the storage, with its gradient and momentum, so steps become cheaper as training goes
    on. In the paper it stays behind a mask, where no gradient reaches it.

    Args:
        density: Share of the weights that stay in the end.
        lr: Learning rate at the start of a cosine; 0.1.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        warmup: Share of the training before the first cut, t₀.
        until: Share of the training at which the density is reached, t₁.
        update_period: Steps between cuts; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps.
        scope: ``"global"`` compares the weights of all layers; ``"layer"`` gives every layer the same density, as in
            the paper, which leaves almost nothing of a small first convolution.
    """

    def rules(model: nn.Module, optimizer: Optimizer) -> Sequence[Rule]:
        if world_size() > 1:
            raise ValueError("magnitude shortens its parameters, which DDP cannot follow: train on one rank, or by dpf")
        begin, stop = step_of(warmup, steps, "warmup"), step_of(until, steps, "until")
        return [
            Prune(
                model,
                optimizer,
                target_density=cubic(1.0, density, begin, stop),
                criterion="mean_square",  # of one weight: its size
                groups="weight",
                scope=scope,
                total_steps=steps,
                warmup=warmup,
                update_period=update_period_for(steps, update_period),
                until=until,
            )
        ]

    prepare = partial(sparsify, density=1.0, keep_dense=(), init="pretrained")
    return by_sgd(steps, lr, momentum, weight_decay, prepare=prepare, rules=rules)

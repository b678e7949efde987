"""SET, sparse evolutionary training (Mocanu et al., Nature Communications 2018): drop by size, grow at random.

Of each layer a share ζ of the positive weights, the smallest, and a share ζ of the negative ones, the largest, is
removed, and as many entries drawn at random become active, at zero.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.optim import SGD

from gossamer.convert import sparsify
from gossamer.layers import param_groups
from gossamer.methods._parts import update_period_for
from gossamer.posterior import Last
from gossamer.schedules import cosine
from gossamer.sparsity import Subspace
from gossamer.types import Method, Task, WeightStats

__all__ = ["set"]


def set(
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
    """SET: a fixed share of active weights, the weakest of them exchanged for random others.

    Two things follow Evci et al. (ICML 2020), who trained SET beside RigL, and not the first paper, which replaced ζ
    after every epoch to the end: ζ falls along a cosine, and stops at ``until``. New weights start at zero, and under a
    learning rate that ends at zero the late ones would stay there.

    Args:
        task: The task.
        steps: Length of the training.
        density: Share of active weights.
        lr: Learning rate at the start of a cosine; 0.1.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        update_period: Steps between updates; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps.
        replacement_rate: ζ at the first update, the share of the active weights that it replaces.
        until: Share of the training after which the subspace stays as it is.
        allocation: How the active weights are spread over the layers; ``"erk"`` is the paper's Erdős-Rényi graph, and
            counts the kernel of a convolution as well.
    """
    rate = 0.1 if lr is None else lr
    return Method(
        prepare=partial(sparsify, density=density, allocation=allocation),
        optimizer=lambda model: SGD(param_groups(model, weight_decay=weight_decay), lr=rate, momentum=momentum),
        lr=cosine(rate, steps),
        rules=lambda model, optimizer: [
            Subspace(
                model,
                optimizer,
                total_steps=steps,
                removal=share_of_sign,
                addition="random",
                update_period=update_period_for(steps, update_period),
                replacement_rate=replacement_rate,
                until=until,
            )
        ],
        collector=Last,
        lr_is_given=lr is not None,
    )


def share_of_sign(stats: WeightStats) -> Tensor:
    """The share of the weights of the same sign that are not larger: the lowest scores are ζ of each sign.

    >>> share_of_sign(WeightStats(torch.tensor([0.1, -3.0, 0.3, 0.2, -1.0])))
    tensor([0.3333, 1.0000, 1.0000, 0.6667, 0.5000])
    """
    positive = stats.mean > 0
    score = torch.zeros_like(stats.mean, dtype=torch.promote_types(stats.mean.dtype, torch.float32))
    for side in (positive, ~positive):
        rank = stats.mean[side].abs().argsort(stable=True).argsort() + 1
        score[side] = rank.to(score.dtype) / max(1, len(rank))
    return score

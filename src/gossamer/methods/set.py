"""SET, sparse evolutionary training (Mocanu et al., Nature Communications 2018): drop by size, grow at random.

Of each layer a share ζ of the positive weights, the smallest, and a share ζ of the negative ones, the largest, is
removed, and as many entries drawn at random become active, at zero.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gossamer.methods._parts import with_options_of
from gossamer.methods.rigl import moves, rigl
from gossamer.types import Method, Task, WeightStats

__all__ = ["set"]


@with_options_of(rigl)
def set(task: Task, steps: int, **options: Any) -> Method:
    """SET: a fixed share of active weights, the weakest of them exchanged for random others.

    The options are those of :func:`gossamer.methods.rigl.rigl`.
    Two things follow Evci et al. (ICML 2020), who trained SET beside RigL, and not the first paper, which replaced ζ
    after every epoch to the end: ζ, the ``replacement_rate``, falls along a cosine, and stops at ``until``. New weights
    start at zero, and under a learning rate that ends at zero the late ones would stay there. The paper's Erdős-Rényi
    graph is ``allocation="erk"``, which counts the kernel of a convolution as well.
    """
    own = (options[name] for name in ("update_period", "replacement_rate", "until"))
    return replace(rigl(task, steps, **options), rules=moves(steps, share_of_sign, "random", *own))


def share_of_sign(stats: WeightStats) -> Tensor:
    """The share of the weights of the same sign that are not larger: the lowest scores are ζ of each sign."""
    positive = stats.mean > 0
    score = torch.zeros_like(stats.mean, dtype=torch.promote_types(stats.mean.dtype, torch.float32))
    for side in (positive, ~positive):
        rank = stats.mean[side].abs().argsort(stable=True).argsort() + 1
        score[side] = rank.to(score.dtype) / max(1, len(rank))
    return score

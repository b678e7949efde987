"""Cyclical SGLD (Zhang et al., ICLR 2020).

With N examples, a mean loss of gradient g, weight decay d and temperature T (Algorithm 1; ξ is standard normal):

    l_t = l₀/2 · (1 + cos(π · phase of the cycle))
    w ← w - l_t (g + d w) + √(2 l_t T/N) ξ,   with T = 0 until the last ``hot`` of each cycle

Departure: T is 1, that of the posterior. The released code has 1/N, a posterior N times as narrow.
"""

from __future__ import annotations

from functools import partial

from gossamer.methods._cyclical import in_cycles
from gossamer.optim import SGLD
from gossamer.types import Method, Task

__all__ = ["csgld"]


def csgld(
    task: Task,
    steps: int,
    *,
    lr: float | None = None,
    temperature: float = 1.0,
    weight_decay: float = 5e-4,
    cycles: int = 4,
    per_cycle: int = 3,
    hot: float = 0.1,
    refresh_batchnorm: bool = False,
) -> Method:
    """Cyclical SGLD on the plain network; its posterior is a set of snapshots.

    Args:
        task: The task; its number of training examples scales the noise.
        steps: Length of the training.
        lr: Learning rate at the start of each cycle, l₀; 0.5.
        temperature: T in the hot part; 1 samples the posterior, the released code has 1/N.
        weight_decay: Precision of the normal prior over the number of examples, d.
        cycles: Number of cycles of the learning rate.
        per_cycle: Snapshots per cycle, a fiftieth of the cycle apart, the last at its end.
        hot: Share of each cycle, at its end, that has noise; before it the sampler is SGD.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
    """
    return in_cycles(
        task,
        steps,
        partial(SGLD, weight_decay=weight_decay),
        lr=lr,
        cycles=cycles,
        per_cycle=per_cycle,
        temperature=temperature,
        hot=hot,
        refresh_batchnorm=refresh_batchnorm,
    )

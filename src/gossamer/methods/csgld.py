"""Cyclical SGLD (Zhang et al., ICLR 2020).

With N examples, a mean loss of gradient g, weight decay d and temperature T (Algorithm 1; ξ is standard normal):

    l_t = l₀/2 · (1 + cos(π · phase of the cycle))
    w ← w - l_t (g + d w) + √(2 l_t T/N) ξ,   with T = 0 until the last ``hot`` of each cycle

Departure: T is 1, that of the posterior. The released code has 1/N, a posterior N times as narrow.
"""

from functools import partial
from typing import Any

from gossamer.methods._parts import in_cycles, with_options_of
from gossamer.optim import SGLD
from gossamer.types import Method, Task

__all__ = ["csgld"]


@with_options_of(in_cycles, "sampler")
def csgld(task: Task, steps: int, *, weight_decay: float = 5e-4, **options: Any) -> Method:
    """Cyclical SGLD on the plain network; its posterior is a set of snapshots.

    Args:
        weight_decay: Precision of the normal prior over the number of examples, d.
    """
    return in_cycles(task, steps, sampler=partial(SGLD, weight_decay=weight_decay), **options)

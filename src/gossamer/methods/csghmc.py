"""Cyclical SGHMC (Zhang et al., ICLR 2020).

With N examples, a mean loss of gradient g, weight decay d, momentum β and temperature T (appendix; ξ is standard
normal):

    l_t = l₀/2 · (1 + cos(π · phase of the cycle))
    v ← β v - l_t (g + d w) + √(2 (1 - β) l_t T/N) ξ,   w ← w + v,   with T = 0 until the last ``hot`` of each cycle

Departures: T is 1, that of the posterior, where the released code has 1/N, a posterior N times as narrow; and the state
is v/√l, whose distribution stays the same while the rate falls (:mod:`gossamer.optim.sghmc`). ``cv_sghmc`` is the same
sampler as Ke and Fan set it.
"""

from functools import partial
from typing import Any

from gossamer.methods._parts import in_cycles, with_options_of
from gossamer.optim import SGHMC
from gossamer.types import Method, Task

__all__ = ["csghmc"]


@with_options_of(in_cycles, "sampler")
def csghmc(task: Task, steps: int, *, momentum: float = 0.1, weight_decay: float = 5e-4, **options: Any) -> Method:
    """Cyclical SGHMC on the plain network; its posterior is a set of snapshots.

    Args:
        momentum: β; the paper's friction is 1 - β.
        weight_decay: Precision of the normal prior over the number of examples, d.
    """
    return in_cycles(task, steps, sampler=partial(SGHMC, momentum=momentum, weight_decay=weight_decay), **options)

"""Cyclical SGHMC (Zhang et al., ICLR 2020).

With N examples, a mean loss of gradient g, weight decay d, momentum β and temperature T (appendix; ξ is standard
normal):

    l_t = l₀/2 · (1 + cos(π · phase of the cycle))
    v ← β v - l_t (g + d w) + √(2 (1 - β) l_t T/N) ξ,   w ← w + v,   with T = 0 until the last ``hot`` of each cycle

Departures: T is 1, that of the posterior, where the released code has 1/N, a posterior N times as narrow; and the state
is v/√l, whose distribution stays the same while the rate falls (:mod:`gossamer.optim.sghmc`). ``cv_sghmc`` is the same
sampler as Ke and Fan set it.
"""

from collections.abc import Callable
from functools import partial

from gossamer.methods._parts import noise_of_all_ranks, refresh_of
from gossamer.optim import SGHMC, Sampler
from gossamer.posterior import Snapshots, ends_of_cycles
from gossamer.schedules import cyclical, phases
from gossamer.types import Method, Task

__all__ = ["csghmc"]

USUAL = 0.5  # the paper's learning rate


def csghmc(
    task: Task,
    steps: int,
    *,
    lr: float | None = None,
    temperature: float = 1.0,
    momentum: float = 0.1,
    weight_decay: float = 5e-4,
    cycles: int = 4,
    per_cycle: int = 3,
    hot: float = 0.1,
    refresh_batchnorm: bool = False,
) -> Method:
    """Cyclical SGHMC on the plain network; its posterior is a set of snapshots.

    Args:
        lr: Learning rate at the start of each cycle, l₀; 0.5.
        temperature: T in the hot part; 1 samples the posterior, the released code has 1/N.
        momentum: β; the paper's friction is 1 - β.
        weight_decay: Precision of the normal prior over the number of examples, d.
        cycles: Number of cycles of the learning rate.
        per_cycle: Snapshots per cycle, a fiftieth of the cycle apart, the last at its end.
        hot: Share of each cycle, at its end, that has noise; before it the sampler is SGD with momentum.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
    """
    sampler = partial(SGHMC, momentum=momentum, weight_decay=weight_decay)
    return in_cycles(task, steps, sampler, lr, temperature, cycles, per_cycle, hot, refresh_batchnorm)


def in_cycles(
    task: Task,
    steps: int,
    sampler: Callable[..., Sampler],
    lr: float | None,
    temperature: float,
    cycles: int,
    per_cycle: int,
    hot: float,
    refresh_batchnorm: bool,
) -> Method:
    """Cyclical MCMC (Algorithm 1) by any sampler, on the plain network; its posterior is a set of snapshots.

    In each cycle the learning rate falls along half a cosine. While it is high the sampler goes to another mode without
    noise; in the last part it samples there, and some of its networks are kept.
    """
    at = ends_of_cycles(steps, cycles, per_cycle)
    rate = USUAL if lr is None else lr
    return Method(
        optimizer=lambda model: sampler(
            model.parameters(),
            lr=rate,
            n_data=task.n_data,
            temperature=phases(0.0, temperature, steps, cycles, hot) if hot != 1 else temperature,
            generator=noise_of_all_ranks(),
        ),
        lr=cyclical(rate, steps, cycles),
        collector=lambda: Snapshots(at, refresh_of(task, refresh_batchnorm)),
        lr_is_given=lr is not None,
    )

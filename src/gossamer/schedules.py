"""Schedules: functions step -> value. Every rate in the library is a number or a schedule."""

import math

from gossamer.types import Schedule

__all__ = [
    "after",
    "as_schedule",
    "constant",
    "cosine",
    "cubic",
    "cyclical",
    "linear",
    "phases",
    "rising",
    "step_of",
    "warmup",
]


TAIL_START, TAIL_END = 0.03, 0.001  # shares of the highest rate


def after(value: float | Schedule, begin: int) -> Schedule:
    """0 before step ``begin``, then ``value``.

    Example:
        >>> temperature = after(0.1, 100)
        >>> temperature(99), temperature(100)
        (0.0, 0.1)
    """
    then = as_schedule(value)
    return lambda step: then(step) if step >= begin else 0.0


def constant(value: float) -> Schedule:
    """The same value at every step.

    Example:
        >>> constant(0.1)(1000)
        0.1
    """
    return lambda step: value


def cosine(start: float, steps: int, end: float = 0.0) -> Schedule:
    """Half a cosine from ``start`` at step 0 to ``end`` at ``steps``, and ``end`` from there on.

    Example:
        >>> rate = cosine(0.3, 100)
        >>> rate(0), round(rate(50), 3), rate(100), rate(200)
        (0.3, 0.15, 0.0, 0.0)
    """
    if steps < 1:
        raise ValueError(f"a cosine needs at least one step, got {steps}")

    def value(step: int) -> float:
        return end + (start - end) / 2 * (1 + math.cos(math.pi * min(step, steps) / steps))

    return value


def cubic(start: float, end: float, begin: int, stop: int) -> Schedule:
    """``start`` up to step ``begin``, then to ``end`` at step ``stop``, fast at first (Zhu and Gupta 2017).

    Example:
        >>> density = cubic(1.0, 0.1, begin=100, stop=200)
        >>> [round(density(step), 4) for step in (0, 100, 150, 200, 300)]
        [1.0, 1.0, 0.2125, 0.1, 0.1]
    """
    if not 0 <= begin <= stop:
        raise ValueError(f"a cubic goes from step begin to a later step stop; got {begin} and {stop}")

    def value(step: int) -> float:
        left = 1.0 if step < begin else 0.0 if step >= stop else (stop - step) / (stop - begin)
        return end + (start - end) * left**3

    return value


def cyclical(start: float, steps: int, cycles: int, end: float = 0.0, tail: float = 0.0) -> Schedule:
    """``cycles`` half cosines from ``start`` towards ``end`` in ``steps`` steps (Zhang et al., ICLR 2020), repeated.

    With a ``tail`` the cosine is over earlier, and in the last ``tail`` of each cycle the rate falls from 3 % to 0.1 %
    of ``start`` by a constant factor per step: as much time at each rate at which the noise of mini-batches cools.

    Example:
        >>> rate = cyclical(0.5, 100, cycles=4)
        >>> [round(rate(step), 3) for step in (0, 12, 24, 25, 99, 100)]
        [0.5, 0.266, 0.002, 0.5, 0.002, 0.5]
        >>> rate = cyclical(1.0, 400, cycles=4, tail=0.25)
        >>> [round(rate(step), 3) for step in (0, 40, 74, 75, 85, 99)]
        [1.0, 0.54, 0.037, 0.03, 0.008, 0.001]
    """
    phase = _phase(steps, cycles)
    if not 0 <= tail < 1:
        raise ValueError(f"the tail of a cycle is a share of it, from 0 to below 1; got {tail}")
    warm = 1 - tail
    stop = math.acos(2 * TAIL_START - 1) / math.pi if tail else 1.0  # of the cosine, where the tail begins

    def value(step: int) -> float:
        at = phase(step)
        if tail and at >= warm:
            return end + (start - end) * TAIL_START * math.pow(TAIL_END / TAIL_START, (at - warm) / tail)
        return end + (start - end) / 2 * (1 + math.cos(math.pi * at / warm * stop))

    return value


def linear(value: float, begin: int, stop: int) -> Schedule:
    """``value`` up to step ``begin``, then along a line to 0 at step ``stop``.

    Example:
        >>> rate = linear(0.1, 100, 200)
        >>> rate(50), round(rate(150), 3), rate(200)
        (0.1, 0.05, 0.0)
    """
    if not 0 <= begin <= stop:
        raise ValueError(f"the line goes from step begin to a later step stop; got {begin} and {stop}")
    return lambda step: value if step < begin else 0.0 if step >= stop else value * (stop - step) / (stop - begin)


def phases(cold: float, hot: float | Schedule, steps: int, cycles: int, share: float = 0.1) -> Schedule:
    """``cold``, but ``hot`` in the last ``share`` of each cycle: a temperature that first explores, then samples.

    Example:
        >>> temperature = phases(0.0, 1.0, 100, cycles=4, share=0.2)
        >>> [temperature(step) for step in (0, 19, 20, 24, 25, 99)]
        [0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    """
    if not 0 <= share <= 1:
        raise ValueError(f"the hot share of a cycle is between 0 and 1, got {share}")
    phase, after = _phase(steps, cycles), as_schedule(hot)
    # Compared as fractions of a cycle with some slack, so that rounding does not move the border by a step.
    return lambda step: after(step) if phase(step) >= 1 - share - 1e-9 else cold


def warmup(value: float | Schedule, steps: int) -> Schedule:
    """Linearly from 0 to ``value`` over the first ``steps`` steps.

    Example:
        >>> weight = warmup(1.0, 10)
        >>> weight(0), weight(5), weight(50)
        (0.0, 0.5, 1.0)
    """
    after = as_schedule(value)
    return lambda step: after(step) * (min(1.0, step / steps) if steps > 0 else 1.0)


def rising(value: float | Schedule, steps: int) -> Schedule:
    """Like :func:`warmup`, for a learning rate: the first step is not at 0, which would waste its batch.

    Example:
        >>> rate = rising(1.0, 9)
        >>> rate(0), rate(4), rate(50)
        (0.1, 0.5, 1.0)
    """
    after = as_schedule(value)
    return lambda step: after(step) * min(1.0, (step + 1) / (steps + 1))


def step_of(share: float, total_steps: int | None, name: str) -> int:
    """The step at which a share of the training is over.

    Example:
        >>> step_of(0.25, 400, "warmup")
        100
        >>> step_of(0.25, None, "warmup")
        Traceback (most recent call last):
        ValueError: warmup is a share of the training: give total_steps as well
    """
    if not 0 <= share <= 1:
        raise ValueError(f"{name} is a share of the training, in [0, 1]; got {share}")
    if share and total_steps is None:
        raise ValueError(f"{name} is a share of the training: give total_steps as well")
    return round(share * (total_steps or 0))


def as_schedule(value: float | Schedule) -> Schedule:
    """A number becomes a constant schedule; a schedule stays one.

    Example:
        >>> as_schedule(0.5)(3)
        0.5
    """
    return value if callable(value) else constant(value)


def _phase(steps: int, cycles: int) -> Schedule:
    """Position of a step in its cycle, from 0 to below 1; a cycle need not be a whole number of steps."""
    if not 1 <= cycles <= steps:
        raise ValueError(f"cycles must be between 1 and the number of steps; got {cycles} cycles in {steps} steps")
    return lambda step: step * cycles % steps / steps

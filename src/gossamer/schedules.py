"""Schedules: step -> value. Every rate in the library is a number or one of these."""

from __future__ import annotations

import math

from gossamer.types import Schedule

__all__ = ["as_schedule", "constant", "cosine", "warmup"]


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


def warmup(value: float | Schedule, steps: int) -> Schedule:
    """Linearly from 0 to ``value`` over the first ``steps`` steps.

    Example:
        >>> weight = warmup(1.0, 10)
        >>> weight(0), weight(5), weight(50)
        (0.0, 0.5, 1.0)
    """
    after = as_schedule(value)
    return lambda step: after(step) * (min(1.0, step / steps) if steps > 0 else 1.0)


def as_schedule(value: float | Schedule) -> Schedule:
    """A number becomes a constant schedule; a schedule stays one.

    Example:
        >>> as_schedule(0.5)(3)
        0.5
    """
    return value if callable(value) else constant(value)

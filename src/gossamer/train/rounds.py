"""Whether a training has further to go: its loss still falls at the end of all its schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["fall_at_the_end"]

CLEAR_FALL = 0.05  # nats per example: what a reader of a log density would notice


def fall_at_the_end(nlls: Sequence[float]) -> float:
    """By how much the loss fell from the third to the last quarter of a training, if clearly; otherwise 0.

    This is the loss of the rows alone: the KL goes on falling, by weights that fade, when predictions have settled. It
    is clear where it exceeds ``CLEAR_FALL`` nats per row and three standard errors.

    Example:
        >>> round(fall_at_the_end(np.linspace(1, 0, 100)), 2), fall_at_the_end([1.0] * 100)
        (0.25, 0.0)
    """
    third, last = np.array_split(np.asarray(nlls), 4)[2:]
    if len(last) < 2:
        return 0.0
    fall = float(third.mean() - last.mean())
    error = math.sqrt(third.var() / len(third) + last.var() / len(last))
    return fall if fall > max(CLEAR_FALL, 3 * error) else 0.0

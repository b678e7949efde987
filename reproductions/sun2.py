"""Example 2 of Sun, Song and Liang (2021): 2,000 correlated variables, 5 of them relevant, no network.

y = 5 x₂ / (1 + x₁²) + 5 sin(x₃ x₄) + 2 x₅ + N(0, 1)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gossamer.data.sun1 import Array, regression
from gossamer.types import Task

__all__ = ["N_VARIABLES", "RELEVANT", "load"]

N_VARIABLES = 2_000
RELEVANT = (0, 1, 2, 3, 4)
"""Columns that the target depends on."""


def load(root: str | Path | None = None, *, n_train: int = 10_000, n_test: int = 1_000, seed: int = 0) -> Task:
    """Targets in their own units, in which the noise is N(0, 1): no network has a mean squared error below 1.

    Args:
        root: Not used: there are no files.
        n_train: Training points.
        n_test: Test points; 1,000 more are held out for choices.
        seed: Seed of the points; another one gives fresh data.

    Example:
        >>> task = load(n_train=100)
        >>> task.n_data, len(task.val[1]), len(task.test[1]), task.input_shape
        (100, 1000, 1000, (2000,))
    """
    return regression("sun2", _response, N_VARIABLES, (n_train, n_test, seed))


def _response(x: Array) -> Array:
    y: Array = 5 * x[:, 1] / (1 + x[:, 0] ** 2) + 5 * np.sin(x[:, 2] * x[:, 3]) + 2 * x[:, 4]
    return y

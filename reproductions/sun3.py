"""Example 3 of Sun, Song and Liang (2021): 1,000 correlated variables, 4 of them relevant, 2 classes, no noise.

y = 1 if exp(x₁) + x₂² + 5 sin(x₃ x₄) > 3, else 0
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gossamer.data.sun1 import Array, as_split, inputs, parts
from gossamer.likelihoods import Categorical
from gossamer.types import Split, Task

__all__ = ["N_VARIABLES", "RELEVANT", "load"]

N_VARIABLES = 1_000
RELEVANT = (0, 1, 2, 3)
"""Columns that the class depends on."""


def load(
    root: str | Path | None = None, *, balanced: bool = False, n_train: int = 10_000, n_test: int = 1_000, seed: int = 0
) -> Task:
    """Two classes, in the mix that the formula gives or in equal numbers.

    Args:
        root: Not used: there are no files.
        balanced: As many points of each class (give or take one), as Sun et al. have them.
        n_train: Training points.
        n_test: Test points; 1,000 more are held out for choices.
        seed: Seed of the points; another one gives fresh data.

    Example:
        >>> task = load(n_train=100, balanced=True)
        >>> task.n_data, task.train[1].sum().item(), task.input_shape
        (100, 50, (1000,))
    """
    train, val, test = (_split(rng, n, balanced) for n, rng in parts("sun3", n_train, n_test, seed))
    return Task(train, val, test, Categorical(), n_outputs=2, name="sun3", class_names=("0", "1"))


def _split(rng: np.random.Generator, n: int, balanced: bool) -> Split:
    x = inputs(rng, n, N_VARIABLES)
    if not balanced:
        return as_split(x, _label(x))
    wanted = np.array([n - n // 2, n // 2])
    while np.any(np.bincount(_label(x), minlength=2) < wanted):
        x = np.concatenate([x, inputs(rng, n // 4 + 1, N_VARIABLES)])
    y = _label(x)
    rank = np.where(y == 1, np.cumsum(y), np.cumsum(1 - y))
    rows = rank <= wanted[y]  # the first so many of each class
    return as_split(x[rows], y[rows])


def _label(x: Array) -> Array:
    x = x[:, :4].astype(np.float64)
    score = np.exp(x[:, 0]) + x[:, 1] ** 2 + 5 * np.sin(x[:, 2] * x[:, 3])
    label: Array = (score > 3).astype(np.int64)
    return label

"""Example 1 of Sun, Song and Liang (2021): 1,000 correlated variables, 5 of them relevant, a small tanh network.

y = tanh(2 tanh(2x₁ - x₂)) + g(x₃, x₄, x₅) + N(0, 1). Three forms of g are in print, and the numbers of a paper belong
to its own:

- ``"ke"``, text of Ke and Fan (2022): g = 2 tanh(tanh(x₃ - 2x₄) - tanh(2x₅))
- ``"ke_code"``, their released code: g = 2 tanh(tanh(x₃ - 2x₄)) - tanh(2x₅)
- ``"sun"``, released code of Sun et al.: g = 2 tanh(2 tanh(x₃ - 2x₄) - tanh(2x₅)), inputs of variance 1/2
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gossamer.data._sun import Array, regression
from gossamer.types import Task

__all__ = ["N_VARIABLES", "RELEVANT", "load"]

N_VARIABLES = 1_000
RELEVANT = (0, 1, 2, 3, 4)
"""Columns that the target depends on."""


def load(
    root: str | Path | None = None,
    *,
    variant: str = "ke",
    n_train: int = 10_000,
    n_test: int = 1_000,
    seed: int = 0,
) -> Task:
    """Targets in their own units, in which the noise is N(0, 1): no network has a mean squared error below 1.

    Args:
        root: Not used: there are no files.
        variant: Which of the published forms, see above.
        n_train: Training points; the code of Ke and Fan has 10,240.
        n_test: Test points; the code of Ke and Fan has 1,024. 1,000 more are held out for choices.
        seed: Of the points; another one gives fresh data.

    Example:
        >>> task = load(n_train=100)
        >>> task.n_data, len(task.val[1]), len(task.test[1]), task.input_shape
        (100, 1000, 1000, (1000,))
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(map(repr, VARIANTS))}; got {variant!r}")
    input_std = 0.5**0.5 if variant == "sun" else 1.0
    return regression("sun1", VARIANTS[variant], N_VARIABLES, (n_train, n_test, seed), input_std)


def _ke(x: Array) -> Array:
    y: Array = _first(x) + 2 * np.tanh(np.tanh(x[:, 2] - 2 * x[:, 3]) - np.tanh(2 * x[:, 4]))
    return y


def _ke_code(x: Array) -> Array:
    y: Array = _first(x) + 2 * np.tanh(np.tanh(x[:, 2] - 2 * x[:, 3])) - np.tanh(2 * x[:, 4])
    return y


def _sun(x: Array) -> Array:
    y: Array = _first(x) + 2 * np.tanh(2 * np.tanh(x[:, 2] - 2 * x[:, 3]) - np.tanh(2 * x[:, 4]))
    return y


def _first(x: Array) -> Array:
    y: Array = np.tanh(2 * np.tanh(2 * x[:, 0] - x[:, 1]))
    return y


VARIANTS: dict[str, Callable[[Array], Array]] = {"ke": _ke, "ke_code": _ke_code, "sun": _sun}

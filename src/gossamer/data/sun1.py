"""Example 1 of Sun, Song and Liang (2021): 1,000 correlated variables, 5 of them relevant, a small tanh network.

y = tanh(2 tanh(2x₁ - x₂)) + g(x₃, x₄, x₅) + N(0, 1). Three forms of g are in print, and the numbers of a paper belong
to its own:

- ``"ke"``, text of Ke and Fan (2022): g = 2 tanh(tanh(x₃ - 2x₄) - tanh(2x₅))
- ``"ke_code"``, their released code: g = 2 tanh(tanh(x₃ - 2x₄)) - tanh(2x₅)
- ``"sun"``, released code of Sun et al.: g = 2 tanh(2 tanh(x₃ - 2x₄) - tanh(2x₅)), inputs of variance 1/2

The inputs of all three examples are made here (section 5): x_i = (e + z_i) / √2 with e, z_i ~ N(0, 1), so that any
two have correlation 1/2. The papers truncate e and z_i at ±10, which one draw in 10²² would reach; here they are not.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gossamer.likelihoods import Gaussian
from gossamer.types import Split, Task

__all__ = ["N_VARIABLES", "RELEVANT", "Array", "as_split", "inputs", "load", "parts", "regression"]

Array = npt.NDArray[Any]
N_VAL = 1_000  # simulated in addition, so that training has as many points as in the papers
N_VARIABLES = 1_000
RELEVANT = (0, 1, 2, 3, 4)
"""Columns that the target depends on."""


def load(
    root: str | Path | None = None, *, variant: str = "ke", n_train: int = 10_000, n_test: int = 1_000, seed: int = 0
) -> Task:
    """Targets in their own units, in which the noise is N(0, 1): no network has a mean squared error below 1.

    Args:
        root: Not used: there are no files.
        variant: Which of the published forms, see above.
        n_train: Training points; the code of Ke and Fan has 10,240.
        n_test: Test points; the code of Ke and Fan has 1,024. 1,000 more are held out for choices.
        seed: Seed of the points; another one gives fresh data.

    Example:
        >>> task = load(n_train=100)
        >>> task.n_data, len(task.val[1]), len(task.test[1]), task.input_shape
        (100, 1000, 1000, (1000,))
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(map(repr, VARIANTS))}; got {variant!r}")
    input_std = 0.5**0.5 if variant == "sun" else 1.0
    return regression("sun1", VARIANTS[variant], N_VARIABLES, (n_train, n_test, seed), input_std)


def inputs(rng: np.random.Generator, n: int, n_variables: int) -> Array:
    """``(n, n_variables)`` standard normal numbers, each two of a row with correlation 1/2."""
    common = rng.standard_normal((n, 1), dtype=np.float32)
    x: Array = rng.standard_normal((n, n_variables), dtype=np.float32)
    x += common
    x *= np.float32(0.5**0.5)
    return x


def parts(name: str, n_train: int, n_test: int, seed: int) -> list[tuple[int, np.random.Generator]]:
    """Size and random stream of training, validation and test data; streams of parts and of sets are independent."""
    if n_train < 1 or n_test < 1 or seed < 0:
        raise ValueError(f"n_train and n_test must be positive, seed not negative; got {n_train}, {n_test} and {seed}")
    return [(n, np.random.default_rng([*name.encode(), seed, part])) for part, n in enumerate((n_train, N_VAL, n_test))]


def regression(
    name: str, response: Callable[[Array], Array], n_variables: int, sizes: tuple[int, int, int], input_std: float = 1.0
) -> Task:
    """The task y = response(x[:, :5]) + N(0, 1); ``sizes`` are n_train, n_test and the seed."""

    def split(n: int, rng: np.random.Generator) -> Split:
        x = inputs(rng, n, n_variables)
        x *= np.float32(input_std)
        y = response(x[:, :5].astype(np.float64)) + rng.standard_normal(n)
        return as_split(x, y[:, None].astype(np.float32))

    train, val, test = (split(n, rng) for n, rng in parts(name, *sizes))
    return Task(train, val, test, Gaussian(noise_std=1.0), n_outputs=1, name=name)


def as_split(x: Array, y: Array) -> Split:
    """The arrays as tensors, without a copy."""
    return torch.from_numpy(x), torch.from_numpy(y)


VARIANTS: dict[str, Callable[[Array], Array]] = {
    "ke": lambda x: _first(x) + 2 * np.tanh(_second(x) - np.tanh(2 * x[:, 4])),
    "ke_code": lambda x: _first(x) + 2 * np.tanh(_second(x)) - np.tanh(2 * x[:, 4]),
    "sun": lambda x: _first(x) + 2 * np.tanh(2 * _second(x) - np.tanh(2 * x[:, 4])),
}


def _first(x: Array) -> Array:
    y: Array = np.tanh(2 * np.tanh(2 * x[:, 0] - x[:, 1]))
    return y


def _second(x: Array) -> Array:
    y: Array = np.tanh(x[:, 2] - 2 * x[:, 3])
    return y

"""Simulated data with many variables of which few matter (Sun, Song and Liang 2021, section 5).

Inputs are equally correlated: x_i = (e + z_i) / √2 with e, z_i ~ N(0, 1), so that any two have correlation 1/2. The
papers truncate e and z_i at ±10, which one draw in 10²² would reach; here they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gossamer.likelihoods import Gaussian
from gossamer.types import Split, Task

__all__ = ["N_VAL", "Array", "as_split", "inputs", "parts", "regression"]

Array = npt.NDArray[Any]
N_VAL = 1_000  # simulated anew, so that training has all the points that it has in the papers


def inputs(rng: np.random.Generator, n: int, n_variables: int) -> Array:
    """``(n, n_variables)`` standard normal numbers, each two of a row with correlation 1/2.

    Example:
        >>> inputs(np.random.default_rng(0), 5, 3).shape
        (5, 3)
    """
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

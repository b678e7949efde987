"""Two moons: two interleaved half circles in the plane, with noise; 2 classes, generated."""

import math
from pathlib import Path

import numpy as np
import torch

from gossamer.data._images import split_in_order
from gossamer.likelihoods import Categorical
from gossamer.types import Task

__all__ = ["load"]


def load(
    root: str | Path | None = None, *, n: int = 1_500, noise: float = 0.2, seed: int = 0, n_val: int | None = None
) -> Task:
    """A third for testing, a fifth of the rest held out for choices, the rest for training.

    Args:
        root: Not used: there are no files.
        n: Points in all, half of each class.
        noise: Standard deviation of the noise on both coordinates.
        seed: Seed of the points; another one gives fresh data.
        n_val: How many of the points that are not for testing to hold out instead; with 0 ``val`` has no rows.

    Example:
        >>> task = load()
        >>> task.n_data, len(task.val[1]), len(task.test[1]), task.input_shape
        (800, 200, 500, (2,))
    """
    if n < 10 or noise < 0:
        raise ValueError(f"two moons need n of at least 10 and a noise of at least 0; got {n} and {noise}")
    rng = np.random.default_rng(seed)
    label = rng.permutation(np.arange(n) % 2)
    angle = rng.uniform(0, math.pi, n)
    upper = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points = np.where(label[:, None] == 0, upper, [1, 0.5] - upper) + noise * rng.standard_normal((n, 2))
    x, y = torch.from_numpy(points).float(), torch.from_numpy(label)
    train, val, test = split_in_order(x, y, n_val)
    return Task(train, val, test, Categorical(), n_outputs=2, name="two_moons", class_names=("upper", "lower"))

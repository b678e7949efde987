"""Small tables with a known answer, and settings for a short training."""

import numpy as np
import pytest


@pytest.fixture
def short():
    """A training of a fraction of a second."""
    return {"hidden": (16,), "density": 0.5, "options": {"lr": 0.05}, "max_steps": 60, "n_draws": 5, "random_state": 0}


@pytest.fixture(scope="session")
def numbers():
    """Two of six inputs matter, linearly; noise of std 5 in units in which the signal has std 22."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 6)) * [1, 10, 0.1, 1, 1, 1] + [0, 50, 0, 0, 0, 0]
    y = 100 + 20 * X[:, 0] + 1.0 * (X[:, 1] - 50) + 5 * rng.normal(size=600)
    return X, y


@pytest.fixture(scope="session")
def classes():
    """Three classes, by name, told apart by the first two of six inputs."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    y = np.array(["ash", "birch", "cedar"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0)]
    return X, y

"""What the estimator is compared with in uci.py: each function trains on rows and predicts others.

A rival is a function of (x, y, x_new, seed) with standardised inputs and targets. It returns a mixture of normal
distributions for each new row; trees, which have no noise of their own, return two by name: with the same noise
everywhere, and with noise that depends on the inputs.
"""

import math
import warnings
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import KFold, cross_val_predict
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
VARYING = ", varying noise"
GP_LIMIT = 1100  # rows: its time grows with their cube
MEMBERS, HIDDEN, LR, DECAY, BATCH = 5, (50, 50), 0.01, 1e-4, 64
EPOCHS, SHORTEST, LONGEST = (
    40,
    2000,
    10_000,
)  # Lakshminarayanan et al. train for 40 epochs, a few hundred steps on boston


class Mixture(NamedTuple):
    """A mixture of normal distributions for each row; means and stds are ``(components, rows)``.

    With probability ``rare`` a row is like none before: its target is a standard normal number.
    """

    mean: Array
    std: Array
    rare: float = 0.0

    def log_density(self, y: Array) -> Array:
        """Log density of each target."""
        of_each = norm.logpdf(y, self.mean, self.std)
        found: Array = np.logaddexp.reduce(of_each) - math.log(len(of_each))
        if not self.rare:
            return found
        return np.logaddexp(found + math.log1p(-self.rare), norm.logpdf(y) + math.log(self.rare))


def bayesian_ridge(x: Array, y: Array, x_new: Array, seed: int) -> Mixture:
    """A linear model whose prior and noise are those of the largest evidence."""
    mean, std = BayesianRidge().fit(x, y).predict(x_new, return_std=True)
    return Mixture(mean[None], std[None])


def gaussian_process(x: Array, y: Array, x_new: Array, seed: int) -> Mixture:
    """A squared exponential with a length for each input and white noise, by the largest marginal likelihood."""
    kernel = ConstantKernel() * RBF(np.full(x.shape[1], 2.0), (1e-2, 1e3)) + WhiteKernel(0.1, (1e-6, 1e1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # an input without effect has a length without bound
        process = GaussianProcessRegressor(kernel, random_state=seed).fit(x, y)
    mean, std = process.predict(x_new, return_std=True)
    return Mixture(mean[None], std[None])


def boosting(x: Array, y: Array, x_new: Array, seed: int) -> dict[str, Mixture]:
    """HistGradientBoosting as it comes, with noise from cross-validated residuals."""
    model = HistGradientBoostingRegressor(random_state=seed)
    residuals = y - cross_val_predict(model, x, y, cv=KFold(5, shuffle=True, random_state=seed))
    return with_noise("HistGradientBoosting", model.fit(x, y).predict(x_new), noise_stds(x, residuals, x_new, seed))


def random_forest(x: Array, y: Array, x_new: Array, seed: int) -> dict[str, Mixture]:
    """A random forest as it comes, with noise from out-of-bag residuals."""
    forest = RandomForestRegressor(oob_score=True, random_state=seed).fit(x, y)
    stds = noise_stds(x, y - forest.oob_prediction_, x_new, seed)
    return with_noise("random forest", forest.predict(x_new), stds)


def with_noise(name: str, mean: Array, stds: tuple[Array, Array]) -> dict[str, Mixture]:
    """The same means with either noise."""
    return {label: Mixture(mean[None], std[None]) for label, std in zip((name, name + VARYING), stds, strict=True)}


def noise_stds(x: Array, residuals: Array, x_new: Array, seed: int) -> tuple[Array, Array]:
    """Two noise stds of new rows from residuals of rows that a model did not see: one number, and one that varies.

    The second is the root of a forest's prediction of the squared residuals, means of at least 20 of them.
    """
    squares = residuals**2
    forest = RandomForestRegressor(50, min_samples_leaf=20, random_state=seed).fit(x, squares)
    return np.full(len(x_new), math.sqrt(squares.mean())), np.sqrt(forest.predict(x_new))


def deep_ensemble(x: Array, y: Array, x_new: Array, seed: int) -> Mixture:
    """Five networks from different starts (Lakshminarayanan et al. 2017).

    Steps, and whether their noise varies, are chosen by the log density of a held-out tenth of the rows.
    """
    held = np.random.default_rng(seed).permutation(len(y)) < len(y) // 10
    epochs = EPOCHS * len(y) // BATCH
    lengths = sorted({min(epochs, LONGEST), max(SHORTEST, min(epochs, LONGEST))})
    grid = list(product((False, True), lengths))
    found = [_ensemble(x[~held], y[~held], x[held], seed, *choice).log_density(y[held]).mean() for choice in grid]
    return _ensemble(x, y, x_new, seed, *grid[int(np.argmax(found))])


def _ensemble(x: Array, y: Array, x_new: Array, seed: int, varying: bool, steps: int) -> Mixture:
    """Adam on the mean negative log density of each member, with a cosine to zero."""
    torch.manual_seed(seed)
    inputs, targets, new = (torch.from_numpy(part).float() for part in (x, y, x_new))
    network = _Ensemble(x.shape[1], varying)
    optimizer = torch.optim.Adam(network.parameters(), LR, weight_decay=DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(y), (MEMBERS, min(BATCH, len(y))))
        mean, std = network(inputs[rows])
        loss = (0.5 * ((targets[rows] - mean) / std).square() + std.log()).mean(1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        mean, std = network(new.expand(MEMBERS, -1, -1))
    return Mixture(mean.double().numpy(), std.double().numpy())


class _Ensemble(nn.Module):
    """Networks of one shape, side by side; their noise depends on the inputs or is one number each."""

    def __init__(self, n_inputs: int, varying: bool) -> None:
        super().__init__()
        widths = (n_inputs, *HIDDEN, 2 if varying else 1)
        sizes = list(pairwise(widths))
        self.weights = nn.ParameterList(_uniform(n, (MEMBERS, n, m)) for n, m in sizes)
        self.biases = nn.ParameterList(_uniform(n, (MEMBERS, 1, m)) for n, m in sizes)
        self.log_std = nn.Parameter(torch.zeros(MEMBERS, 1))
        self.varying = varying

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of each member, ``(members, rows, inputs)`` -> means and noise stds, ``(members, rows)``."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, F.relu(h) if i else h, weight)
        mean = h[..., 0]
        return mean, F.softplus(h[..., 1]) + 1e-3 if self.varying else self.log_std.exp().expand_as(mean)


def _uniform(n_inputs: int, shape: tuple[int, ...]) -> nn.Parameter:
    """The start of a torch linear layer with so many inputs."""
    return nn.Parameter(torch.empty(shape).uniform_(-1, 1) / math.sqrt(n_inputs))

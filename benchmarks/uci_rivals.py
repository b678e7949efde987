"""What the estimator is compared with in uci.py: each function trains on rows and predicts others.

A rival is a function of (x, y, x_new, seed, options) with standardised inputs and targets. It gives the means and stds
of a mixture of normal distributions, each ``(draws, rows)``, and a 90 % interval where that is not the mixture's.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
GP_LIMIT = 1000  # rows: its time grows with their cube
HIDDEN = (50, 50)
LR, BATCH, N_DRAWS = 0.01, 64, 30


class Mixture(NamedTuple):
    """A mixture of normal distributions for each row."""

    mean: Array
    std: Array
    interval: tuple[Array, Array] | None = None


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


def random_forest(x: Array, y: Array, x_new: Array, seed: int, *, leaf: int) -> Mixture:
    """Quantile regression forest (Meinshausen 2006): a row's distribution is that of the targets in its leaves."""
    forest = RandomForestRegressor(200, min_samples_leaf=leaf, max_features=1 / 3, random_state=seed).fit(x, y)
    weight = np.zeros((len(x_new), len(x)))
    for at, new in zip(forest.apply(x).T, forest.apply(x_new).T, strict=True):
        same = at[None] == new[:, None]
        weight += same / same.sum(1, keepdims=True) / 200
    mean = weight @ y
    std = np.sqrt((weight * (y - mean[:, None]) ** 2).sum(1)).clip(1e-3)
    order = np.argsort(y)
    mass = weight[:, order].cumsum(1)
    low, high = (y[order][(mass < level).sum(1).clip(max=len(y) - 1)] for level in (0.05, 0.95))
    return Mixture(mean[None], std[None], (low, high))


def deep_ensemble(x: Array, y: Array, x_new: Array, seed: int, *, steps: int, weight_decay: float) -> Mixture:
    """Lakshminarayanan et al. (2017): networks with mean and variance outputs, from different starts."""
    torch.manual_seed(seed)
    network = _Ensemble([_mlp(x.shape[1], 2) for _ in range(5)])
    return Mixture(*_predict(_train(network, x, y, steps, weight_decay, _varying), x_new, _varying))


def mc_dropout(x: Array, y: Array, x_new: Array, seed: int, *, steps: int, rate: float) -> Mixture:
    """Gal and Ghahramani (2016): dropout also at prediction, with one noise std, learnt."""
    torch.manual_seed(seed)
    network = _WithNoise(_mlp(x.shape[1], 1, rate))
    _train(network, x, y, steps, 1e-4, _constant)
    outputs = [_predict(network, x_new, _constant) for _ in range(N_DRAWS)]
    return Mixture(*map(np.concatenate, zip(*outputs, strict=True)))


class _Ensemble(nn.Module):
    """Networks of one shape, side by side: each sees all rows, none sees the others."""

    def __init__(self, members: list[nn.Sequential]) -> None:
        super().__init__()
        layers = list(zip(*([m for m in member if isinstance(m, nn.Linear)] for member in members), strict=True))
        self.weights = nn.ParameterList(torch.stack([layer.weight.detach().T for layer in same]) for same in layers)
        self.biases = nn.ParameterList(torch.stack([layer.bias.detach()[None] for layer in same]) for same in layers)

    def forward(self, x: Tensor) -> Tensor:
        """``(rows, inputs)``, or rows of its own for each member -> ``(members, rows, outputs)``."""
        h = x.expand(len(self.weights[0]), *x.shape[-2:])
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, F.relu(h) if i else h, weight)
        return h


class _WithNoise(nn.Module):
    """A network of means beside one noise std."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.log_std = network, nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Means and log stds, ``(members, rows, 2)``."""
        mean = self.network(x)
        return torch.cat([mean, self.log_std.expand_as(mean)], -1)


def _mlp(n_inputs: int, n_outputs: int, rate: float = 0.0) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in HIDDEN:
        layers += [nn.Linear(n_inputs, width), nn.ReLU(), *([nn.Dropout(rate)] if rate else [])]
        n_inputs = width
    return nn.Sequential(*layers, nn.Linear(n_inputs, n_outputs))


def _varying(output: Tensor) -> tuple[Tensor, Tensor]:
    return output[..., 0], F.softplus(output[..., 1]) + 1e-3


def _constant(output: Tensor) -> tuple[Tensor, Tensor]:
    return output[..., 0], output[..., 1].exp()


Read = Callable[[Tensor], tuple[Tensor, Tensor]]


def _train(network: nn.Module, x: Array, y: Array, steps: int, weight_decay: float, read: Read) -> nn.Module:
    """Adam on the mean negative log density of each member, with a cosine to zero; dropout stays switched on."""
    inputs, targets = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    n_members = read(network(inputs[None, :1]))[0].shape[0]
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=weight_decay)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = LR / 2 * (1 + math.cos(math.pi * step / steps))
        rows = torch.randint(len(y), (n_members, min(BATCH, len(y))))
        mean, std = read(network(inputs[rows]))
        loss = (0.5 * ((targets[rows] - mean) / std).square() + std.log()).mean(1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


@torch.no_grad()
def _predict(network: nn.Module, x: Array, read: Read) -> tuple[Array, Array]:
    mean, std = read(network(torch.from_numpy(x).float()[None]))
    return mean.double().numpy(), std.double().numpy()

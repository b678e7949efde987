"""Which inputs matter: a posterior probability of inclusion for each, from the draws of any method.

An input matters as far as the predicted distribution p(y | x) depends on it. The measure of that is its Fisher
information, averaged over the training rows i,

    I_j = mean_i Σ_o (∂m_o/∂x_j)² / v_o

where m is the mean over the draws (of numbers, or of class probabilities), x_j is in units of its standard deviation,
and v_o is the variance of the prediction of a number, or m_o itself for a class. N · I_j is the square of a Wald
statistic: the evidence of N rows that input j has an effect at all. An input is included with the probability that
the Bayesian information criterion gives it, under prior odds of one to the number p of inputs,

    log π_j / (1 - π_j) = N · I_j / 2 - log(N) / 2 - log p

(the extended criterion of Chen and Chen, 2008, with γ = 1). An input without a path of active weights to an output has
π_j = 0. The formula needs the right noise: a network that has memorised the noise finds every input important. In that
case hold rows out (``early_stopping=True``); v is then their mean squared error.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from gossamer.estimators.draws import Draws
from gossamer.estimators.table import Array
from gossamer.likelihoods import Gaussian
from gossamer.types import Likelihood

__all__ = ["inclusion", "information"]

MAX_ROWS = 512  # enough: slopes are means over them, and the rows are in random order
MAX_CELLS = 2**24  # rows times inputs times outputs in memory: fewer rows where a table is wide


def inclusion(information: Array, n_data: float, n_columns: int) -> Array:
    """π of each input from its information I, for N rows and p inputs of which these are some.

    Example:
        >>> inclusion(np.array([0.0, 0.01, 0.1]), n_data=200, n_columns=10).round(3)
        array([0.   , 0.019, 0.994])
    """
    log_odds = 0.5 * n_data * information - 0.5 * math.log(n_data) - math.log(n_columns)
    result: Array = np.where(information > 0, 1 / (1 + np.exp(-log_odds.clip(-700, 700))), 0.0)
    return result


def information(draws: Draws, x: Array, weight: Array, likelihood: Likelihood, noise: Array | None = None) -> Array:
    """I of each input that the draws read, over standardised rows ``x``; over fewer rows if the table is wide.

    Args:
        draws: The networks.
        x: ``(rows, inputs)``.
        weight: Weights of the rows.
        likelihood: How the outputs are read.
        noise: Variance of the noise of each target, if it is known better than from the draws.
    """
    n_rows = max(16, MAX_CELLS // (x.shape[1] * draws.architecture.n_outputs))
    rows, weights = torch.from_numpy(x[:n_rows]).double(), torch.from_numpy(weight[:n_rows])
    squares, variance = _squared_slopes(draws, rows, likelihood)
    if noise is not None:
        variance = torch.from_numpy(noise).expand_as(variance)
    of_rows = (squares / variance.clamp_min(1e-12).T.unsqueeze(-1)).sum(0)
    result: Array = (weights @ of_rows / weights.sum()).clamp_min(0).numpy()
    return result


def _squared_slopes(draws: Draws, rows: Tensor, likelihood: Likelihood) -> tuple[Tensor, Tensor]:
    """(∂m/∂x)² of the mean m over draws, ``(outputs, rows, inputs)``, and v, ``(rows, outputs)``."""
    slope, mean, noise = _Moments(), _Moments(), _Moments()
    for network, weights in draws:
        inputs = rows.clone().requires_grad_()
        value, variance = _mean_and_variance(functional_call(network, weights, (inputs,)), likelihood)
        slope.add(_jacobian(value, inputs))
        mean.add(value.detach())
        noise.add(variance.detach())
    variance = noise.mean + mean.variance if isinstance(likelihood, Gaussian) else mean.mean
    # The square of a mean over few draws is too large by the variance of that mean.
    return slope.mean.square() - slope.variance / len(draws), variance


class _Moments:
    """Running mean and variance of tensors."""

    def __init__(self) -> None:
        self.n, self.total, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, value: Tensor) -> None:
        self.n, self.total, self.squares = self.n + 1, self.total + value, self.squares + value.square()

    @property
    def mean(self) -> Tensor:
        return self.total / self.n

    @property
    def variance(self) -> Tensor:
        """Unbiased; zero for a single tensor."""
        return (self.squares / self.n - self.mean.square()) * (self.n / max(1, self.n - 1))


def _mean_and_variance(output: Tensor, likelihood: Likelihood) -> tuple[Tensor, Tensor]:
    """M and v of one draw, each ``(rows, outputs)``; for classes both are the probabilities."""
    if isinstance(likelihood, Gaussian):
        mean, std = likelihood.split(output)
        return mean, std.square()
    probs = output.softmax(1)
    return probs, probs


def _jacobian(mean: Tensor, inputs: Tensor) -> Tensor:
    """∂mean/∂inputs, ``(outputs, rows, inputs)``; an output depends on its own row alone."""
    chosen = torch.eye(mean.shape[1], dtype=mean.dtype).unsqueeze(1).expand(-1, len(mean), -1)
    (slope,) = torch.autograd.grad(mean, inputs, chosen, is_grads_batched=True)
    return slope

"""Metrics of predicted numbers, intervals and mixtures of Gaussians against targets."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rmse(mean: Tensor, y: Tensor) -> float:
    """Root mean squared error.

    Example:
        >>> rmse(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
        1.4142135623730951
    """
    return float((mean.double() - y.reshape(mean.shape).double()).square().mean().sqrt())


def coverage(low: Tensor, high: Tensor, y: Tensor) -> float:
    """Share of the targets inside their intervals.

    Example:
        >>> coverage(torch.zeros(2), torch.ones(2), torch.tensor([0.5, 2.0]))
        0.5
    """
    y = y.reshape(low.shape)
    return float(((low <= y) & (y <= high)).double().mean())


def mean_width(low: Tensor, high: Tensor) -> float:
    """Mean width of the intervals; at the same coverage, narrower is better.

    Example:
        >>> mean_width(torch.zeros(2), torch.tensor([1.0, 2.0]))
        1.5
    """
    return float((high.double() - low.reshape(high.shape).double()).mean())


def gaussian_mixture_crps(means: Tensor, stds: Tensor, y: Tensor) -> float:
    """Continuous ranked probability score of an equal mixture of Gaussians, one per draw (Grimit et al. 2006).

    CRPS = ∫ (F(t) − 1[t ≥ y])² dt, in the units of y, averaged over the targets. For M components,

        (1 / M) Σ_i A(y − μ_i, σ_i) − (1 / 2M²) Σ_i Σ_j A(μ_i − μ_j, √(σ_i² + σ_j²)),
        A(m, s) = E|m + s Z| = m (2 Φ(m / s) − 1) + 2 s φ(m / s);

    where σ = 0 it is the score of an ensemble of numbers. Time grows with M², memory with M.

    Args:
        means: μ, ``(draws, n…)``.
        stds: σ, ``(draws, n…)`` or what broadcasts to it.
        y: Targets, ``(n…)``.

    Example:
        >>> round(gaussian_mixture_crps(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1)), 4)  # (√2 − 1) / √π
        0.2337
    """
    if (stds < 0).any():
        raise ValueError(f"stds must not be negative; got {float(stds.min())}")
    means = means.double()
    stds = stds.double().expand(means.shape)
    distance = _mean_abs(y.reshape(means.shape[1:]).double() - means, stds).mean()
    spread = [_mean_abs(mean - means, torch.hypot(std, stds)).mean() for mean, std in zip(means, stds, strict=True)]
    return float(distance - torch.stack(spread).mean() / 2)


def _mean_abs(mean: Tensor, std: Tensor) -> Tensor:
    """E|θ| of θ ~ N(mean, std²), also where ``std`` is 0."""
    z = mean / std.clamp_min(torch.finfo(std.dtype).tiny)
    return mean * torch.erf(z / math.sqrt(2)) + std * math.sqrt(2 / math.pi) * torch.exp(-z.square() / 2)

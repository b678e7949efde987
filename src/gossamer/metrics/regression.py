"""Metrics of predicted numbers and intervals against targets."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["coverage", "rmse"]


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

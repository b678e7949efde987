"""Metrics of predicted numbers and intervals against targets."""

from __future__ import annotations

import torch  # noqa: F401 (of the examples)
from torch import Tensor


def rmse(mean: Tensor, y: Tensor) -> float:
    """Root mean squared error.

    Example:
        >>> rmse(torch.tensor([2.0, 8.0]), torch.tensor([1.0, 1.0]))
        5.0
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

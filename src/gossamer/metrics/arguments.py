"""Checks of what metrics are given: a wrong shape would otherwise be broadcast to a wrong number."""

from __future__ import annotations

from torch import Tensor

__all__ = ["require_bins", "require_labels"]


def require_labels(probs: Tensor, labels: Tensor) -> None:
    """Raise unless there is a row of probabilities for each label, and at least one.

    Example:
        >>> import torch
        >>> require_labels(torch.ones(2, 3) / 3, torch.zeros(2, 1, dtype=torch.long))
        Traceback (most recent call last):
        ...
        ValueError: probs must be (n, classes) and labels (n,), n >= 1; got (2, 3) and (2, 1)
    """
    if probs.dim() != 2 or labels.shape != probs.shape[:1] or not probs.numel():
        shapes = f"{tuple(probs.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"probs must be (n, classes) and labels (n,), n >= 1; got {shapes}")


def require_bins(n_bins: int) -> None:
    """Raise unless there is a bin.

    Example:
        >>> require_bins(0)
        Traceback (most recent call last):
        ...
        ValueError: n_bins must be at least 1; got 0
    """
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1; got {n_bins}")

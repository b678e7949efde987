"""Metrics of class probabilities ``(n, classes)`` against labels ``(n,)``."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["accuracy", "brier", "nll", "top_label_ece"]


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of examples whose most probable class is right.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
        0.5
    """
    return float((probs.argmax(1) == labels).double().mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean of -log p(label), in nats.

    Example:
        >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), 4)
        0.6931
    """
    chosen = probs.gather(1, labels.unsqueeze(1)).double()
    return float(-chosen.clamp_min(torch.finfo(probs.dtype).tiny).log().mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Mean squared distance of the probabilities from the one-hot label, summed over classes: from 0 to 2.

    Example:
        >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
        0.5
    """
    target = torch.nn.functional.one_hot(labels, probs.shape[1])
    return float((probs.double() - target).square().sum(1).mean())


def top_label_ece(probs: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    """Expected calibration error of the predicted class (Guo et al. 2017): equal-width bins of confidence, L1.

    Example:
        >>> round(top_label_ece(torch.tensor([[0.8, 0.2]] * 4), torch.tensor([0, 0, 0, 1])), 4)
        0.05
    """
    confidence, predicted = probs.double().max(1)
    right = (predicted == labels).double()
    edges = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64, device=probs.device)
    index = torch.bucketize(confidence, edges[1:-1])
    zeros = confidence.new_zeros(n_bins)
    gap = zeros.index_add(0, index, confidence) - zeros.index_add(0, index, right)
    return float(gap.abs().sum() / len(labels))

"""Curves behind the numbers: reliability, accuracy under abstention."""

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.metrics.measures import require_bins, require_labels


class ReliabilityCurve(NamedTuple):
    """Accuracy against confidence; ``confidence`` and ``accuracy`` of an empty bin are NaN."""

    edges: Tensor  # (n_bins + 1,)
    confidence: Tensor  # (n_bins,), mean in each bin
    accuracy: Tensor  # (n_bins,)
    count: Tensor  # type: ignore[assignment]  # (n_bins,), how many examples; hides tuple.count, which nobody needs


class SelectiveCurve(NamedTuple):
    """Accuracy on the share of the examples about which the network is least uncertain."""

    coverage: Tensor  # (n,), from 1 / n to 1
    accuracy: Tensor  # (n,)
    aurc: float  # area under the curve of risk, 1 − accuracy, against coverage


def reliability_curve(probs: Tensor, labels: Tensor, n_bins: int = 15) -> ReliabilityCurve:
    """Accuracy and mean confidence in equal-width bins of the confidence, max_k p_k; a bin includes its upper edge.

    Σ_b (count_b / n) |confidence_b − accuracy_b| over the bins that have examples is the top-label ECE.

    Example:
        >>> curve = reliability_curve(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]), n_bins=2)
        >>> curve.count.tolist(), curve.accuracy.tolist()
        ([0, 2], [nan, 0.5])
    """
    require_labels(probs, labels)
    require_bins(n_bins)
    confidence, predicted = probs.double().max(1)
    edges = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64, device=probs.device)
    index = torch.bucketize(confidence, edges[1:-1])
    zeros = torch.zeros_like(edges[1:])
    count = torch.bincount(index, minlength=n_bins)
    right = zeros.index_add(0, index, (predicted == labels).double())
    return ReliabilityCurve(edges, zeros.index_add(0, index, confidence) / count, right / count, count)


def selective_accuracy(probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> SelectiveCurve:
    """Accuracy on the m least uncertain examples, for every m: when the network may abstain (Geifman et al. 2019).

    coverage_m = m / n, and aurc = (1 / n) Σ_m (1 − accuracy_m), the smaller the better. ``uncertainty`` ``(n,)`` is
    1 − max_k p_k unless given. Examples that are equally uncertain count as in a random order, on average, so the order
    given does not matter. Of sure networks give ``probs`` in float64: rounding makes them equal.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.7, 0.3]])
        >>> curve = selective_accuracy(probs, torch.tensor([0, 0, 1, 0]))
        >>> curve.accuracy.tolist(), curve.aurc
        ([1.0, 1.0, 1.0, 0.75], 0.0625)
    """
    require_labels(probs, labels)
    confidence, predicted = probs.max(1)
    if uncertainty is None:
        uncertainty = -confidence  # 1 − p would round small differences away
    elif uncertainty.shape != labels.shape:
        raise ValueError(f"uncertainty must be of shape {tuple(labels.shape)}; got {tuple(uncertainty.shape)}")
    _, tie = uncertainty.unique(return_inverse=True)
    total = torch.bincount(tie, (predicted == labels).double())
    right = (total / tie.bincount())[tie.sort().values]  # of each place, the share of its ties that are right
    taken = torch.arange(1, len(labels) + 1, dtype=torch.float64, device=probs.device)
    accuracy = right.cumsum(0) / taken
    return SelectiveCurve(taken / len(labels), accuracy, float((1 - accuracy).mean()))

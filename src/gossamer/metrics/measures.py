"""Metrics of class probabilities ``(n, classes)`` against labels ``(n,)``, with curves; of numbers and of intervals.

Three numbers are called calibration error, and none can be turned into another: :func:`ece` (what most papers
print), :func:`classwise_ece` and :func:`marginal_l2_debiased` (what the tables of SSVI print). All sums are in float64.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


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


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of examples whose most probable class is right; ties go to the first class.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
        0.5
    """
    _require_labels(probs, labels)
    return float((probs.argmax(1) == labels).double().mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean of -log p(label), in nats; a probability counts as at least the smallest normal number of its dtype.

    Example:
        >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), 4)
        0.6931
    """
    _require_labels(probs, labels)
    chosen = probs.gather(1, labels.unsqueeze(1)).double()
    return float(-chosen.clamp_min(torch.finfo(probs.dtype).tiny).log().mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Mean squared distance of the probabilities from the one-hot label, summed over classes: from 0 to 2.

    Example:
        >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
        0.5
    """
    _require_labels(probs, labels)
    target = torch.nn.functional.one_hot(labels, probs.shape[1])
    return float((probs.double() - target).square().sum(1).mean())


def ece(probs: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    """Expected calibration error of the predicted class (Guo et al. 2017): equal-width bins of confidence, L1.

    With n_b examples in bin b, Σ_b (n_b / n) |mean confidence in b − accuracy in b|.

    Example:
        >>> round(ece(torch.tensor([[0.8, 0.2]] * 4), torch.tensor([0, 0, 0, 1])), 4)
        0.05
    """
    _require_labels(probs, labels)
    confidence, predicted = probs.double().max(1)
    return float(_ece_of_columns(confidence[:, None], (predicted == labels)[:, None], n_bins))


def ece_floor(probs: Tensor, n_bins: int = 15, n_redraws: int = 200) -> float:
    """The :func:`ece` that perfect calibration has with these confidences, by chance, on as many examples.

    The mean over redrawn outcomes, in which an answer is right exactly as often as its confidence says; they are the
    same in every call. An ECE near it ranks nothing.

    Example:
        >>> ece_floor(torch.tensor([[1.0, 0.0]] * 4)), round(ece_floor(torch.tensor([[0.5, 0.5]])), 4)
        (0.0, 0.5)
    """
    confidence = probs.double().amax(1)[:, None].expand(-1, n_redraws)
    drawn = torch.rand(confidence.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return float(_ece_of_columns(confidence, drawn.to(probs.device) < confidence, n_bins).mean())


def classwise_ece(probs: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    """Calibration error of each class, averaged over classes (Nixon et al. 2019): equal-width bins of p_k, L1.

    (1 / K) Σ_k Σ_b (n_kb / n) |mean of p_k in b − share of class k in b|.

    Example:
        >>> round(classwise_ece(torch.tensor([[0.8, 0.2]] * 4), torch.tensor([0, 0, 0, 1])), 4)
        0.05
    """
    _require_labels(probs, labels)
    target = labels[:, None] == torch.arange(probs.shape[1], device=labels.device)
    return float(_ece_of_columns(probs.double(), target, n_bins).mean())


def marginal_l2_debiased(probs: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    """Debiased L2 calibration error of the classes (Kumar, Liang and Ma 2019), the number SSVI reports.

    For each class k, with about equally many examples in each bin of p_k, y = 1 for the examples of class k, and means
    over the bin,

        CE_k² = max(0, Σ_b (n_b / n) [(mean p − mean y)² − mean y (1 − mean y) / (n_b − 1)]);

    bins of fewer than two examples add nothing, and the result is the root of the mean of CE_k² over k. This is
    ``get_calibration_error(probs, labels)`` of the package *uncertainty-calibration* 0.1.4 with its defaults, also in
    that every distinct value gets a bin of its own when each class has fewer of them than a quarter of the examples.

    It is not an ECE: debiasing and the maximum make it exactly 0 for many accurate but overconfident networks.

    Example:
        >>> value = marginal_l2_debiased(torch.tensor([[0.75, 0.25]] * 8), torch.tensor([0, 1] * 4))
        >>> round(value, 4)  # √(1/16 − 1/28)
        0.1637
    """
    _require_labels(probs, labels)
    _require_bins(n_bins)
    columns = [column.contiguous() for column in probs.unbind(1)]
    discrete = all(len(column.unique()) < len(labels) / 4 for column in columns)
    edges = [_edges_between(column) if discrete else _equal_mass_edges(column, n_bins) for column in columns]
    squares = [_debiased_square(column, labels == k, edges[k]) for k, column in enumerate(columns)]
    return float(torch.stack(squares).mean().sqrt())


def reliability_curve(probs: Tensor, labels: Tensor, n_bins: int = 15) -> ReliabilityCurve:
    """Accuracy and mean confidence in equal-width bins of the confidence, max_k p_k; a bin includes its upper edge.

    Σ_b (count_b / n) |confidence_b − accuracy_b| over the bins that have examples is the top-label ECE.

    Example:
        >>> curve = reliability_curve(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]), n_bins=2)
        >>> curve.count.tolist(), curve.accuracy.tolist()
        ([0, 2], [nan, 0.5])
    """
    _require_labels(probs, labels)
    _require_bins(n_bins)
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
    _require_labels(probs, labels)
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


def _require_labels(probs: Tensor, labels: Tensor) -> None:
    """Raise unless there is a row of probabilities for each label, and at least one: broadcasting would hide it."""
    if probs.dim() != 2 or labels.shape != probs.shape[:1] or not probs.numel():
        shapes = f"{tuple(probs.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"probs must be (n, classes) and labels (n,), n >= 1; got {shapes}")


def _require_bins(n_bins: int) -> None:
    """Raise unless there is a bin."""
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1; got {n_bins}")


def _ece_of_columns(confidence: Tensor, right: Tensor, n_bins: int) -> Tensor:
    """Σ_b (n_b / n) |mean confidence − mean right| in equal-width bins of each column: ``(n, k) -> (k,)``."""
    _require_bins(n_bins)
    edges = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64, device=confidence.device)
    index = torch.bucketize(confidence.contiguous(), edges[1:-1])
    gap = confidence.new_zeros(n_bins, confidence.shape[1]).scatter_add(0, index, confidence - right.double())
    return gap.abs().sum(0) / len(confidence)


def _edges_between(p: Tensor) -> Tensor:
    """Midpoints between distinct values, in the precision of ``p`` like the package: some merge neighbours."""
    values: Tensor = p.unique()
    return (values[:-1] + values[1:]) / 2


def _equal_mass_edges(p: Tensor, n_bins: int) -> Tensor:
    """Inner edges of bins of equal mass: midpoints between neighbouring chunks of the sorted values, each once."""
    chunks = p.sort().values.tensor_split(min(n_bins, len(p)))
    middles = [(left[-1] + right[0]) / 2 for left, right in pairwise(chunks)]
    edges: Tensor = torch.stack([*middles, p.new_ones(())]).unique()
    return edges[:-1]


def _debiased_square(p: Tensor, y: Tensor, edges: Tensor) -> Tensor:
    """max(0, Σ_b (n_b / n) [(mean p − mean y)² − mean y (1 − mean y) / (n_b − 1)]) for the bins between ``edges``."""
    index = torch.bucketize(p, edges)
    zeros = torch.zeros(len(edges) + 1, dtype=torch.float64, device=p.device)
    count = zeros.index_add(0, index, torch.ones_like(p, dtype=torch.float64))
    mean_p = zeros.index_add(0, index, p.double()) / count
    mean_y = zeros.index_add(0, index, y.double()) / count
    error = (mean_p - mean_y).square() - mean_y * (1 - mean_y) / (count - 1)
    return torch.where(count > 1, count * error, 0.0).sum().clamp_min(0) / len(p)


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

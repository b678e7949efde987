"""Detection of inputs from outside the training distribution: scores of doubt, and how well they separate.

A score is a number per example that should be higher for inputs from outside. Papers differ in which side they call
positive; here ``aupr_out`` takes the outside as positive, ``aupr_in`` the inside, and ``fpr95`` is the share of the
outside that passes a threshold which 95 % of the inside pass (Liang et al. 2018, "FPR at 95 % TPR").
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.posterior import Prediction

Score = Callable[[Prediction], Tensor]
"""A prediction -> one number per example, ``(batch,)``, higher where the input is less familiar."""


class Detection(NamedTuple):
    """How well a score separates the outside from the inside; ``fpr95`` is better when low, the others when high."""

    auroc: float
    aupr_out: float
    aupr_in: float
    fpr95: float


def detect(score_in: Tensor, score_out: Tensor) -> Detection:
    """All four measures of one score.

    Example:
        >>> [round(value, 4) for value in detect(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.3, 0.9]))]
        [0.8125, 0.75, 0.8875, 0.5]
    """
    return Detection(
        auroc(score_in, score_out),
        aupr(score_out, score_in),
        aupr(-score_in, -score_out),
        fpr_at_recall(score_in, score_out),
    )


def auroc(score_in: Tensor, score_out: Tensor) -> float:
    """How well a score separates inputs from outside, which should score higher, from those from inside.

    P(score_out > score_in) + P(score_out = score_in) / 2, the Mann–Whitney statistic: 1/2 is chance, 1 a perfect
    separation. The score may be the entropy, the mutual information or 1 − max_k p_k; both tensors are flattened.

    Example:
        >>> auroc(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.3, 0.9]))
        0.8125
    """
    inside, outside = _checked("auroc", score_in, score_out)
    inside = inside.sort().values
    below = torch.searchsorted(inside, outside)
    not_above = torch.searchsorted(inside, outside, right=True)
    return float((below + not_above).double().mean() / (2 * len(inside)))


def aupr(score_positive: Tensor, score_negative: Tensor) -> float:
    """Average precision, the area under precision against recall: Σ_t (recall_t − recall_{t−1}) precision_t.

    t runs over the distinct scores from the highest down, and all examples that score at least t are called positive.
    Chance is the share of the positives, so it depends on how many there are of each kind.

    Example:
        >>> aupr(torch.tensor([0.9, 0.3]), torch.tensor([0.4]))  # 1/2 · 1 + 1/2 · 2/3
        0.8333333333333333
    """
    positive, negative = _checked("aupr", score_positive, score_negative)
    thresholds, count = positive.unique(return_counts=True)
    found = len(positive) - torch.searchsorted(positive.sort().values, thresholds)
    alarms = len(negative) - torch.searchsorted(negative.sort().values, thresholds)
    return float((count.double() * found / (found + alarms)).sum() / len(positive))


def fpr_at_recall(score_in: Tensor, score_out: Tensor, recall: float = 0.95) -> float:
    """Share of the outside that scores no more than a share ``recall`` of the inside: lower is better.

    Example:
        >>> fpr_at_recall(torch.arange(100), torch.tensor([10, 94, 95, 200]))
        0.5
    """
    if not 0 < recall <= 1:
        raise ValueError(f"recall must be above 0 and at most 1; got {recall}")
    inside, outside = _checked("fpr_at_recall", score_in, score_out)
    # Rounded first: 0.95 · 20 is 19, not the next float above it.
    threshold = inside.sort().values[math.ceil(round(recall * len(inside), 6)) - 1]
    return float((outside <= threshold).double().mean())


def scores_of(prediction: Prediction) -> Mapping[str, Tensor]:
    """Every score that a prediction has, by name, ``(batch,)`` in float64.

    For classes ``max_probability`` (−max_k p_k), ``entropy``, ``mutual_information`` and ``energy``
    (−log Σ_k exp f_k, the mean over the draws; Liu et al. 2020); for numbers ``std`` and ``epistemic_std``.

    Example:
        >>> scores = scores_of(Prediction(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]])))
        >>> {name: round(float(score), 3) for name, score in scores.items()}
        {'max_probability': -0.5, 'entropy': 0.693, 'mutual_information': 0.328, 'energy': -2.127}
    """
    exact = prediction.double()
    kind = NUMBER_SCORES if prediction.has_numbers else CLASS_SCORES
    return {name: score(exact) for name, score in kind.items()}


def _energy(prediction: Prediction) -> Tensor:
    dim = prediction.class_dim + (prediction.class_dim >= 0)  # the draws come before the network's own dimensions
    return -prediction.outputs.logsumexp(dim).mean(0)


CLASS_SCORES: Mapping[str, Score] = {
    "max_probability": lambda prediction: -prediction.confidence,
    "entropy": lambda prediction: prediction.entropy,
    "mutual_information": lambda prediction: prediction.mutual_information,
    "energy": _energy,
}
NUMBER_SCORES: Mapping[str, Score] = {
    "std": lambda prediction: prediction.std.flatten(1).mean(1),
    "epistemic_std": lambda prediction: prediction.epistemic_std.flatten(1).mean(1),
}


def _checked(name: str, inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    inside, outside = inside.flatten().double(), outside.flatten().double()
    if not len(inside) or not len(outside):
        raise ValueError(f"{name} needs a score of each kind; got {len(inside)} and {len(outside)}")
    if inside.isnan().any() or outside.isnan().any():
        raise ValueError("scores must be numbers; got NaN")
    return inside, outside

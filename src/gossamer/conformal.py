"""Split conformal prediction: sets and intervals that keep a promise, whatever the network.

The promise holds for examples that are exchangeable with the calibration examples, which trained nothing and chose
nothing: over the draw of both,

    P(truth is in the set) ≥ level,  and ≤ level + 1 / (n + 1) where scores have no ties

for n calibration examples. It holds on average over inputs, not for each of them, and not away from the data.

A *score* says how badly a candidate answer fits the prediction; a set holds all answers that score no more than the
⌈(n + 1) level⌉-th smallest score of the n true answers.
"""

import math

import torch
from torch import Tensor

__all__ = ["class_sets", "scaled_intervals", "threshold"]


def threshold(scores: Tensor, level: float = 0.9) -> Tensor:
    """The ⌈(n + 1) level⌉-th smallest of n scores, along the first dimension; infinite if n < level / (1 − level).

    Example:
        >>> threshold(torch.arange(1.0, 20.0), 0.9), threshold(torch.arange(1.0, 6.0), 0.9)
        (tensor(18.), tensor(inf))
    """
    if not 0 < level < 1:
        raise ValueError(f"level is a probability between 0 and 1; got {level}")
    if scores.isnan().any():
        raise ValueError("calibration scores must be numbers; got NaN")
    n = len(scores)
    rank = math.ceil(round((n + 1) * level, 9))  # rounded first: 0.9 · 20 is 18, not a little more
    return scores.sort(0).values[rank - 1] if rank <= n else torch.full_like(scores[:1].sum(0), math.inf)


def class_sets(
    probs_val: Tensor, labels_val: Tensor, probs: Tensor, level: float = 0.9, *, may_be_empty: bool = False
) -> Tensor:
    """Sets of classes that contain the true one with probability ``level``, the smallest on average.

    The score of class k is 1 − p_k (LAC, Sadinle et al. 2019).

    Args:
        probs_val: Predicted probabilities of the calibration examples, ``(n, classes)``.
        labels_val: Their classes, ``(n,)``.
        probs: Predicted probabilities, ``(m, classes)``.
        level: The probability that is promised.
        may_be_empty: Whether a set may be empty. If not, the most probable class is always in it, and a network that
            is right more often than ``level`` keeps more than it promises.

    Returns:
        Whether each class is in the set, ``(m, classes)``.

    Example:
        >>> probs_val, labels_val = torch.tensor([[0.8, 0.2]] * 9), torch.tensor([0] * 7 + [1] * 2)
        >>> class_sets(probs_val, labels_val, torch.tensor([[0.9, 0.1], [0.7, 0.3]]), level=0.7)
        tensor([[ True, False],
                [ True, False]])
    """
    if labels_val.shape != probs_val.shape[:1] or probs_val.shape[1:] != probs.shape[1:] or probs.dim() != 2:
        shapes = f"{tuple(probs_val.shape)}, {tuple(labels_val.shape)} and {tuple(probs.shape)}"
        raise ValueError(f"expected probs_val (n, classes), labels_val (n,) and probs (m, classes); got {shapes}")
    of_truth = (1 - probs_val).gather(1, labels_val[:, None])[:, 0]
    sets = 1 - probs <= threshold(of_truth, level)
    return sets if may_be_empty else sets.scatter(1, probs.argmax(1, keepdim=True), True)


def scaled_intervals(
    mean_val: Tensor, std_val: Tensor, y_val: Tensor, mean: Tensor, std: Tensor, level: float = 0.9
) -> tuple[Tensor, Tensor]:
    """Intervals mean ± q std, q the threshold of |y − mean| / std (normalised residuals, Lei et al. 2018).

    Example:
        >>> zeros, ones, y = torch.zeros(9), torch.ones(9), torch.arange(1.0, 10.0)
        >>> scaled_intervals(zeros, ones, y, torch.tensor([5.0]), torch.tensor([0.5]), level=0.8)
        (tensor([1.]), tensor([9.]))
    """
    reach = threshold((y_val.reshape(mean_val.shape) - mean_val).abs() / std_val, level) * std
    return mean - reach, mean + reach

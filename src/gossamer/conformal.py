"""Split conformal prediction: sets and intervals that keep a promise, whatever the network.

The promise holds for examples that are exchangeable with the calibration examples, which trained nothing and chose
nothing: over the draw of both,

    P(truth is in the set) ≥ level,  and ≤ level + 1 / (n + 1) where scores have no ties

for n calibration examples. It holds on average over inputs, not for each of them, and not away from the data.

A *score* says how badly a candidate answer fits the prediction; a set holds all answers that score no more than the
⌈(n + 1) level⌉-th smallest score of the n true answers.
"""

import math
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "SetScore",
    "class_scores",
    "class_sets",
    "scaled_intervals",
    "shifted_intervals",
    "threshold",
]

SetScore = Literal["aps", "lac"]
"""``"lac"``: smallest sets on average. ``"aps"``: sets that grow with the difficulty of the input."""


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


def class_scores(probs: Tensor, score: SetScore = "aps", u: Tensor | None = None) -> Tensor:
    """Score of every class, ``(n, classes)``.

    LAC (Sadinle et al. 2019) is 1 − p_k. APS (Romano et al. 2020) is Σ p_j over the classes j that are more probable
    than k, plus u p_k. With u uniform, one number per example, a network that is nearly always sure does not force all
    classes into the sets of the other examples; u is 1 unless given.

    Example:
        >>> class_scores(torch.tensor([[0.5, 0.2, 0.3]]))
        tensor([[0.5000, 1.0000, 0.8000]])
        >>> class_scores(torch.tensor([[0.5, 0.2, 0.3]]), u=torch.tensor([0.5]))
        tensor([[0.2500, 0.9000, 0.6500]])
    """
    if score == "lac":
        return 1 - probs
    if score != "aps":
        raise ValueError(f"score must be 'aps' or 'lac'; got {score!r}")
    falling, order = probs.sort(dim=1, descending=True, stable=True)
    sums = torch.zeros_like(probs).scatter(1, order, falling.cumsum(1))
    return sums if u is None else sums - (1 - u[:, None]) * probs


def class_sets(
    probs_val: Tensor,
    labels_val: Tensor,
    probs: Tensor,
    level: float = 0.9,
    score: SetScore = "aps",
    *,
    may_be_empty: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sets of classes that contain the true one with probability ``level``.

    Args:
        probs_val: Predicted probabilities of the calibration examples, ``(n, classes)``.
        labels_val: Their classes, ``(n,)``.
        probs: Predicted probabilities, ``(m, classes)``.
        level: The probability that is promised.
        score: Which score.
        may_be_empty: Whether a set may be empty. If not, the most probable class is always in it, and a network that
            is right more often than ``level`` keeps more than it promises.
        generator: Draws the random numbers of APS; by default they are the same at every call.

    Returns:
        Whether each class is in the set, ``(m, classes)``.

    Example:
        >>> probs_val, labels_val = torch.tensor([[0.8, 0.2]] * 9), torch.tensor([0] * 7 + [1] * 2)
        >>> class_sets(probs_val, labels_val, torch.tensor([[0.9, 0.1], [0.7, 0.3]]), level=0.7, score="lac")
        tensor([[ True, False],
                [ True, False]])
    """
    if labels_val.shape != probs_val.shape[:1] or probs_val.shape[1:] != probs.shape[1:] or probs.dim() != 2:
        shapes = f"{tuple(probs_val.shape)}, {tuple(labels_val.shape)} and {tuple(probs.shape)}"
        raise ValueError(f"expected probs_val (n, classes), labels_val (n,) and probs (m, classes); got {shapes}")
    generator = torch.Generator(probs.device).manual_seed(0) if generator is None else generator
    u_val, u = (torch.rand(len(p), generator=generator, dtype=p.dtype, device=p.device) for p in (probs_val, probs))
    of_truth = class_scores(probs_val, score, u_val).gather(1, labels_val[:, None])[:, 0]
    sets = class_scores(probs, score, u) <= threshold(of_truth, level)
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


def shifted_intervals(
    low_val: Tensor, high_val: Tensor, y_val: Tensor, low: Tensor, high: Tensor, level: float = 0.9
) -> tuple[Tensor, Tensor]:
    """Intervals [low − q, high + q], q the threshold of max(low − y, y − high) (CQR, Romano et al. 2019).

    Where the intervals were too wide, q is negative.

    Example:
        >>> zeros, y = torch.zeros(9), torch.arange(1.0, 10.0)
        >>> shifted_intervals(zeros, zeros + 10, y, torch.tensor([0.0]), torch.tensor([10.0]), level=0.8)
        (tensor([1.]), tensor([9.]))
    """
    y_val = y_val.reshape(low_val.shape)
    q = threshold(torch.maximum(low_val - y_val, y_val - high_val), level)
    return low - q, high + q

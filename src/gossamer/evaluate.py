"""Draws -> numbers."""

from __future__ import annotations

import torch
from torch import nn

from gossamer import metrics
from gossamer.likelihoods import Gaussian
from gossamer.posterior import Prediction, predict
from gossamer.types import Posterior, Split, Task

__all__ = ["evaluate"]


def evaluate(
    posterior: nn.Module | Posterior, task: Task, n_draws: int = 5, *, split: str = "test", batch_size: int = 256
) -> dict[str, float]:
    """Quality of the predictions of ``n_draws`` networks on a split of the task.

    Args:
        posterior: What :func:`gossamer.fit` returned, or a converted network.
        task: The task.
        n_draws: How many networks to draw.
        split: ``"train"``, ``"val"`` (for choices) or ``"test"`` (for reports).
        batch_size: Examples in memory at a time.

    Returns:
        ``accuracy``, ``nll``, ``ece``, ``brier``, ``entropy``, ``mutual_information`` for classes; ``rmse``, ``nll``,
        ``coverage90``, ``width90``, ``std``, ``epistemic_std`` for numbers.

    Example:
        >>> from gossamer.data import digits
        >>> from gossamer.models import mlp
        >>> from gossamer import bayesianize
        >>> sorted(evaluate(bayesianize(mlp(64)), digits.load(), n_draws=2))
        ['accuracy', 'brier', 'ece', 'entropy', 'mutual_information', 'nll']
    """
    x, y = _split(task, split)
    x = task.transform(x)
    regression = isinstance(task.likelihood, Gaussian)
    prediction = predict(
        posterior, x, n_draws, likelihood=task.likelihood if regression else None, batch_size=batch_size
    )
    log_density = task.likelihood.log_predictive(prediction.outputs.double(), y)
    nll = -float(log_density.mean())
    return {"nll": nll} | (_numbers(prediction, y) if regression else _classes(prediction, y))


def _split(task: Task, name: str) -> Split:
    if name not in ("train", "val", "test"):
        raise ValueError(f"split must be 'train', 'val' or 'test'; got {name!r}")
    split: Split = getattr(task, name)
    return split


def _classes(prediction: Prediction, y: torch.Tensor) -> dict[str, float]:
    probs = prediction.probs
    return {
        "accuracy": metrics.accuracy(probs, y),
        "ece": metrics.top_label_ece(probs, y),
        "brier": metrics.brier(probs, y),
        "entropy": float(prediction.entropy.mean()),
        "mutual_information": float(prediction.mutual_information.mean()),
    }


def _numbers(prediction: Prediction, y: torch.Tensor) -> dict[str, float]:
    low, high = prediction.interval(0.9)
    return {
        "rmse": metrics.rmse(prediction.mean, y),
        "coverage90": metrics.coverage(low, high, y),
        "width90": float((high - low).mean()),
        "std": float(prediction.std.mean()),
        "epistemic_std": float(prediction.epistemic_std.mean()),
    }

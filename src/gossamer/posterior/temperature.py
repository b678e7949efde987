"""Temperature scaling: one divisor of all logits, fitted on held-out examples (Guo et al. 2017)."""

from __future__ import annotations

import math

from torch import Tensor

from gossamer.likelihoods import Categorical, Gaussian
from gossamer.posterior.calibrate import search
from gossamer.posterior.prediction import Prediction

DECADES = range(-1, 2)  # of the divisor: from 0.1 to 10
PRECISION = 1e-4  # of its logarithm


def fit_temperature(prediction: Prediction, y_val: Tensor) -> float:
    """The T with the lowest NLL of ``mean over draws of softmax(logits / T)`` on held-out examples.

    It changes how sure the predictions are and, of a single network, never which class is the most probable. It is not
    the temperature of a posterior: the draws stay as they are.

    Args:
        prediction: What the draws that will be used predict for the held-out inputs.
        y_val: Their classes, ``(n,)``.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[[5.0, 0.0]] * 10])  # 99.3 % sure, and right in 8 of 10
        >>> T = fit_temperature(Prediction(logits), torch.tensor([0] * 8 + [1] * 2))
        >>> round(T, 2), at_temperature(Prediction(logits), T).probs[0, 0].item()  # doctest: +ELLIPSIS
        (3.61, 0.8...)
    """
    if isinstance(prediction.likelihood, Gaussian):
        raise ValueError(
            "temperature scaling is for classes: scale intervals of numbers by gossamer.conformal.scaled_intervals"
        )
    exact = prediction.outputs.double()
    if not len(y_val) or exact.shape[1] != len(y_val):
        raise ValueError(f"there must be as many held-out targets as predictions; got {len(y_val)}, {exact.shape[1]}")
    likelihood = Categorical()

    def nll(log_temperature: float) -> float:
        return -float(likelihood.log_predictive(exact / math.exp(log_temperature), y_val).mean())

    tried = search(nll, DECADES, PRECISION)
    return math.exp(min(tried, key=lambda log_temperature: tried[log_temperature]))


def at_temperature(prediction: Prediction, temperature: float) -> Prediction:
    """The prediction with all logits divided by ``temperature``."""
    if not temperature > 0:
        raise ValueError(f"temperature must be positive; got {temperature}")
    return Prediction(prediction.outputs / temperature, prediction.likelihood, prediction.class_dim)

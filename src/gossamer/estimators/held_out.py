"""Draws against rows that were held out of training."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from gossamer.estimators.draws import Draws
from gossamer.estimators.table import Array, Rows, Scaling, targets_of
from gossamer.likelihoods import Gaussian
from gossamer.types import Likelihood

__all__ = ["held_out_loss", "mean_squared_error"]


def held_out_loss(held: Rows, inputs: Scaling, likelihood: Likelihood, draws: Draws) -> float:
    """Mean over weighted rows of the negative log density that the draws together give to their targets."""
    log_density = likelihood.log_predictive(_outputs(held, inputs, draws), targets_of(likelihood, held.y)).numpy()
    return -float(np.average(log_density, weights=held.weight))


def mean_squared_error(held: Rows, inputs: Scaling, likelihood: Likelihood, draws: Draws) -> Array | None:
    """Of each number, over weighted rows; classes have none."""
    if not isinstance(likelihood, Gaussian):
        return None
    mean = likelihood.split(_outputs(held, inputs, draws))[0].mean(0).numpy()
    error: Array = np.average((held.y - mean) ** 2, axis=0, weights=held.weight)
    return error


def _outputs(held: Rows, inputs: Scaling, draws: Draws) -> Tensor:
    return draws.outputs(inputs.only(draws.columns.numpy()).apply(held.x))

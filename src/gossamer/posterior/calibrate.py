"""One factor of all variances, fitted on held-out examples.

How wide a posterior is depends on its temperature: every variance is proportional to T. Which T predicts best is seen
on examples that trained nothing, and a factor found there needs no second training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gossamer.layers import GaussianWeight, replica
from gossamer.likelihoods import Categorical
from gossamer.posterior.draw import unwrapped
from gossamer.posterior.in_layers import InLayers
from gossamer.posterior.predict import Inputs, arguments, forward
from gossamer.types import Likelihood

DECADES = range(-3, 3)  # of the factor; at the lowest, draws are the network at its means in all but name
PRECISION = 0.05  # of the logarithm of the factor: around its minimum the NLL is flat
GOLDEN = (math.sqrt(5) - 1) / 2


class Calibration(NamedTuple):
    """What :func:`calibrate` found: the factor of the variances, and the NLL per target without and with it."""

    temperature: float
    nll_before: float
    nll_after: float


@torch.no_grad()
def calibrate(
    model: nn.Module | InLayers,
    x_val: Inputs,
    y_val: Tensor,
    *,
    n_draws: int = 20,
    likelihood: Likelihood | None = None,
    batch_size: int = 256,
    generator: torch.Generator | None = None,
) -> Calibration:
    """Multiply all variances of ``model`` by the factor, from 0.001 to 100, with the lowest NLL on held-out examples.

    The NLL is that of the mixture of ``n_draws`` networks, with the same ε for every factor. The factor is kept in
    ``weight.calibration`` and saved with the network. Draws and evaluations use it, training does not. A second call
    starts from the posterior as it was trained.

    Args:
        model: A converted network with Gaussian weights, after training; or the posterior that :func:`gossamer.fit`
            returned, if it refreshes the batch normalisation of its draws.
        x_val: Inputs that were not trained on, as for :func:`gossamer.predict`.
        y_val: Their targets.
        n_draws: How many networks; about as many as will predict, for fewer draws are best when less wide.
        likelihood: ``Categorical()``, which is the default, or ``Gaussian(…)``.
        batch_size: Examples on the network's device at a time.
        generator: Random generator of the draws.

    Returns:
        The factor, and the NLL without and with it. Both are of the examples that chose the factor: report the NLL of
        others.

    Example:
        >>> import gossamer
        >>> _ = torch.manual_seed(0)
        >>> model = gossamer.bayesianize(nn.Linear(10, 3), init_std=2.0)  # far too wide
        >>> x = torch.randn(200, 10)
        >>> y = gossamer.draw(model, at_mean=True)(x).argmax(1)
        >>> found = gossamer.calibrate(model, x, y)
        >>> found.temperature < 0.1, found.nll_after < found.nll_before, model.weight.calibration == found.temperature
        (True, True, True)
    """
    likelihood = Categorical() if likelihood is None else likelihood
    inputs = arguments(x_val)
    posterior = InLayers(model) if isinstance(model, nn.Module) else model
    if not isinstance(posterior, InLayers):
        raise TypeError(
            f"calibrate takes a network with Gaussian weights or its posterior, got {type(model).__name__}: "
            "calibrate the members of an ensemble one by one, before they are put together"
        )
    # Shares the tensors, not the calibration: whatever happens below, the model is as it was.
    twin = replica(unwrapped(posterior.model), share=True)
    weights = [module for module in twin.modules() if isinstance(module, GaussianWeight)]
    _check(weights, len(next(iter([*inputs[0], *inputs[1].values()]))), y_val, n_draws, batch_size)
    seed = int(torch.randint(2**62, (), generator=generator, device=None if generator is None else generator.device))
    there = weights[0].mean.device

    def nll(log_factor: float) -> float:
        for weight in weights:
            weight.calibration = math.exp(log_factor)
        draws = InLayers(twin, torch.Generator(there).manual_seed(seed), posterior.refresh).draws(n_draws)
        # One draw at a time: memory holds a number per draw and target, not all outputs.
        parts = [_log_density(forward(network, inputs, batch_size), y_val, likelihood) for network in draws]
        return float(math.log(n_draws) - torch.stack(parts).logsumexp(0).mean())

    tried = search(nll, DECADES, PRECISION)
    if not any(map(math.isfinite, tried.values())):
        raise ValueError("the NLL is not finite for any width: check that the network predicts finite numbers")
    best = min(tried, key=lambda log_factor: tried[log_factor])
    for module in unwrapped(posterior.model).modules():
        if isinstance(module, GaussianWeight):
            module.calibration = math.exp(best)
    return Calibration(math.exp(best), tried[0.0], tried[best])


def search(function: Callable[[float], float], decades: range, precision: float) -> dict[float, float]:
    """All that was tried for a minimum over a logarithm: the decades, then a golden section around the best of them."""
    tried: dict[float, float] = {}

    def value(at: float) -> float:
        if at not in tried:
            found = function(at)
            tried[at] = math.inf if math.isnan(found) else found
        return tried[at]

    step = math.log(10)
    middle = min((decade * step for decade in decades), key=value)
    low, high = max(decades[0] * step, middle - step), min(decades[-1] * step, middle + step)
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    while high - low > 2 * precision:
        if value(left) <= value(right):
            high, right = right, left
            left = high - GOLDEN * (high - low)
        else:
            low, left = left, right
            right = low + GOLDEN * (high - low)
    return tried


def _log_density(output: Tensor, y: Tensor, likelihood: Likelihood) -> Tensor:
    """Logarithm of p(y | network) for every target, in float64."""
    if isinstance(likelihood, Categorical):
        if output.dim() < 2 or output.shape[1] < 2:
            raise ValueError(
                f"outputs of shape {tuple(output.shape)} have no classes at dimension 1: for regression pass "
                "likelihood=Gaussian(…)"
            )
        if y.is_floating_point() or not 0 <= int(y.min()) <= int(y.max()) < output.shape[1]:
            raise ValueError(
                f"y_val must be class numbers from 0 to {output.shape[1] - 1}, as whole numbers; got {y.dtype} from "
                f"{y.min()} to {y.max()}. For regression pass likelihood=Gaussian(…)"
            )
    return likelihood.log_predictive(output.double().unsqueeze(0), y)


def _check(weights: list[GaussianWeight], n_examples: int, y_val: Tensor, n_draws: int, batch_size: int) -> None:
    if not weights:
        raise ValueError(
            "this model has no Gaussian weights, so there is no width to calibrate: convert it with "
            "gossamer.bayesianize(model) and train it first"
        )
    if n_examples != len(y_val):
        raise ValueError(f"x_val and y_val must have as many examples; got {n_examples} and {len(y_val)}")
    if not n_examples:
        raise ValueError("there are no held-out examples: load the task with n_val above 0, or split off a part")
    if n_draws < 1 or batch_size < 1:
        raise ValueError(f"n_draws and batch_size count from 1; got {n_draws} and {batch_size}")

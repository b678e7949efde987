"""Gossamer: Bayesian neural networks that are sparse from the first step to the last."""

from gossamer import likelihoods, models, priors, schedules, sparsity
from gossamer.convert import bayesianize, sparsify
from gossamer.layers import active_parameters, density, kl, param_groups, summary
from gossamer.likelihoods import Categorical, Gaussian
from gossamer.posterior import Prediction, draw, predict
from gossamer.sparsity import Subspace

__version__ = "0.1.0"

__all__ = [
    "Categorical",
    "Gaussian",
    "Prediction",
    "Subspace",
    "active_parameters",
    "bayesianize",
    "density",
    "draw",
    "kl",
    "likelihoods",
    "models",
    "param_groups",
    "predict",
    "priors",
    "schedules",
    "sparsify",
    "sparsity",
    "summary",
]

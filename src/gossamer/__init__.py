"""Gossamer: Bayesian neural networks that are sparse from the first step to the last."""

from typing import Any

from gossamer import conformal, data, likelihoods, methods, metrics, models, optim, priors, schedules, sparsity
from gossamer.compaction import compact
from gossamer.convert import bayesianize, sparsify
from gossamer.layers import active_parameters, density, kl, param_groups, summary
from gossamer.likelihoods import Categorical, Gaussian
from gossamer.optim import Curvature
from gossamer.posterior import Prediction, averaged, calibrate, draw, predict
from gossamer.sparsity import Subspace

__version__ = "0.2.0"

__all__ = [
    "Categorical",
    "Curvature",
    "Gaussian",
    "Prediction",
    "SparseBayesClassifier",
    "SparseBayesRegressor",
    "Subspace",
    "active_parameters",
    "averaged",
    "bayesianize",
    "calibrate",
    "compact",
    "conformal",
    "data",
    "density",
    "draw",
    "fit",
    "kl",
    "likelihoods",
    "methods",
    "metrics",
    "models",
    "optim",
    "param_groups",
    "predict",
    "priors",
    "schedules",
    "sparsify",
    "sparsity",
    "summary",
]


def __getattr__(name: str) -> Any:
    # The training loop needs Lightning Fabric, and the estimators scikit-learn. Your own loop needs neither.
    if name == "fit":
        from gossamer.train import fit

        return fit
    if name in ("SparseBayesClassifier", "SparseBayesRegressor"):
        from gossamer import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'gossamer' has no attribute {name!r}")

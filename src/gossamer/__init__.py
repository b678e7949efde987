"""Gossamer: Bayesian neural networks that are sparse from the first step to the last."""

import importlib
from typing import Any

from gossamer import conformal, data, likelihoods, methods, metrics, models, optim, priors, schedules, sparsity
from gossamer.compaction import compact
from gossamer.convert import bayesianize, sparsify
from gossamer.layers import active_parameters, density, kl, param_groups, summary
from gossamer.likelihoods import Categorical, Gaussian
from gossamer.optim import Curvature
from gossamer.posterior import Prediction, averaged, calibrate, draw, predict
from gossamer.sharding import shard
from gossamer.sparsity import Subspace

__version__ = "0.3.0.dev0"

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
    "export",
    "fit",
    "kl",
    "likelihoods",
    "load",
    "load_run",
    "methods",
    "metrics",
    "models",
    "optim",
    "param_groups",
    "predict",
    "priors",
    "save",
    "schedules",
    "shard",
    "sparsify",
    "sparsity",
    "summary",
]


# The estimators need scikit-learn, and reading files takes time to import. Your own loop needs neither, so these are
# imported on first use, as are the rooms that it does not need.
_HOMES = {
    "SparseBayesClassifier": "estimators",
    "SparseBayesRegressor": "estimators",
    "export": "exporting",
    "fit": "train",
    "load": "saving",
    "load_run": "runs",
    "save": "saving",
}
_ROOMS = (
    "checkpoint",
    "container",
    "devices",
    "estimators",
    "evaluate",
    "kernels",
    "layers",
    "posterior",
    "report",
    "runs",
    "train",
    "types",
)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"gossamer.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'gossamer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gossamer.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})

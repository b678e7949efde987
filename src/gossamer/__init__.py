"""Gossamer: Bayesian neural networks that are sparse from the first step to the last."""

import importlib
from typing import Any

from gossamer import conformal, data, likelihoods, methods, metrics, models, optim, priors, schedules, sparsity, types
from gossamer.compaction import compact
from gossamer.convert import bayesianize, sparsify
from gossamer.layers import active_parameters, density, kl, param_groups, summary
from gossamer.likelihoods import Categorical, Gaussian
from gossamer.optim import Curvature
from gossamer.posterior import Prediction, averaged, calibrate, draw, predict
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
    "deploy",
    "distributed",
    "draw",
    "estimators",
    "evaluate",
    "export",
    "files",
    "fit",
    "kernels",
    "kl",
    "lab",
    "layers",
    "likelihoods",
    "load",
    "load_run",
    "methods",
    "metrics",
    "models",
    "optim",
    "param_groups",
    "posterior",
    "predict",
    "priors",
    "save",
    "schedules",
    "shard",
    "sparsify",
    "sparsity",
    "summary",
    "train",
    "types",
]


# The estimators need scikit-learn, and reading files takes time to import. Your own loop needs neither, so these are
# imported on first use, as are the rooms that it does not need.
_HOMES = {
    "SparseBayesClassifier": "estimators",
    "SparseBayesRegressor": "estimators",
    "export": "deploy.programs",
    "fit": "train",
    "load": "deploy.files",
    "load_run": "lab",
    "save": "deploy.files",
    "shard": "train.sharding",
}
_ROOMS = ("deploy", "distributed", "estimators", "evaluate", "files", "kernels", "lab", "layers", "posterior", "train")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"gossamer.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'gossamer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gossamer.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

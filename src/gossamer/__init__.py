"""Gossamer: Bayesian neural networks that are sparse from the first step to the last.

Everything is imported on first use, so that the command can print a list or a version without waiting for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer import (
        conformal,
        data,
        likelihoods,
        methods,
        metrics,
        models,
        optim,
        priors,
        schedules,
        sparsity,
        types,
    )
    from gossamer.adaptation import adapt, patch, patched
    from gossamer.compaction import compact
    from gossamer.deploy.files import load, save
    from gossamer.deploy.programs import export
    from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
    from gossamer.lab import load_run
    from gossamer.layers import active_parameters, density, kl, param_groups
    from gossamer.layers.summary import summary  # where a module has the name, too, mypy wants it from there
    from gossamer.likelihoods import Categorical, Gaussian
    from gossamer.optim import Curvature
    from gossamer.posterior import Prediction, averaged, calibrate
    from gossamer.posterior.draw import draw
    from gossamer.posterior.frozen import frozen
    from gossamer.posterior.predict import predict
    from gossamer.sparsity import Subspace
    from gossamer.sparsity.convert import bayesianize, sparsify
    from gossamer.train import fit

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
    "adapt",
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
    "frozen",
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
    "patch",
    "patched",
    "posterior",
    "predict",
    "priors",
    "save",
    "schedules",
    "sparsify",
    "sparsity",
    "summary",
    "train",
    "types",
]

_HOMES = {
    "adaptation": ("adapt", "patch", "patched"),
    "compaction": ("compact",),
    "deploy.programs": ("export",),
    "deploy.files": ("load", "save"),
    "estimators": ("SparseBayesClassifier", "SparseBayesRegressor"),
    "lab": ("load_run",),
    "layers": ("active_parameters", "density", "kl", "param_groups", "summary"),
    "likelihoods": ("Categorical", "Gaussian"),
    "optim": ("Curvature",),
    "posterior": ("Prediction", "averaged", "calibrate", "draw", "frozen", "predict"),
    "sparsity": ("Subspace",),
    "sparsity.convert": ("bayesianize", "sparsify"),
    "train": ("fit",),
}


def __getattr__(name: str) -> Any:
    if name not in __all__ and name not in _HOMES:
        raise AttributeError(f"module 'gossamer' has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), None)
    module = importlib.import_module(f"gossamer.{home or name}")
    globals()[name] = module if home is None else getattr(module, name)  # the next access finds it there
    return globals()[name]


def __dir__() -> list[str]:
    return __all__

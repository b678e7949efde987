"""Gossamer: Bayesian neural networks that are sparse from the first step to the last.

Everything is imported on first use, so that the command can print a list or a version without waiting for torch. At the
top stands what a loop of one's own needs, the rest in rooms that need no import, such as ``gossamer.likelihoods``.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer import data, lab, methods, models, posterior
    from gossamer.adaptation import adapt
    from gossamer.compaction import compact
    from gossamer.deploy.files import load, save
    from gossamer.deploy.programs import export
    from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
    from gossamer.layers import kl, param_groups
    from gossamer.layers.summary import summary  # where a module has the name, too, mypy wants it from there
    from gossamer.optim import Curvature
    from gossamer.posterior import averaged, calibrate
    from gossamer.posterior.draw import draw
    from gossamer.posterior.predict import predict
    from gossamer.sparsity import Subspace
    from gossamer.sparsity.convert import bayesianize, sparsify
    from gossamer.train import fit

__version__ = "0.3.0.dev0"

__all__ = [
    "Curvature",
    "SparseBayesClassifier",
    "SparseBayesRegressor",
    "Subspace",
    "adapt",
    "averaged",
    "bayesianize",
    "calibrate",
    "compact",
    "data",
    "draw",
    "export",
    "fit",
    "kl",
    "lab",
    "load",
    "methods",
    "models",
    "param_groups",
    "posterior",
    "predict",
    "save",
    "sparsify",
    "summary",
]

# Names by their rooms; those that are not in ``__all__`` stood at the top of earlier versions.
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
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None and (name.startswith("_") or importlib.util.find_spec(f"gossamer.{name}") is None):
        raise AttributeError(f"module 'gossamer' has no attribute {name!r}")
    module = importlib.import_module(f"gossamer.{home or name}")
    globals()[name] = module if home is None else getattr(module, name)  # the next access finds it there
    return globals()[name]


def __dir__() -> list[str]:
    return __all__

"""Runs: train, continue, evaluate, compare. What the command line does, as functions.

Each is imported when it is asked for: settings and tables can be had without waiting for the training loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.runs.comparing import compare, read_recipe
    from gossamer.runs.reading import evaluate_run, predict_run
    from gossamer.runs.settings import Settings
    from gossamer.runs.showing import show
    from gossamer.runs.stopping import Interrupted
    from gossamer.runs.table import Comparison
    from gossamer.runs.training import resume, train
    from gossamer.runs.trials import Trial, Trials

__all__ = [
    "Comparison",
    "Interrupted",
    "Settings",
    "Trial",
    "Trials",
    "compare",
    "evaluate_run",
    "predict_run",
    "read_recipe",
    "resume",
    "show",
    "train",
]

_HOMES = {
    "Comparison": "table",
    "Interrupted": "stopping",
    "Settings": "settings",
    "Trial": "trials",
    "Trials": "trials",
    "compare": "comparing",
    "evaluate_run": "reading",
    "predict_run": "reading",
    "read_recipe": "comparing",
    "resume": "training",
    "show": "showing",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

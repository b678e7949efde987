"""The laboratory: run folders, comparisons, reports and the command. What the command does, as functions.

Each is imported on first use, so that settings and tables do not wait for the import of the training loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gossamer._text.names import trusting

if TYPE_CHECKING:
    from gossamer.lab.runs.comparison import Comparison, compare, read_recipe
    from gossamer.lab.runs.evaluation import evaluate_run
    from gossamer.lab.runs.folders import show
    from gossamer.lab.runs.job import resume, train
    from gossamer.lab.runs.progress import Interrupted
    from gossamer.lab.runs.reading import TrainedRun, load_run, predict_run
    from gossamer.lab.runs.settings import Settings

__all__ = [
    "Comparison",
    "Interrupted",
    "Settings",
    "TrainedRun",
    "compare",
    "evaluate_run",
    "load_run",
    "predict_run",
    "read_recipe",
    "resume",
    "show",
    "train",
    "trusting",
]

_HOMES = {
    "comparison": ("Comparison", "compare", "read_recipe"),
    "progress": ("Interrupted",),
    "job": ("resume", "train"),
    "evaluation": ("evaluate_run",),
    "reading": ("TrainedRun", "load_run", "predict_run"),
    "settings": ("Settings",),
    "folders": ("show",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"gossamer.lab.runs.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

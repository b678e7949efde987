"""Runs: train, continue, evaluate, compare. What the command line does, as functions."""

from gossamer.experiments.comparing import Comparison, compare
from gossamer.experiments.reading import evaluate_run, predict_run, show
from gossamer.experiments.settings import Settings
from gossamer.experiments.training import Interrupted, resume, train

__all__ = [
    "Comparison",
    "Interrupted",
    "Settings",
    "compare",
    "evaluate_run",
    "predict_run",
    "resume",
    "show",
    "train",
]

"""Numbers about predictions: pure functions of tensors."""

from gossamer.metrics.classification import accuracy, brier, nll, top_label_ece
from gossamer.metrics.regression import coverage, rmse

__all__ = ["accuracy", "brier", "coverage", "nll", "rmse", "top_label_ece"]

"""What is measured: its name, how it is written, which way is better, and what it means in a plain sentence."""

from __future__ import annotations

from typing import NamedTuple

from gossamer.report.numbers import Format, count, duration, integer, macs, number, percent, size, times

__all__ = ["COMPARED", "HEADLINE", "QUANTITIES", "SO_FAR", "WINNERS", "Quantity"]


class Quantity(NamedTuple):
    """One measurement. ``best`` is ``"high"``, ``"low"``, a target such as ``0.9``, or ``None``: neither is better."""

    label: str
    form: Format
    best: str | float | None
    meaning: str


QUANTITIES = {
    "accuracy": Quantity("Accuracy", percent, "high", "Share of the test examples that it gets right."),
    "nll": Quantity(
        "Log loss", number, "low", "How much the true answers surprise it, in nats. Being sure and wrong costs most."
    ),
    "ece": Quantity(
        "Calibration error",
        percent,
        "low",
        "Average gap between how sure it says it is and how often it is right; zero is perfect (ECE).",
    ),
    "classwise_ece": Quantity(
        "Calibration error by class",
        percent,
        "low",
        "The same gap, averaged over all classes, not the chosen one only.",
    ),
    "marginal_l2_debiased": Quantity(
        "Calibration error, debiased",
        percent,
        "low",
        "Root mean square gap over all classes, less what chance alone adds on a finite test set.",
    ),
    "brier": Quantity(
        "Brier score", number, "low", "Squared distance between its probabilities and the truth: 0 is perfect, 2 worst."
    ),
    "aurc": Quantity(
        "Risk when selective",
        percent,
        "low",
        "Average error if it may decline the examples it doubts most; low when its doubts are well placed (AURC).",
    ),
    "entropy": Quantity("Uncertainty", number, None, "Average doubt in a prediction, in nats; 0 is no doubt at all."),
    "expected_entropy": Quantity(
        "Uncertainty in the data", number, None, "The part of the doubt on which all drawn networks agree."
    ),
    "mutual_information": Quantity(
        "Uncertainty in the model", number, None, "The part of the doubt that comes from drawn networks disagreeing."
    ),
    "rmse": Quantity("Typical error", number, "low", "Root mean square distance between prediction and truth (RMSE)."),
    "crps": Quantity(
        "CRPS", number, "low", "Distance between the predicted distribution and what came; lower is better."
    ),
    "coverage90": Quantity(
        "Coverage", percent, 0.9, "Share of the truths inside its 90\u202f% intervals; 90\u202f% is ideal."
    ),
    "width90": Quantity(
        "Interval width", number, "low", "Average width of its 90\u202f% intervals, in units of the target."
    ),
    "std": Quantity("Predicted spread", number, None, "Average standard deviation that it predicts, noise and doubt."),
    "epistemic_std": Quantity(
        "Spread from doubt", number, None, "The part of that spread that comes from drawn networks disagreeing."
    ),
    "active_parameters": Quantity(
        "Active weights", count, "low", "Weights that are not exactly zero: all that is trained, stored and multiplied."
    ),
    "total_parameters": Quantity("All weights", count, None, "Weights of the same network, were it dense."),
    "density": Quantity("Density", percent, "low", "Share of the weights that are active."),
    "parameter_bytes": Quantity("Parameters in memory", size, "low", "Memory for means, deviations and positions."),
    "checkpoint_bytes": Quantity("Size on disk", size, "low", "The checkpoint: all that going on or predicting needs."),
    "inference_macs": Quantity(
        "Cost of a prediction", macs, "low", "Multiply-adds for one example through one drawn network."
    ),
    "training_macs_per_example": Quantity(
        "Training cost per example", macs, "low", "Multiply-adds for one example in one training step, on average."
    ),
    "training_macs": Quantity("Training cost", macs, "low", "Multiply-adds of the whole training, zeros not counted."),
    "seconds": Quantity("Time", duration, "low", "Wall-clock time of the training."),
    "native_speedup": Quantity(
        "Gain by sparse kernels", times, None, "How many times faster a training step is than with dense products."
    ),
    "peak_memory_bytes": Quantity("Peak memory", size, "low", "Most memory in use at any moment of the training."),
    "step": Quantity("Steps", integer, None, "Optimizer steps so far."),
    "loss": Quantity("Training loss", number, "low", "What training lowers, at the last recorded step."),
    "val_accuracy": Quantity("Validation accuracy", percent, "high", "Share of the held-out examples it gets right."),
    "val_rmse": Quantity("Validation error", number, "low", "Typical error on held-out examples (RMSE)."),
    "val_nll": Quantity("Validation log loss", number, "low", "How much held-out answers surprise it, in nats."),
    "examples_per_second": Quantity("Speed", integer, "high", "Training examples a second."),
}

HEADLINE = (
    ("accuracy", "rmse", "nll", "ece", "crps", "coverage90", "aurc"),
    ("active_parameters", "checkpoint_bytes", "inference_macs", "training_macs"),
)
"""What stands large at the top: first how good, then how dear. A run has the measurements of its task only."""

SO_FAR = ("step", "val_accuracy", "val_rmse", "val_nll", "loss", "density", "seconds")
"""What stands there while a run is unfinished, from its last lines."""

COMPARED = (
    "accuracy",
    "rmse",
    "nll",
    "ece",
    "crps",
    "coverage90",
    "active_parameters",
    "checkpoint_bytes",
    "inference_macs",
    "training_macs",
    "native_speedup",
    "seconds",
)
"""Columns of a comparison, those that some run has."""

WINNERS = {
    "accuracy": "Most accurate",
    "rmse": "Smallest error",
    "nll": "Lowest log loss",
    "ece": "Best calibrated",
    "coverage90": "Best coverage",
    "training_macs": "Cheapest to train",
}
"""What stands at the top of a comparison: who is best at what."""

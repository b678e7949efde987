"""Rows of the registry for the quality of predictions; a new metric is a function and a row here."""

from __future__ import annotations

import math

from torch import Tensor

from gossamer.formats import number, percent
from gossamer.metrics.classification import accuracy, brier, classwise_ece, marginal_l2_debiased, top_label_ece
from gossamer.metrics.curves import selective_accuracy
from gossamer.metrics.metric import Kind, Metric, Place
from gossamer.metrics.regression import coverage, gaussian_mixture_crps, mean_width, rmse
from gossamer.posterior import Prediction
from gossamer.types import Task

__all__ = ["QUALITY"]

CLASSES: tuple[Kind, ...] = ("classification",)
NUMBERS: tuple[Kind, ...] = ("regression",)
EVERYWHERE: tuple[Place, ...] = ("terminal", "comparison", "headline")


def _nll(prediction: Prediction, task: Task, y: Tensor) -> float:
    """In the original units of the targets."""
    return math.log(task.target_std) - float(task.likelihood.log_predictive(prediction.outputs.double(), y).mean())


def _crps(prediction: Prediction, task: Task, y: Tensor) -> float:
    means, stds = task.likelihood.split(prediction.outputs)  # type: ignore[attr-defined]
    return task.target_std * gaussian_mixture_crps(means, stds, y)


QUALITY = (
    Metric(
        "accuracy",
        "Accuracy",
        percent,
        "higher",
        "Share of the test examples that it gets right.",
        lambda p, task, y: accuracy(p.probs, y),
        CLASSES,
        EVERYWHERE,
        winner="Most accurate",
    ),
    Metric(
        "rmse",
        "Typical error",
        number,
        "lower",
        "Root mean square distance between prediction and truth (RMSE).",
        lambda p, task, y: task.target_std * rmse(p.mean, y),
        NUMBERS,
        EVERYWHERE,
        winner="Smallest error",
        heading="RMSE",
    ),
    Metric(
        "nll",
        "Log loss",
        number,
        "lower",
        "How much the true answers surprise it, in nats. Being sure and wrong costs most.",
        _nll,
        places=EVERYWHERE,
        winner="Lowest log loss",
        heading="NLL",
    ),
    Metric(
        "ece",
        "Calibration error",
        percent,
        "lower",
        "Average gap between how sure it says it is and how often it is right; zero is perfect (ECE).",
        lambda p, task, y: top_label_ece(p.probs, y),
        CLASSES,
        EVERYWHERE,
        winner="Best calibrated",
        heading="ECE",
    ),
    Metric(
        "classwise_ece",
        "Calibration error by class",
        percent,
        "lower",
        "The same gap, averaged over all classes, not the chosen one only.",
        lambda p, task, y: classwise_ece(p.probs, y),
        CLASSES,
        (),
        heading="class-wise ECE",
    ),
    Metric(
        "marginal_l2_debiased",
        "Calibration error, debiased",
        percent,
        "lower",
        "Root mean square gap over all classes, less what chance alone adds on a finite test set.",
        lambda p, task, y: marginal_l2_debiased(p.probs, y),
        CLASSES,
        (),
        heading="marginal L2",
    ),
    Metric(
        "brier",
        "Brier score",
        number,
        "lower",
        "Squared distance between its probabilities and the truth: 0 is perfect, 2 worst.",
        lambda p, task, y: brier(p.probs, y),
        CLASSES,
        ("terminal",),
        heading="Brier",
    ),
    Metric(
        "aurc",
        "Risk when selective",
        percent,
        "lower",
        "Average error if it may decline the examples it doubts most; low when its doubts are well placed (AURC).",
        lambda p, task, y: selective_accuracy(p.probs, y).aurc,
        CLASSES,
        ("headline",),
        heading="AURC",
    ),
    Metric(
        "entropy",
        "Uncertainty",
        number,
        None,
        "Average doubt in a prediction, in nats; 0 is no doubt at all.",
        lambda p, task, y: float(p.entropy.mean()),
        CLASSES,
        (),
    ),
    Metric(
        "expected_entropy",
        "Uncertainty in the data",
        number,
        None,
        "The part of the doubt on which all drawn networks agree.",
        lambda p, task, y: float(p.expected_entropy.mean()),
        CLASSES,
        (),
    ),
    Metric(
        "mutual_information",
        "Uncertainty in the model",
        number,
        None,
        "The part of the doubt that comes from drawn networks disagreeing.",
        lambda p, task, y: float(p.mutual_information.mean()),
        CLASSES,
        ("terminal",),
    ),
    Metric(
        "crps",
        "CRPS",
        number,
        "lower",
        "Distance between the predicted distribution and what came; lower is better.",
        _crps,
        NUMBERS,
        EVERYWHERE,
        heading="CRPS",
    ),
    Metric(
        "coverage90",
        "Coverage",
        percent,
        0.9,
        "Share of the truths inside its 90\u202f% intervals; 90\u202f% is ideal.",
        lambda p, task, y: coverage(*p.interval(0.9), y),
        NUMBERS,
        EVERYWHERE,
        winner="Best coverage",
        heading="coverage",
    ),
    Metric(
        "width90",
        "Interval width",
        number,
        "lower",
        "Average width of its 90\u202f% intervals, in units of the target.",
        lambda p, task, y: task.target_std * mean_width(*p.interval(0.9)),
        NUMBERS,
        (),
        heading="width",
    ),
    Metric(
        "std",
        "Predicted spread",
        number,
        None,
        "Average standard deviation that it predicts, noise and doubt.",
        lambda p, task, y: task.target_std * float(p.std.mean()),
        NUMBERS,
        (),
    ),
    Metric(
        "epistemic_std",
        "Spread from doubt",
        number,
        None,
        "The part of that spread that comes from drawn networks disagreeing.",
        lambda p, task, y: task.target_std * float(p.epistemic_std.mean()),
        NUMBERS,
        (),
    ),
)

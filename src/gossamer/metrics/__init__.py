"""Metrics as pure functions of tensors, the cost of a network, and the table of all of them, ``METRICS``."""

from gossamer.likelihoods import gaussian_mixture_crps
from gossamer.metrics.cost import LayerCost, dense_macs, inference_macs, training_macs
from gossamer.metrics.detection import Detection, aupr, auroc, detect, fpr_at_recall, scores_of
from gossamer.metrics.measures import (
    ReliabilityCurve,
    SelectiveCurve,
    accuracy,
    brier,
    classwise_ece,
    coverage,
    ece,
    ece_floor,
    marginal_l2_debiased,
    mean_width,
    nll,
    reliability_curve,
    rmse,
    selective_accuracy,
)
from gossamer.metrics.registry import METRICS, Metric, add, shown

__all__ = [
    "METRICS",
    "Detection",
    "LayerCost",
    "Metric",
    "ReliabilityCurve",
    "SelectiveCurve",
    "accuracy",
    "add",
    "aupr",
    "auroc",
    "brier",
    "classwise_ece",
    "coverage",
    "dense_macs",
    "detect",
    "ece",
    "ece_floor",
    "fpr_at_recall",
    "gaussian_mixture_crps",
    "inference_macs",
    "marginal_l2_debiased",
    "mean_width",
    "nll",
    "reliability_curve",
    "rmse",
    "scores_of",
    "selective_accuracy",
    "shown",
    "training_macs",
]

"""Rows that several results share: trainings on CIFAR as the papers describe them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gossamer._text.formats import number
from gossamer.metrics import METRICS
from reproductions.frame import Row, Told

__all__ = ["CRITERIA", "ECE", "NAMES", "percent", "ssvi_row"]

ECE = replace(METRICS["marginal_l2_debiased"], format=number)  # what the SSVI paper calls so, as it prints it

SSVI = {"model": "resnet18", "epochs": 200, "batch_size": 128, "n_draws": 5}  # appendix C
OUR_DRAWS = {"n_draws": 20}
CRITERIA = {  # removal, by the paper's names
    "|μ|": "magnitude",
    "SNR(θ)": "snr",
    "E|θ|": "expected_abs",
    "SNR(|θ|)": "snr_abs",
    "E exp|θ|": "expected_exp",
}
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def ssvi_row(
    label: str,
    data: str,
    method: str,
    options: Told,
    printed: Mapping[str, str] | None = None,
    *,
    line: str = "",
    at: float = math.nan,
    in_small: bool = True,
    **settings: Any,
) -> Row:
    """A ResNet-18 on CIFAR as in the SSVI paper; ours, without ``mode="reference"``, predicts by 20 draws."""
    drawn = {} if options.get("mode") == "reference" or method not in ("ssvi", "vi") else OUR_DRAWS
    told = {"method": method, "data": data, **SSVI, **drawn, **settings, "options": dict(options)}
    return Row(f"{NAMES[data]}: {label}", told, printed or {}, {} if in_small else None, line, at)


def percent(density: float) -> str:
    """The sparsity of a density.

    >>> percent(0.05)
    '95 %'
    """
    return f"{100 * (1 - density):.4g} %"

"""Rows and claims that several results share: trainings on images as the papers describe them."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gossamer._text.formats import number
from gossamer.metrics import METRICS
from reproductions.frame import Claim, Row, Told

__all__ = ["CRITERIA", "ECE", "KE_FAN_COLUMNS", "NAMES", "ke_fan_claims", "ke_fan_rows", "percent", "ssvi_row"]

ECE = replace(METRICS["marginal_l2_debiased"], format=number)  # what the SSVI paper calls so, as it prints it

SSVI = {"model": "resnet18", "epochs": 200, "batch_size": 128, "n_draws": 5, "n_val": 0}  # appendix C
OUR_DRAWS = {"n_draws": 20}
# The released rate of 0.01 is for 78,200 steps; a small run has 316, and takes the rate of our defaults. The released
# weight of the KL is 0.01 over the number of images: with a tenth of them a tenth of it keeps the two in proportion.
REFERENCE_SMALL = {"options": {"lr": 0.1, "kl_weight": 0.001}}
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
    as_published = options.get("mode") == "reference"
    drawn = {} if as_published or method not in ("ssvi", "vi") else OUR_DRAWS
    told = {"method": method, "data": data, **SSVI, **drawn, **settings, "options": dict(options)}
    small = REFERENCE_SMALL if as_published else {}
    return Row(f"{NAMES[data]}: {label}", told, printed or {}, small if in_small else None, line, at)


KE_FAN_COLUMNS = ("accuracy", "nll", "ece", "density", "training_macs")
KE_FAN = {"epochs": 200, "n_draws": 12}
KE_FAN_SMALL = {"n_draws": 12}
DENSE: dict[str, tuple[str, int, Told]] = {  # name -> method, batch size and options
    "Baseline": ("sgd", 128, {}),
    "Rank-1 BNN": ("rank1", 128, {}),
    "cSGLD": ("csgld", 64, {}),
    "CV-Adam": ("cv_sghmc", 64, {"mode": "reference"}),  # the released script: Algorithm 2, and 12 networks of 4 cycles
}
SPARSE: dict[str, tuple[str, int, Told]] = {
    "SM": ("sm", 128, {}),
    "DSR": ("dsr", 128, {}),
    "DFP": ("em_mcmc", 64, {}),
    "DPF": ("em_mcmc", 64, {"feedback": True}),
}


def ke_fan_rows(
    name: str, model: str, data: str, dense: Mapping[str, str], sparse: Mapping[float, str], in_small: Container[float]
) -> list[Row]:
    """A network of the tables of Ke and Fan: what they printed of dense methods, and by density of four sparse ones.

    The settings of their pruned networks are not published; those of ``em_mcmc`` are ours.
    """

    def row(label: str, way: tuple[str, int, Told], density: float, printed: str) -> Row:
        method, batch_size, options = way
        told: dict[str, Any] = {"method": method, "data": data, "model": model, **KE_FAN, "batch_size": batch_size}
        told |= {"n_val": 0} if data in NAMES else {}
        told["options"] = dict(options) if density == 1 else {**options, "density": density}
        return Row(
            f"{name}: {label}",
            told,
            {"accuracy": printed} if printed else {},
            KE_FAN_SMALL if density in in_small else None,
        )

    rows = [row(label, DENSE[label], 1.0, printed) for label, printed in dense.items()]
    for density, figures in sparse.items():
        for (label, way), printed in zip(SPARSE.items(), figures.split(), strict=True):
            rows.append(row(f"{label} {percent(density)}", way, density, f"{printed} %"))
    return rows


def ke_fan_claims(name: str, densities: Sequence[float], level: Sequence[str] = ()) -> list[Claim]:
    """DFP beats SM and DSR; it is at most half a point below DPF, and CV-Adam below the dense methods ``level``."""
    claims = [Claim.better(f"{name}: CV-Adam", f"{name}: {other}", "accuracy", -0.005) for other in level]
    for sparsity in map(percent, densities):
        ours, *others = (f"{name}: {label} {sparsity}" for label in ("DFP", "SM", "DSR", "DPF"))
        claims += [Claim.better(ours, other, "accuracy", 0 if "DPF" not in other else -0.005) for other in others]
    return claims


def percent(density: float) -> str:
    """The sparsity of a density.

    >>> percent(0.05)
    '95 %'
    """
    return f"{100 * (1 - density):.4g} %"

"""Sparse Bayesian networks compared (Li et al., ICLR 2024, Table 2)."""

from __future__ import annotations

from reproductions.frame import Claim, Result, Row
from reproductions.rows import ECE, NAMES, ssvi_row

HEADS = ("accuracy", "nll", "marginal_l2_debiased", "density", "active_parameters", "training_macs")
PRINTED = {  # operations are floating-point ones; the paper prints sparsities
    "cifar10": {
        "VD": ("90.6 %", "0.298", "0.009", "23.2 %", "2.60M", "67.1e15"),
        "SBP": ("90.1 %", "0.301", "0.009", "18.9 %", "2.12M", "67.1e15"),
        "AEB": ("91.84 %", "0.308", "0.023", "10.0 %", "1.2M", "383.4e15"),
        "mBNN": ("93.14 %", "0.227", "0.008", "3.6 %", "0.41M", "22.8e15"),
        "SSVI": ("93.74 %", "0.218", "0.006", "5.0 %", "0.56M", "5.7e15"),
    },
    "cifar100": {
        "VD": ("60.0 %", "1.977", "0.0060", "41.7 %", "4.66M", "67.1e15"),
        "SBP": ("62.3 %", "1.834", "0.0053", "38.8 %", "4.34M", "67.1e15"),
        "AEB": ("70.26 %", "1.103", "0.0110", "10 %", "1.2M", "383.4e15"),
        "mBNN": ("73.42 %", "1.078", "0.0024", "12.2 %", "1.37M", "25.9e15"),
        "SSVI": ("75.81 %", "0.983", "0.0017", "10 %", "1.12M", "11.4e15"),
    },
}
DENSITY = {"cifar10": 0.05, "cifar100": 0.1}  # of SSVI; the others find theirs
OTHERS = {"VD": "vd", "SBP": "sbp", "AEB": "aeb", "mBNN": "mbnn"}
CLAIMED = ("accuracy", "nll", "marginal_l2_debiased", "training_macs")


def rows(data: str) -> list[Row]:
    """The paper's five methods, and SSVI with our defaults."""
    printed = {name: dict(zip(HEADS, figures, strict=True)) for name, figures in PRINTED[data].items()}
    sparse = {"density": DENSITY[data]}
    return [
        *(ssvi_row(name, data, method, {}, printed[name]) for name, method in OTHERS.items()),
        ssvi_row("SSVI", data, "ssvi", sparse | {"mode": "reference"}, printed["SSVI"]),
        ssvi_row("SSVI, our defaults", data, "ssvi", sparse),
    ]


def beats(data: str) -> list[Claim]:
    """SSVI is better than each of the others."""
    ours, *others = (f"{NAMES[data]}: {name}" for name in ("SSVI", *OTHERS))
    return [Claim.better(ours, other, metric) for other in others for metric in CLAIMED]


RESULT = Result(
    title="SSVI, Table 2: sparse Bayesian networks",
    claim="SSVI has the best accuracy, loss and ECE of all sparse Bayesian networks, for the fewest operations.",
    rows=[row for data in PRINTED for row in rows(data)],
    columns=("accuracy", "nll", ECE, "density", "active_parameters", "training_macs", "ece"),
    claims=[claim for data in PRINTED for claim in beats(data)],
)

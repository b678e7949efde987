"""Dense VI against SSVI at 90 and 95 % sparsity (Li et al., ICLR 2024, Table 1)."""

from __future__ import annotations

from reproductions.frame import Claim, Result, Row
from reproductions.rows import ECE, NAMES, percent, ssvi_row

REFERENCE = {"mode": "reference"}
PRINTED = {  # accuracy and what the paper calls ECE, by density
    "cifar10": {1.0: ("95.13 %", "0.004"), 0.1: ("94.58 %", "0.005"), 0.05: ("93.69 %", "0.006")},
    "cifar100": {1.0: ("78.20 %", "0.0016"), 0.1: ("75.81 %", "0.0017"), 0.05: ("73.83 %", "0.0018")},
}
OPERATIONS = {1.0: "1 ×", 0.1: "0.10 ×", 0.05: "0.05 ×"}


def label(density: float) -> str:
    """The method of a density."""
    return "VI, dense" if density == 1 else f"SSVI {percent(density)}"


def rows(data: str, density: float) -> list[Row]:
    """As published, and with our defaults."""
    accuracy, error = PRINTED[data][density]
    printed = {"accuracy": accuracy, "marginal_l2_debiased": error, "training_macs": OPERATIONS[density]}
    method, own = ("vi", {}) if density == 1 else ("ssvi", {"density": density})
    return [
        ssvi_row(label(density), data, method, own | REFERENCE, printed),
        ssvi_row(f"{label(density)}, our defaults", data, method, own),
    ]


def loses(data: str, density: float, most: float, more_error: float) -> list[Claim]:
    """What the text says that a density costs, and the printed share of operations up to its rounding.

    In a small run the dense first layer, and the gradient of all weights at every sixth step, cost far more.
    """
    sparse, dense = (f"{NAMES[data]}: {label(d)}" for d in (density, 1.0))
    share = density + 0.005
    words = f"operations, {share:g} times those of {dense} less those of {sparse}"
    return [
        Claim(words, "training_macs", {dense: share, sparse: -1.0}, in_small=False),
        Claim.better(sparse, dense, "accuracy", -most),
        Claim.better(sparse, dense, "marginal_l2_debiased", -more_error),
    ]


RESULT = Result(
    title="SSVI, Table 1: dense VI and SSVI",
    claim="On CIFAR-10 SSVI needs a twentieth of the weights and operations of dense VI, for less than 2 % of accuracy "
    "and 0.002 of ECE; on CIFAR-100 a tenth, for less than 3 % and 0.0001.",
    rows=[row for data, printed in PRINTED.items() for density in printed for row in rows(data, density)],
    columns=("accuracy", ECE, "ece", "nll", "density", "training_macs"),
    claims=[*loses("cifar10", 0.05, 0.02, 0.002), *loses("cifar100", 0.1, 0.03, 0.0001)],
)

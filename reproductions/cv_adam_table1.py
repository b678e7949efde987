"""CV-Adam and its pruning on CIFAR-10 (Ke and Fan, arXiv 2210.12957, Table 1)."""

from __future__ import annotations

from reproductions.frame import Claim, Result
from reproductions.rows import KE_FAN_COLUMNS, ke_fan_claims, ke_fan_rows

RESNET = {"Baseline": "95 %", "Rank-1 BNN": "", "cSGLD": "95.7 %", "CV-Adam": "95.5 %"}
WIDE = {"Baseline": "96.3 %", "Rank-1 BNN": "96.5 %", "cSGLD": "96.2 %", "CV-Adam": "96.5 %"}
# Accuracies of SM, DSR, DFP and DPF, by density.
RESNET_SPARSE = {0.3: "92.8 93.1 94.7 94.8", 0.2: "91.1 91.2 94.5 94.5", 0.1: "89.7 90.0 93.9 93.8"}
WIDE_SPARSE = {0.1: "95.4 95.8 95.5 95.8", 0.05: "95.3 95.4 95.3 95.4", 0.01: "94.5 94.5 94.7 94.5"}
SMALL = (0.3, 0.1)

RESULT = Result(
    title="CV-Adam, Table 1: CIFAR-10",
    claim="CV-Adam is as good as cSGLD and Rank-1 networks; DFP loses almost nothing at 70 %, is better than SM and "
    "DSR, and as good as DPF.",
    rows=[
        *ke_fan_rows("ResNet-18", "resnet18", "cifar10", RESNET, RESNET_SPARSE, (1.0, *SMALL)),
        *ke_fan_rows("WRN-28-10", "wide_resnet28_10", "cifar10", WIDE, WIDE_SPARSE, ()),
    ],
    columns=KE_FAN_COLUMNS,
    claims=[
        *ke_fan_claims("ResNet-18", SMALL, ("Rank-1 BNN", "cSGLD")),
        Claim.better("ResNet-18: DFP 70 %", "ResNet-18: CV-Adam", "accuracy", -0.01),
    ],
)

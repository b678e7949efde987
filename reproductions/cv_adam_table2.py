"""CV-Adam and its pruning on CIFAR-100 (Ke and Fan, arXiv 2210.12957, Table 2)."""

from __future__ import annotations

from reproductions.frame import Result
from reproductions.rows import KE_FAN_COLUMNS, ke_fan_claims, ke_fan_rows

RESNET = {"Baseline": "78.5 %", "Rank-1 BNN": "", "cSGLD": "79.7 %", "CV-Adam": "79.4 %"}
WIDE = {"Baseline": "81.7 %", "Rank-1 BNN": "82.4 %", "cSGLD": "82.7 %", "CV-Adam": "83.4 %"}
# Accuracies of SM, DSR, DFP and DPF, by density.
RESNET_SPARSE = {0.5: "76.4 76.6 77.6 77.4", 0.3: "73.2 73.8 75.4 75.1", 0.1: "72.1 72.3 75.1 75.3"}
WIDE_SPARSE = {0.3: "78.0 78.1 78.5 78.2", 0.2: "77.0 76.5 77.7 77.9", 0.1: "76.5 76.4 77.5 77.4"}
SMALL = (0.5, 0.1)

RESULT = Result(
    title="CV-Adam, Table 2: CIFAR-100",
    claim="CV-Adam is as good as cSGLD and Rank-1 networks; DFP is better than SM and DSR, and as good as DPF.",
    rows=[
        *ke_fan_rows("ResNet-34", "resnet34", "cifar100", RESNET, RESNET_SPARSE, (1.0, *SMALL)),
        *ke_fan_rows("WRN-28-10", "wide_resnet28_10", "cifar100", WIDE, WIDE_SPARSE, ()),
    ],
    columns=KE_FAN_COLUMNS,
    claims=ke_fan_claims("ResNet-34", SMALL, ("Rank-1 BNN", "cSGLD")),
)

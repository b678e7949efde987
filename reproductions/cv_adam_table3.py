"""CV-Adam and its pruning on ImageNet (Ke and Fan, arXiv 2210.12957, Table 3): nobody ran it here."""

from __future__ import annotations

from reproductions.frame import Claim, Result
from reproductions.rows import KE_FAN_COLUMNS, ke_fan_claims, ke_fan_rows

DENSE = {"Baseline": "76.5 %", "Rank-1 BNN": "77.3 %", "cSGLD": "76.7 %", "CV-Adam": "76.8 %"}
SPARSE = {0.2: "73.8 73.3 74.5 74.6", 0.1: "72.3 72.0 73.5 73.2"}

RESULT = Result(
    title="CV-Adam, Table 3: ImageNet",
    claim="CV-Adam is a little better than its baseline and worse than Rank-1 networks; DFP is better than SM and DSR.",
    rows=ke_fan_rows("ResNet-50", "resnet50", "reproductions.imagenet:load", DENSE, SPARSE, ()),
    columns=KE_FAN_COLUMNS,
    claims=[
        Claim.better("ResNet-50: CV-Adam", "ResNet-50: Baseline", "accuracy"),
        Claim.better("ResNet-50: Rank-1 BNN", "ResNet-50: CV-Adam", "accuracy"),
        *ke_fan_claims("ResNet-50", tuple(SPARSE)),
    ],
)

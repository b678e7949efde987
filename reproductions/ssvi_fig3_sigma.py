"""σ of new entries: small constants against the mean of their layer (Li et al., ICLR 2024, Figure 3, right)."""

from __future__ import annotations

from reproductions.frame import Claim, Result
from reproductions.lines import plot_rows
from reproductions.rows import NAMES, ssvi_row

CONSTANTS = (1e-6, 1e-5, 1e-4, 1e-3)
SMALL = (1e-6, 1e-3)
SHARED = {"density": 0.1, "mode": "reference"}

RESULT = Result(
    title="SSVI, Figure 3, right: standard deviation of new weights",
    claim="The mean of the layer is as good as the best small constant, within half a point of accuracy.",
    rows=[
        ssvi_row("mean", "cifar100", "ssvi", SHARED),
        *(
            ssvi_row(f"{std:g}", "cifar100", "ssvi", SHARED | {"regrow_std": std}, in_small=std in SMALL)
            for std in CONSTANTS
        ),
    ],
    columns=("accuracy", "nll", "ece"),
    claims=[
        Claim.better(f"{NAMES['cifar100']}: mean", f"{NAMES['cifar100']}: {std:g}", "accuracy", -0.005) for std in SMALL
    ],
    plot=plot_rows({NAMES["cifar100"]: "accuracy"}),
)

"""Monte Carlo steps of the addition criterion (Li et al., ICLR 2024, Figure 3, left); K is 5, the paper has none."""

from __future__ import annotations

from itertools import permutations

from reproductions.frame import Claim, Result
from reproductions.lines import plot_rows
from reproductions.rows import NAMES, ssvi_row

WAYS = {"one draw": "sampled_gradient", "at the means": "mean_gradient", "five draws": "multi_sample_gradient"}
SHARED = {"density": 0.1, "mode": "reference"}

RESULT = Result(
    title="SSVI, Figure 3, left: Monte Carlo steps of the addition",
    claim="More Monte Carlo steps than one add nothing: all ways to score additions are within a point of accuracy.",
    rows=[ssvi_row(way, "cifar100", "ssvi", SHARED | {"addition": key}) for way, key in WAYS.items()],
    columns=("accuracy", "nll", "ece", "training_macs"),
    claims=[
        Claim.better(f"{NAMES['cifar100']}: {one}", f"{NAMES['cifar100']}: {other}", "accuracy", -0.01)
        for one, other in permutations(WAYS, 2)
    ],
    plot=plot_rows({NAMES["cifar100"]: "accuracy"}),
)

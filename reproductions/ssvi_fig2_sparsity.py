"""SSVI with five removal criteria, and RigL, over densities (Li et al., ICLR 2024, Figure 2, left)."""

from __future__ import annotations

from reproductions.frame import Claim, Result, Row
from reproductions.lines import plot_lines
from reproductions.rows import CRITERIA, NAMES, percent, ssvi_row

DATA = "cifar100"
DENSITIES = (0.5, 0.2, 0.1, 0.05, 0.01)
SMALL = (0.5, 0.05)  # less is too little for a small network
MOST, LEAST = SMALL


def rows(line: str, method: str, **options: object) -> list[Row]:
    """A method at every density."""
    return [
        ssvi_row(f"{line}, {percent(d)}", DATA, method, {"density": d, **options}, line=line, at=d, in_small=d in SMALL)
        for d in DENSITIES
    ]


def label(line: str, density: float) -> str:
    """The row of a method at a density."""
    return f"{NAMES[DATA]}: {line}, {percent(density)}"


BEST = "SNR(|θ|)"
FALL = {label(BEST, LEAST): 1.0, label(BEST, MOST): -1.0, label("RigL", LEAST): -1.0, label("RigL", MOST): 1.0}

RESULT = Result(
    title="SSVI, Figure 2, left: over sparsity",
    claim="SSVI loses less accuracy than RigL as fewer weights are left, and SNR(|θ|) is the best criterion.",
    rows=[
        *(row for line, key in CRITERIA.items() for row in rows(line, "ssvi", mode="reference", removal=key)),
        *rows("RigL", "rigl", allocation="uniform"),
    ],
    columns=("accuracy", "nll", "ece", "density", "training_macs"),
    claims=[
        Claim("fall of the accuracy from 50 to 95 %, RigL less SSVI", "accuracy", FALL),
        *(
            Claim.better(label(BEST, density), label(line, density), "accuracy")
            for density in SMALL
            for line in CRITERIA
            if line != BEST
        ),
    ],
    plot=plot_lines("density"),
)

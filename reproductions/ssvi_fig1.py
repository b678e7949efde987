"""Accuracy against the operations of a training (Li et al., ICLR 2024, Figure 1); operations are counted."""

from __future__ import annotations

from reproductions import ssvi_table1, ssvi_table2
from reproductions.frame import Claim, Result
from reproductions.lines import plot_points
from reproductions.rows import NAMES

OTHERS = ("VD", "SBP", "AEB", "mBNN")

RESULT = Result(
    title="SSVI, Figure 1: accuracy against operations",
    claim="SSVI has the best accuracy of all sparse Bayesian networks, for the fewest operations of training.",
    rows=[row for row in (*ssvi_table2.RESULT.rows, *ssvi_table1.RESULT.rows) if ": SSVI 9" not in row.label],
    columns=("accuracy", "training_macs", "training_macs_per_example"),
    claims=[
        Claim.better(f"{data}: SSVI", f"{data}: {other}", metric)
        for data in NAMES.values()
        for other in OTHERS
        for metric in ("accuracy", "training_macs")
    ],
    plot=plot_points("training_macs", "accuracy", list(NAMES.values())),
)

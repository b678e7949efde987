"""Dense VI and SSVI over the initial standard deviation (Li et al., ICLR 2024, Figure 2, right)."""

from __future__ import annotations

from reproductions.frame import Claim, Result, Row
from reproductions.lines import plot_lines
from reproductions.rows import CRITERIA, NAMES, ssvi_row

DATA = "cifar100"
STDS = (0.001, 0.003, 0.005, 0.01)
SMALL = (0.001, 0.01)
LEAST, MOST = SMALL


def rows(line: str, method: str, **options: object) -> list[Row]:
    """A method at every initial σ."""
    shared = {"mode": "reference", **options}
    return [
        ssvi_row(
            f"{line}, σ {std:g}", DATA, method, {"init_std": std, **shared}, line=line, at=std, in_small=std in SMALL
        )
        for std in STDS
    ]


def label(line: str, std: float) -> str:
    """The row of a method at an initial σ."""
    return f"{NAMES[DATA]}: {line}, σ {std:g}"


def fall(line: str) -> dict[str, float]:
    """How much more VI loses than SSVI with a criterion."""
    return {label(line, MOST): 1.0, label(line, LEAST): -1.0, label("VI", MOST): -1.0, label("VI", LEAST): 1.0}


RESULT = Result(
    title="SSVI, Figure 2, right: over the initial standard deviation",
    claim="From an initial σ of 0.001 to 0.01 dense VI deteriorates; SSVI at 90 % does not, and is better at 0.01.",
    rows=[
        *rows("VI", "vi"),
        *(row for line, key in CRITERIA.items() for row in rows(line, "ssvi", density=0.1, removal=key)),
    ],
    columns=("accuracy", "nll", "ece"),
    claims=[
        *(Claim(f"fall of the accuracy, VI less {line}", "accuracy", fall(line)) for line in CRITERIA),
        *(Claim.better(label(line, MOST), label("VI", MOST), "accuracy") for line in CRITERIA),
    ],
    plot=plot_lines("initial σ"),
)

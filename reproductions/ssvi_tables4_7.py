"""Intersection over union of what each pair of criteria takes (Li et al., ICLR 2024, Tables 4 to 7).

The runs of Figure 5, at the first, the middle and the last of their updates.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer._text.formats import number
from gossamer.metrics import Metric
from reproductions.drawing import draw, tidy
from reproductions.frame import Claim, Kept, Result, mean_error
from reproductions.rows import CRITERIA
from reproductions.ssvi_fig5 import PAIRS, ROW, WHEN, overlaps
from reproductions.ssvi_fig5 import RESULT as FIGURE5

SHOWN = (("|μ|", "SNR(θ)"), ("|μ|", "E|θ|"), ("SNR(θ)", "SNR(|θ|)"))
KINDS = {"published": "float32", "exact": "exact"}
PRINTED = {  # in the order of PAIRS
    "first": "0.9995 0.9122 0.9981 0.9122 0.9118 0.9985 0.9118 0.9118 0.9996 0.9118",
    "middle": "0.9999 0.7723 0.8177 0.7722 0.7722 0.8177 0.7722 0.6786 0.9895 0.6790",
    "last": "0.9998 0.1528 0.0829 0.1190 0.1528 0.0829 0.1190 0.0389 0.8501 0.0374",
}
PAPER = {f"{a}, {b}, {when}": n for when, row in PRINTED.items() for (a, b), n in zip(PAIRS, row.split(), strict=True)}


def _columns() -> list[Metric]:
    made = []
    for kind, words in KINDS.items():
        for a, b in SHOWN:
            heading = f"{a} and {b}, last, {words}"
            meaning = "Intersection over union."
            made.append(Metric(f"{kind}: {a}, {b}, last", heading, number, None, meaning, heading=heading))
    return made


def _plot(result: Result, kept: Kept, path: Path) -> None:
    """A matrix for each moment, with the paper's and both arithmetics below each other."""
    names = list(CRITERIA)

    def value(kind: str, a: str, b: str, when: str) -> float:
        if a == b:
            return 1.0
        pair = f"{a}, {b}, {when}" if (a, b) in PAIRS else f"{b}, {a}, {when}"
        return mean_error(kept.values(ROW, f"{kind}: {pair}"))[0] if kind in KINDS else float(PAPER[pair])

    def paint(figure: Any) -> None:
        kinds = {"paper": "the paper"} | {kind: words + ", small" * kept.small for kind, words in KINDS.items()}
        for panels, (kind, words) in zip(figure.subplots(len(kinds), len(WHEN)), kinds.items(), strict=True):
            for axes, when in zip(panels, WHEN, strict=True):
                cells = [[value(kind, a, b, when) for b in names] for a in names]
                axes.imshow(cells, vmin=0, vmax=1, cmap="Blues")
                for i, row in enumerate(cells):
                    for j, cell in enumerate(row):
                        axes.text(j, i, f"{cell:.2f}", ha="center", va="center", color="w" if cell > 0.6 else "k")
                tidy(axes, f"{words}, {when} update")
                axes.grid(visible=False)
                axes.set_xticks(range(len(names)), names, fontsize=7)
                axes.set_yticks(range(len(names)), names, fontsize=8)

    draw(path, (10.5, 10.8), paint)


RESULT = Result(
    title="SSVI, Tables 4 to 7: agreement of each pair of criteria",
    claim="|μ| and SNR(θ) stay nearly the same criterion, while E|θ| and SNR(|θ|) come to take other weights.",
    rows=[
        replace(row, printed={f"published: {a}, {b}, last": PAPER[f"{a}, {b}, last"] for a, b in SHOWN})
        for row in FIGURE5.rows
    ],
    columns=_columns(),
    claims=[
        Claim("IoU of |μ| and SNR(θ), last, in float32", "published: |μ|, SNR(θ), last", {ROW: 1.0}, 0.95),
        Claim("1 − IoU of SNR(θ) and SNR(|θ|), last, in float32", "published: snr apart", {ROW: 1.0}, 0.5),
        Claim("1 − IoU of SNR(θ) and SNR(|θ|), last, exact", "exact: snr apart", {ROW: 1.0}, 0.5),
        Claim("1 − IoU of |μ| and E|θ|, last, exact", "exact: mean apart", {ROW: 1.0}, 0.5),
    ],
    measure=overlaps,
    plot=_plot,
)

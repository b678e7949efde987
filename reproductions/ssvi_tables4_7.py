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
from reproductions.frame import Claim, Kept, Result
from reproductions.rows import CRITERIA
from reproductions.ssvi_fig5 import ARITHMETICS, ROW, WHEN, overlaps
from reproductions.ssvi_fig5 import RESULT as FIGURE5

SHOWN = {("|μ|", "SNR(θ)"): "0.9998", ("|μ|", "E|θ|"): "0.1528", ("SNR(θ)", "SNR(|θ|)"): "0.0829"}  # at the end
KINDS = {"published": "float32", "exact": "exact"}


def _columns() -> list[Metric]:
    made = []
    for kind, words in KINDS.items():
        for a, b in SHOWN:
            heading = f"{a} and {b}, last, {words}"
            meaning = "Intersection over union."
            made.append(Metric(f"{kind}: {a}, {b}, last", heading, number, None, meaning, heading=heading))
    return made


def _plot(result: Result, kept: Kept, path: Path) -> None:
    """A matrix for each moment, with both arithmetics below each other."""
    names = list(CRITERIA)

    def value(kind: str, a: str, b: str, when: str) -> float:
        if a == b:
            return 1.0
        pair = f"{a}, {b}" if names.index(a) < names.index(b) else f"{b}, {a}"
        values = kept.values(ROW, f"{kind}: {pair}, {when}")
        return sum(values) / len(values)

    def paint(figure: Any) -> None:
        for panels, kind in zip(figure.subplots(2, len(WHEN)), ARITHMETICS, strict=True):
            for axes, when in zip(panels, WHEN, strict=True):
                cells = [[value(kind, a, b, when) for b in names] for a in names]
                axes.imshow(cells, vmin=0, vmax=1, cmap="Blues")
                for i, row in enumerate(cells):
                    for j, cell in enumerate(row):
                        axes.text(j, i, f"{cell:.2f}", ha="center", va="center", color="w" if cell > 0.6 else "k")
                tidy(axes, f"{KINDS[kind]}, {when}{', small' if kept.small else ''}")
                axes.grid(visible=False)
                axes.set_xticks(range(len(names)), names, fontsize=7)
                axes.set_yticks(range(len(names)), names, fontsize=8)

    draw(path, (10.5, 7.4), paint)


RESULT = Result(
    title="SSVI, Tables 4 to 7: agreement of each pair of criteria",
    claim="|μ| and SNR(θ) stay nearly the same criterion, while E|θ| and SNR(|θ|) come to take other weights.",
    rows=[
        replace(row, printed={f"published: {a}, {b}, last": printed for (a, b), printed in SHOWN.items()})
        for row in FIGURE5.rows
    ],
    columns=_columns(),
    claims=[
        Claim("1 − IoU of SNR(θ) and SNR(|θ|), last, in float32", "published: snr apart", {ROW: 1.0}, 0.5),
        Claim("1 − IoU of SNR(θ) and SNR(|θ|), last, exact", "exact: snr apart", {ROW: 1.0}, 0.5),
        Claim("1 − IoU of |μ| and E|θ|, last, exact", "exact: mean apart", {ROW: 1.0}, 0.5),
    ],
    measure=overlaps,
    plot=_plot,
)

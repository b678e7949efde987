"""Figures of predicted numbers: against the truth, coverage of intervals, errors by std, the std itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gossamer._text.formats import integer, number, percent
from gossamer.lab.report.axes import Axis
from gossamer.lab.report.charts import Bars, Point, Series, Words, histogram, line
from gossamer.lab.report.fields import Cloud, cloud
from gossamer.lab.report.figure import Figure, shares
from gossamer.lab.report.runs import LoadedRun

NORMAL_90 = 1.645  # stds on either side of the mean that hold 90 % of a Gaussian


def figures(run: LoadedRun) -> list[Figure]:
    """All that the result has."""
    found = (_predicted(run), _coverage(run), _errors(run), _std(run))
    return [figure for figure in found if figure is not None]


def coverage_points(run: LoadedRun) -> list[Point]:
    """Actual against nominal coverage, from (0, 0) to (1, 1)."""
    found = run.curve("coverage", "nominal", "actual")
    points = [(n, a) for n, a in zip(*found, strict=True) if math.isfinite(n + a)] if found else []
    return [(0.0, 0.0), *points, (1.0, 1.0)] if points else []


def _predicted(run: LoadedRun) -> Figure | None:
    found = run.curve("points", "target", "mean", "low90", "high90")
    rows = [row for row in zip(*found, strict=True) if all(map(math.isfinite, row))] if found else []
    if not rows:
        return None
    inside = sum(low <= target <= high for target, _, low, high in rows)
    caption = f"With 90\u202f% intervals; {integer(inside)} of the {integer(len(rows))} shown hold the true value."
    low, high = (pick(value for row in rows for value in row[:2]) for pick in (min, max))
    ideal = Series("", [(low, low), (high, high)], kind="reference")
    some = Cloud([row[:2] for row in rows], [row[2:] for row in rows])
    words = Words("predicted", "Predicted against true", caption)
    return Figure(words.slug, words.title, caption, cloud(some, [ideal], Axis("True"), Axis("Predicted"), words))


def _coverage(run: LoadedRun) -> Figure | None:
    points = coverage_points(run)
    if not points:
        return None
    inner = points[1:-1]
    gap = sum(abs(a - n) for n, a in inner) / len(inner)
    lean = sum(a - n for n, a in inner)
    verdict = "intervals are too wide (underconfident)" if lean > 0 else "intervals are too narrow (overconfident)"
    caption = f"Mean distance from the dashed line {percent(gap)}; on average {verdict}."
    ideal = Series("", [(0.0, 0.0), (1.0, 1.0)], kind="reference")
    axes = Axis("Nominal coverage", percent, 0.0, 1.0), Axis("Actual coverage", percent, 0.0, 1.0)
    words = Words("coverage", "Calibration of intervals", caption)
    return Figure(words.slug, words.title, caption, line([ideal, Series("Actual", points)], *axes, words, direct=False))


def _errors(run: LoadedRun) -> Figure | None:
    """|residual| against std, and the RMSE of groups of examples with about the same std (Levi et al. 2022)."""
    found, grouped = run.curve("points", "target", "mean", "std"), run.curve("errors", "std", "rmse")
    rows = [row for row in zip(*found, strict=True) if all(map(math.isfinite, row))] if found else []
    if not rows:
        return None
    points = [(std, abs(target - mean)) for target, mean, std in rows]
    widest = max(std for std, _ in points)
    inside = sum(error <= NORMAL_90 * std for std, error in points) / len(points)
    caption = (
        "RMSE of groups with about the same std should follow the dashed line, RMSE = std. "
        f"{percent(inside, 0)} of the residuals are within {NORMAL_90} std."
    )
    lines = [Series("", [(0.0, 0.0), (widest, widest)], kind="reference")]
    if grouped and len(grouped[0]) > 1:
        lines.append(Series("RMSE of groups", sorted(zip(*grouped, strict=True)), 1))
    x = Axis("Predicted std", number, min(std for std, _ in points), widest)
    words = Words("residual", "Residual against std", caption)
    chart = cloud(Cloud(points), lines, x, Axis("|true − predicted|", number, 0.0), words)
    return Figure(words.slug, words.title, caption, chart)


def _std(run: LoadedRun) -> Figure | None:
    found = [(label, *some) for name, label in (("std", "std"), ("epistemic_std", "epistemic std"))
             if (some := shares(run, name))]  # fmt: skip
    if not found or found[0][0] != "std":
        return None
    edges = [10.0**edge for edge in found[0][1]]
    bars = [_named(one, label, colour, edges) for colour, (label, _, one) in enumerate(found)]
    caption = "How uncertain its predictions are" + (
        "; epistemic: the part on which drawn networks disagree." if len(found) > 1 else "."
    )
    axes = Axis("Predicted std", number, edges[0], edges[-1], log=True), Axis("Share of examples", percent, 0.0)
    words = Words("std", "Distribution of std", caption)
    return Figure("std", words.title, caption, histogram(edges, bars, axes, words))


def _named(one: Bars, label: str, colour: int, edges: Sequence[float]) -> Bars:
    bins = zip(edges[:-1], edges[1:], one.heights, strict=True)
    hovers = [f"{label} from {number(a)} to {number(b)}: {percent(h)}" for a, b, h in bins]
    return Bars(label, one.heights, hovers, colour)

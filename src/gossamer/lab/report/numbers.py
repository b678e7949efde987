"""Figures of predicted numbers: against the truth, coverage of intervals, errors by std, the std itself."""

from __future__ import annotations

from gossamer._text.formats import integer, number, percent
from gossamer.lab.report.axes import Axis
from gossamer.lab.report.charts import DIAGONAL, Bars, Series, histogram, line
from gossamer.lab.report.figure import Figure, Point
from gossamer.lab.report.plots import Cloud, cloud
from gossamer.lab.report.runs import LoadedRun

NORMAL_90 = 1.645  # stds on either side of the mean that hold 90 % of a Gaussian
COVERAGE_AXES = Axis("Nominal coverage", percent, 0.0, 1.0), Axis("Actual coverage", percent, 0.0, 1.0)


def figures(run: LoadedRun) -> list[Figure | None]:
    """Those that the result has the numbers for."""
    return [_predicted(run), _coverage(run), _errors(run), _std(run)]


def coverage_points(run: LoadedRun) -> list[Point]:
    """Actual against nominal coverage, from (0, 0) to (1, 1)."""
    points = run.rows("coverage", "nominal", "actual")
    return [(0.0, 0.0), *((nominal, actual) for nominal, actual in points), (1.0, 1.0)] if points else []


def _predicted(run: LoadedRun) -> Figure | None:
    rows = run.rows("points", "target", "mean", "low90", "high90")
    if not rows:
        return None
    inside = sum(low <= target <= high for target, _, low, high in rows)
    caption = f"With 90\u202f% intervals; {integer(inside)} of the {integer(len(rows))} shown hold the true value."
    low, high = (pick(value for row in rows for value in row[:2]) for pick in (min, max))
    ideal = Series("", [(low, low), (high, high)], kind="reference")
    points = Cloud([(target, mean) for target, mean, *_ in rows], [(low, high) for *_, low, high in rows])
    chart = cloud(points, [ideal], Axis("True"), Axis("Predicted"))
    return Figure("predicted", "Predicted against true", caption, chart)


def _coverage(run: LoadedRun) -> Figure | None:
    points = coverage_points(run)
    if not points:
        return None
    gaps = [actual - nominal for nominal, actual in points[1:-1]]
    verdict = "intervals are too wide (underconfident)" if sum(gaps) > 0 else (
        "intervals are too narrow (overconfident)")  # fmt: skip
    caption = f"Mean distance from the dashed line {percent(sum(map(abs, gaps)) / len(gaps))}; on average {verdict}."
    chart = line([DIAGONAL, Series("Actual", points)], *COVERAGE_AXES, direct=False)
    return Figure("coverage", "Calibration of intervals", caption, chart)


def _errors(run: LoadedRun) -> Figure | None:
    """|residual| against std, and the RMSE of groups of examples with about the same std (Levi et al. 2022)."""
    points = [(std, abs(target - mean)) for target, mean, std in run.rows("points", "target", "mean", "std")]
    if not points:
        return None
    widest = max(std for std, _ in points)
    inside = sum(error <= NORMAL_90 * std for std, error in points) / len(points)
    caption = (
        "RMSE of groups with about the same std should follow the dashed line, RMSE = std. "
        f"{percent(inside, 0)} of the residuals are within {NORMAL_90} std."
    )
    lines = [Series("", [(0.0, 0.0), (widest, widest)], kind="reference")]
    grouped = [(std, rmse) for std, rmse in run.rows("errors", "std", "rmse")]
    lines += [Series("RMSE of groups", sorted(grouped), 1)] if len(grouped) > 1 else []
    x = Axis("Predicted std", number, min(std for std, _ in points), widest)
    chart = cloud(Cloud(points), lines, x, Axis("|true − predicted|", number, 0.0))
    return Figure("residual", "Residual against std", caption, chart)


def _std(run: LoadedRun) -> Figure | None:
    names = (("std", "std"), ("epistemic_std", "epistemic std"))
    known = [(label, *both) for name, label in names if (both := run.shares(name))]
    if not known or known[0][0] != "std":
        return None
    bars = [Bars(label, heights, list(map(percent, heights)), k) for k, (label, _, heights) in enumerate(known)]
    caption = "How uncertain its predictions are"
    caption += "; epistemic: the part on which drawn networks disagree." if len(known) > 1 else "."
    edges = [10.0**power for power in known[0][1]]
    axes = Axis("Predicted std", number, edges[0], edges[-1], log=True), Axis("Share of examples", percent, 0.0)
    return Figure("std", "Distribution of std", caption, histogram(edges, bars, *axes))
